//! What goes wrong: a line for people, an object for programs.

use lockkeeper::text::{json_line, printable};
use serde::Serialize;

/// Something that went wrong.
#[derive(Serialize)]
pub struct Trouble<'a> {
    /// A stable word, of those in `docs/json.md`.
    pub error: &'a str,
    /// The lock that it was about.
    pub name: Option<&'a str>,
    /// The engine that it was about.
    pub engine: Option<&'a str>,
    /// The exit code that it leads to.
    pub exit: u8,
    /// What happened, to what, and what to do.
    pub message: &'a str,
}

impl Trouble<'_> {
    /// The object.
    pub fn json(&self) -> String {
        json_line(serde_json::to_string(self).unwrap_or_default())
    }

    /// The line that a subcommand says it in.
    pub(crate) fn line(&self, subcommand: &str, json: bool) -> String {
        if json {
            return self.json();
        }
        format!("lockkeeper: {subcommand}: {}", printable(self.message))
    }
}
