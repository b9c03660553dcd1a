//! The variables of libpq that would name another server or password: a URL that is read without
//! them means something else than its user thinks.

use super::errors::wrong;
use crate::words::error::Result;

/// Refuses a variable that is set and would name another server.
///
/// # Errors
/// `InvalidArgument`, naming it and what to write instead.
pub(super) fn check() -> Result<()> {
    if !is_set("PGSERVICE") {
        return Ok(());
    }
    Err(wrong(
        "PGSERVICE is set, and lockkeeper does not read it: name the server in the URL, and unset \
         it",
    ))
}

/// What to say of a password that is missing, beside how to give one.
pub(super) fn of_password() -> &'static str {
    if is_set("PGPASSFILE") { " (PGPASSFILE is set, and lockkeeper does not read it)" } else { "" }
}

fn is_set(name: &str) -> bool {
    std::env::var_os(name).is_some_and(|value| !value.is_empty())
}
