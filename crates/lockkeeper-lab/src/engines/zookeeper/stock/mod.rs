//! The stock as a node of the ensemble that keeps the lock: the pieces that are left, and the
//! greatest token seen, as text.

mod client;

use lockkeeper::{Error, ErrorKind, Result, Token};

use crate::demo::stock::{Doing, Shelf, Stock};
use client::{Client, Refusal};

/// A record in a node.
pub(crate) struct Nodes;

impl Shelf for Nodes {
    fn place(&self, _url: &str, lock: &str) -> Option<String> {
        Some(format!("/{}-stock", lock.replace('/', "-")))
    }

    fn open<'a>(&self, url: &'a str, at: &'a str) -> Doing<'a, Box<dyn Stock>> {
        Box::pin(async move { Ok(Box::new(NodeStock::open(url, at)?) as Box<dyn Stock>) })
    }

    fn fill<'a>(&self, url: &'a str, at: &'a str, pieces: u64) -> Doing<'a, ()> {
        Box::pin(async move { fill(url, at, pieces) })
    }

    fn clear<'a>(&self, url: &'a str, at: &'a str, lock: &'a str) -> Doing<'a, ()> {
        Box::pin(async move { clear(url, at, lock) })
    }
}

/// The stock in a node.
struct NodeStock {
    client: Client,
    path: String,
}

fn failed(what: &str, path: &str, refusal: &Refusal) -> Error {
    Error::new(ErrorKind::Refused, format!("cannot {what} the stock record {path}: {refusal}"))
}

fn text(left: u64, token: u64) -> Vec<u8> {
    format!("{left} {token}\n").into_bytes()
}

/// Makes the record, and forgets every token.
fn fill(url: &str, path: &str, pieces: u64) -> Result<()> {
    let mut client = Client::connect(url)?;
    match client.create(path, &text(pieces, 0)) {
        Err(Refusal::Exists) => client.set(path, &text(pieces, 0), None),
        made => made,
    }
    .map_err(|e| failed("make", path, &e))
}

/// Removes the record, and the nodes of the lock that guarded it.
fn clear(url: &str, path: &str, lock: &str) -> Result<()> {
    let mut client = Client::connect(url)?;
    // Each may be gone already: the server removes empty directories of locks by itself.
    let _ = client.delete(path);
    let directory = format!("/{lock}");
    for child in client.children(&directory).unwrap_or_default() {
        let _ = client.delete(&format!("{directory}/{child}"));
    }
    let _ = client.delete(&directory);
    if let Some((parent, _)) = directory.rsplit_once('/') {
        // Another demo may be at work below it.
        let _ = client.delete(parent);
    }
    Ok(())
}

impl NodeStock {
    fn open(url: &str, path: &str) -> Result<Self> {
        Ok(Self { client: Client::connect(url)?, path: path.to_owned() })
    }

    fn get(&mut self) -> Result<(u64, u64, i32)> {
        let (data, version) =
            self.client.get(&self.path).map_err(|e| failed("read", &self.path, &e))?;
        let text = String::from_utf8_lossy(&data).into_owned();
        let mut numbers = text.split_whitespace().map(str::parse);
        match (numbers.next(), numbers.next()) {
            (Some(Ok(left)), Some(Ok(token))) => Ok((left, token, version)),
            _ => Err(Error::new(
                ErrorKind::Corrupt,
                format!("the stock record {} holds {text:?}", self.path),
            )),
        }
    }
}

impl Stock for NodeStock {
    fn read(&mut self) -> Doing<'_, u64> {
        Box::pin(async { self.get().map(|(left, ..)| left) })
    }

    /// Without a version: whoever writes last is believed.
    fn write(&mut self, left: u64) -> Doing<'_, ()> {
        Box::pin(async move {
            let (_, token, _) = self.get()?;
            self.client
                .set(&self.path, &text(left, token), None)
                .map_err(|e| failed("write", &self.path, &e))
        })
    }

    /// The token is compared with the one in the node, and the write depends on the version that
    /// was compared.
    fn write_fenced(&mut self, left: u64, token: Token) -> Doing<'_, bool> {
        Box::pin(async move {
            loop {
                let (_, seen, version) = self.get()?;
                if token.get() < seen {
                    return Ok(false);
                }
                match self.client.set(&self.path, &text(left, token.get()), Some(version)) {
                    Ok(()) => return Ok(true),
                    Err(Refusal::OtherVersion) => {}
                    Err(refusal) => return Err(failed("write", &self.path, &refusal)),
                }
            }
        })
    }
}
