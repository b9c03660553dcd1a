//! Locks of another layout under the same name: they have keys of their own, or one key of another
//! type, and so exclude nobody here.
//!
//! Asking for a lock looks at the keys of one layout, in one message. Whoever asks how a name
//! stands may look further.

use super::dialect::call;
use super::keys::Keys;
use super::links::Links;
use super::options::{Layout, RedisOptions};
use super::resp::Value;
use super::script::Which;
use crate::error::{ErrorKind, Result};
use crate::guarantee::Warning;
use crate::name::{Kind, Name};

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
        let key = call.keys.first().cloned().unwrap_or_default();
        match links.call(call).await {
            Ok(value) => found.extend(warning(options, &key, &value)),
            Err(error)
                if matches!(
                    error.kind(),
                    ErrorKind::Unreachable | ErrorKind::Unknown | ErrorKind::Closed
                ) =>
            {
                return Err(error);
            }
            // A rule of the server's, or a node of a cluster that has not got this key.
            Err(_) => {}
        }
    }
    Ok(found)
}

fn warning(options: &RedisOptions, key: &str, value: &Value) -> Option<Warning> {
    let ours = options.layout.as_str();
    let theirs = value.text().filter(|word| !word.is_empty() && *word != ours)?;
    let whose = match theirs {
        "plain" => "redis-py, or of another program that writes layout=plain",
        "redisson" => "Redisson",
        _ => "lockkeeper",
    };
    // The two have one key, which has one type.
    let harm = if options.layout != Layout::Native && theirs != "native" {
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
