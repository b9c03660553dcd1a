//! Removes every key that a measurement or a demonstration has left, in any layout: their names
//! hold a word that nobody else has.

use super::client::lane::To;
use super::errors;
use super::links::Links;
use super::resp::{Command, Value};
use crate::words::error::Result;

/// How many keys one message deletes; a look through the database tells of about as many at once.
const KEYS_AT_ONCE: usize = 1000;

/// Deletes each key that has the word somewhere, whoever made it; answers whether there was one.
/// The word ends in random digits, and has no character that means something to a pattern:
/// `Locks::sweep` takes no other.
pub(super) async fn sweep(links: &Links, word: &str) -> Result<bool> {
    let pattern = format!("*{word}*");
    let mut found = false;
    for node in links.main.nodes() {
        let mut cursor = "0".to_owned();
        loop {
            let scan = Command::new(["SCAN", &cursor, "MATCH", &pattern, "COUNT", "1000"]);
            let scanned = links.command(links.side(), To::At(node), "SCAN", scan).await?;
            let [next, keys] = scanned.items() else { return Err(errors::garbage(&links.options)) };
            let keys = keys.items();
            found |= !keys.is_empty();
            for some in keys.chunks(links.names_at_once(KEYS_AT_ONCE)) {
                let delete =
                    some.iter().filter_map(Value::bytes).fold(Command::new(["DEL"]), Command::arg);
                // A key that is no text was not written by us: where it was found it is.
                let to = some.first().and_then(Value::text);
                let to = to.map_or(To::At(node), |key| To::Key(key.to_owned()));
                links.command(links.side(), to, "DEL", delete).await?;
            }
            cursor = next.text().ok_or_else(|| errors::garbage(&links.options))?.to_owned();
            if cursor == "0" {
                break;
            }
        }
    }
    Ok(found)
}
