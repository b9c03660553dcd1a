//! `file:///path/dir`: a directory, and one option.

use super::File;
use crate::engine::{Common, Engine, Keep, Registration, UrlOption, Value};
use crate::open::home::lock_directory;
use crate::open::url::EngineUrl;
use crate::words::error::{Error, ErrorKind, Result};

pub(crate) fn registration() -> Registration {
    let mut file = Registration::new("file", &["file"], Keep::Kernel, open);
    file.options = vec![UrlOption::new(
        "durable",
        Value::Switch,
        "false",
        "syncs every token to the disk before its grant",
    )];
    file.place = Some(place);
    file
}

fn open(url: &mut EngineUrl, _: &Common) -> Result<Box<dyn Engine>> {
    check(url)?;
    let durable = url.take_bool("durable")?.unwrap_or(false);
    Ok(Box::new(File::new(lock_directory(&std::mem::take(&mut url.path))?, durable)))
}

fn check(url: &EngineUrl) -> Result<()> {
    if url.hosts.is_empty() {
        return Ok(());
    }
    let text = "file: has no host: write file:///path/dir with three slashes";
    Err(Error::new(ErrorKind::InvalidArgument, text))
}

/// The directory's real path: two ways to one directory are one store.
fn place(url: &mut EngineUrl) -> Result<()> {
    check(url)?;
    let directory = lock_directory(&url.path)?;
    let real = std::fs::canonicalize(&directory).unwrap_or(directory);
    url.path = real.to_string_lossy().into_owned();
    Ok(())
}
