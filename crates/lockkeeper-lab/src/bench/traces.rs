//! What a measurement leaves behind, and who clears it away: a helper process that outlives this one.
//!
//! Ctrl-C, a KILL or a full disk may end a measurement anywhere, with a hundred thousand leases held. So each one has a place of its own in
//! the engine, and the helper removes that place once its standard input closes.

use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use lockkeeper::url::EngineUrl;
use lockkeeper::{Error, ErrorKind};
use serde::{Deserialize, Serialize};

use super::redis::learn::Words;
use super::redis::raw::{Raw, command};
use super::text;
use crate::helper;

/// The kind of helper that clears away.
pub(crate) const HELPER: &str = "bench-traces";

/// How long the server may take to do what the ended process had sent.
const SETTLES: Duration = Duration::from_millis(100);

/// A place of a measurement's own.
#[derive(Serialize, Deserialize)]
enum Place {
    /// A directory of lock files.
    Directory(PathBuf),
    /// The keys of a namespace, on the server at this address, which is greeted so.
    Namespace { namespace: String, address: String, hello: Vec<Vec<Vec<u8>>> },
}

/// The helper; dropping it has the place cleared away, and waits for that.
pub(super) struct Traces(Child);

impl Traces {
    /// The URL of a place of its own inside the engine of `url`, and who clears it away. An engine whose locks leave nothing, or that has
    /// no such place, is measured as it is.
    pub(super) fn of(url: &str, runtime: &tokio::runtime::Runtime) -> Result<(String, Option<Self>), String> {
        let mut parsed = EngineUrl::parse(url).map_err(text)?;
        let own = format!("bench-{}", lockkeeper::ClaimId::fresh().to_string().get(..8).unwrap_or_default());
        let is_native = parsed.take("layout").is_none_or(|layout| layout == "native");
        match parsed.scheme.as_str() {
            "file" => {
                let directory = lockkeeper::direct::directory(&parsed.path).map_err(text)?.join(&own);
                let query = url.split_once('?').map_or(String::new(), |(_, query)| format!("?{query}"));
                let url = lockkeeper::config::file_url(&directory) + &query;
                Ok((url, Some(Self::start(&Place::Directory(directory))?)))
            }
            "redis" if is_native => {
                let namespace = format!("{}-{own}", parsed.take("namespace").unwrap_or_else(|| "lockkeeper".to_owned()));
                let url = with_namespace(url, &namespace);
                let Words { address, hello, .. } = Words::learn(&url, runtime)?;
                Ok((url, Some(Self::start(&Place::Namespace { namespace, address, hello })?)))
            }
            _ => Ok((url.to_owned(), None)),
        }
    }

    fn start(place: &Place) -> Result<Self, String> {
        let program = helper::Program::this().map_err(text)?;
        let mut command = Command::new(&program.path);
        command.args(&program.arguments).arg(HELPER).stdin(Stdio::piped()).stdout(Stdio::null());
        // A group of its own: Ctrl-C ends us, and it clears away then.
        let child = command.process_group(0).spawn().map_err(text)?;
        let mut traces = Self(child);
        let told = serde_json::to_string(place).map_err(text)? + "\n";
        let stdin = traces.0.stdin.as_mut().ok_or("the helper has no stdin")?;
        std::io::Write::write_all(stdin, told.as_bytes()).map_err(text)?;
        Ok(traces)
    }
}

impl Drop for Traces {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        // It says itself what it could not clear away.
        let _ = self.0.wait();
    }
}

/// The URL with another namespace.
fn with_namespace(url: &str, namespace: &str) -> String {
    let (base, query) = url.split_once('?').unwrap_or((url, ""));
    let kept = query.split('&').filter(|pair| !pair.is_empty() && !pair.starts_with("namespace="));
    let pairs: Vec<String> = kept.map(str::to_owned).chain([format!("namespace={namespace}")]).collect();
    format!("{base}?{}", pairs.join("&"))
}

/// The helper: waits for the end of who started it, and clears its place away.
///
/// # Errors
/// What could not be cleared away, and why.
pub(crate) fn clear() -> lockkeeper::Result<()> {
    let place: Place = helper::hear()?;
    // Nothing more is said: this is the end of who started us.
    let _ = std::io::copy(&mut std::io::stdin().lock(), &mut std::io::sink());
    let cleared = match &place {
        Place::Directory(directory) => match std::fs::remove_dir_all(directory) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(format!("{} stays: {e}", directory.display())),
            _ => Ok(()),
        },
        Place::Namespace { namespace, address, hello } => {
            remove_keys(namespace, address, hello).map_err(|e| format!("keys that begin with {namespace}: stay for up to 7 days: {e}"))
        }
    };
    cleared.map_err(|why| {
        eprintln!("lockkeeper: bench: {why}");
        Error::new(ErrorKind::Refused, why)
    })
}

/// Removes every key of a namespace. What its process had sent may still be done: only two empty looks in a row are the end.
fn remove_keys(namespace: &str, address: &str, hello: &[Vec<Vec<u8>>]) -> Result<(), String> {
    let mut raw = Raw::connect(address, hello)?;
    let mut empty = 0;
    while empty < 2 {
        if empty > 0 {
            std::thread::sleep(SETTLES);
        }
        empty = if remove_once(&mut raw, namespace)? { 0 } else { empty + 1 };
    }
    Ok(())
}

/// One look at all keys; answers whether there was one to remove.
fn remove_once(raw: &mut Raw, namespace: &str) -> Result<bool, String> {
    let pattern = format!("{namespace}:*");
    let (mut cursor, mut found) = ("0".to_owned(), false);
    loop {
        let mut said = raw.ask(&command(&["SCAN", &cursor, "MATCH", &pattern, "COUNT", "1000"]))?.into_iter();
        cursor = said.next().ok_or("SCAN was not answered")?;
        let keys: Vec<String> = said.collect();
        if !keys.is_empty() {
            found = true;
            let words: Vec<&str> = ["DEL"].into_iter().chain(keys.iter().map(String::as_str)).collect();
            raw.ask(&command(&words))?;
        }
        if cursor == "0" {
            return Ok(found);
        }
        if cursor.parse::<u64>().is_err() {
            return Err(format!("SCAN was answered with {cursor:?}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_namespace_of_a_url_is_replaced() {
        assert_eq!(with_namespace("redis://h", "a"), "redis://h?namespace=a");
        assert_eq!(with_namespace("redis://h?namespace=x&ttl=5s", "a"), "redis://h?ttl=5s&namespace=a");
    }
}
