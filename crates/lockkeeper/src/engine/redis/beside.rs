//! Locks of another layout under the same name: they have keys of their own, or one key of another
//! type, and so exclude nobody here.
//!
//! Asking for a lock looks at the keys of one layout, in one message. Whoever asks how a name
//! stands may look further.

use super::dialect::call;
use super::links::Links;
use super::name::Keys;
use super::options::{Layout, RedisOptions};
use super::resp::Value;
use super::script::Which;
use crate::words::error::{ErrorKind, Result};
use crate::words::guarantee::Warning;
use crate::words::name::{Kind, Name};

/// The other layouts that hold a lock of this name, whose own key would be `key`.
///
/// # Errors
/// When the server does not answer. What it does not let us look at is not known, and no error.
pub(super) async fn look(links: &Links, key: &str, name: &Name) -> Result<Vec<Warning>> {
    let options = &links.options;
    let mut calls = vec![call(Which::Beside, &[key], &[])];
    if options.layout != Layout::Native {
        // With the default namespace: another one is not known.
        let defaults = RedisOptions::new(options.address.clone());
        let record = Keys::new(&defaults.namespace, options.db).record(Kind::Lock, name);
        calls.push(call(Which::Beside, &[&record], &[Layout::Native.as_str()]));
    }
    let mut found = Vec::new();
    for call in calls {
        let key = call.keys.first().unwrap_or_default().to_owned();
        let theirs = word(links.call(call).await)?;
        found.extend(theirs.and_then(|theirs| warning(options.layout, &key, &theirs)));
    }
    Ok(found)
}

/// Whose lock the script takes a key for; `None` where that is not to be seen: a rule of the
/// server's, or a node of a cluster that has not got this key.
///
/// # Errors
/// The server does not answer.
pub(in crate::engine) fn word(said: Result<Value>) -> Result<Option<String>> {
    match said {
        Ok(value) => Ok(Some(value.text().unwrap_or_default().to_owned())),
        Err(error)
            if matches!(
                error.kind(),
                ErrorKind::Unreachable | ErrorKind::Unknown | ErrorKind::Closed
            ) =>
        {
            Err(error)
        }
        Err(_) => Ok(None),
    }
}

/// What is told of a lock of another layout in this key; the script's word says of which. `None`
/// where it is none, or one of ours.
pub(in crate::engine) fn warning(layout: Layout, key: &str, theirs: &str) -> Option<Warning> {
    let ours = layout.as_str();
    if theirs.is_empty() || theirs == ours {
        return None;
    }
    let whose = match theirs {
        "plain" => "redis-py, or of another program that writes layout=plain",
        "redisson" => "Redisson",
        _ => "lockkeeper",
    };
    // The two have one key, which has one type.
    let harm = if layout != Layout::Native && theirs != "native" {
        format!("no lock of layout={ours} can be had while it is there")
    } else {
        format!("layout={ours} does not exclude layout={theirs}, so there can be two holders")
    };
    let text = format!(
        "the key {key} looks like a lock of {whose}: {harm}; give every URL of this name \
         layout={theirs}"
    );
    Some(Warning { id: "other-layout", text })
}
