//! The service of a URL: `/service` or `/service/db`.

use crate::engine::redis::url as server;
use crate::open::url::EngineUrl;
use crate::words::error::{Error, ErrorKind, Result};

/// The longest name of a service.
const SERVICE_BYTES_MAX: usize = 128;

/// The service that a path names, and the rest of the path, which is the database.
///
/// # Errors
/// `InvalidArgument`, with the URL to write.
pub(super) fn service(url: &EngineUrl) -> Result<(String, String)> {
    let like = "as in redis+sentinel://a,b,c/mymaster, or …/mymaster/3 for database 3";
    let wrong = |text: String| Error::new(ErrorKind::InvalidArgument, text);
    let path = url.path.trim_start_matches('/').trim_end_matches('/');
    let (service, db) = path.split_once('/').unwrap_or((path, "0"));
    if service.is_empty() {
        return Err(wrong(format!(
            "a Sentinel URL ends with the name of a service, the one in the Sentinels' own \
             configuration: {like}"
        )));
    }
    let good = |b: u8| b.is_ascii_alphanumeric() || b"._-".contains(&b);
    if service.len() > SERVICE_BYTES_MAX || !service.bytes().all(good) {
        return Err(wrong(format!(
            "{service:?} is no name of a service: Sentinels take letters, digits, dots, dashes \
             and underscores, {like}"
        )));
    }
    let db = db.trim_start_matches('0');
    if !db.is_empty() && (db.parse::<u32>().is_err() || db.starts_with('+')) {
        return Err(wrong(format!(
            "after the service stands the number of a database, and not {db:?}: {like}"
        )));
    }
    Ok((service.to_owned(), if db.is_empty() { String::new() } else { format!("/{db}") }))
}

/// The place in a canonical name: the database is in the path, and the Sentinels have no order.
///
/// # Errors
/// As [`service`].
pub(super) fn place(url: &mut EngineUrl) -> Result<()> {
    let (service, db) = service(url)?;
    url.hosts.sort();
    url.path = db;
    server::place(url)?;
    url.path = format!("/{service}{}", url.path);
    Ok(())
}
