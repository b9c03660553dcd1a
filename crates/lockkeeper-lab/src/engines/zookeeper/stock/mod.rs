//! The stock as a node of the ensemble that keeps the lock: the pieces that are left, and the
//! greatest token seen, as text.

mod client;

use lockkeeper::{Error, ErrorKind, Result, Token};

use client::{Client, Refusal};

/// The stock in a node.
pub(crate) struct NodeStock {
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
pub(crate) fn fill(url: &str, path: &str, pieces: u64) -> Result<()> {
    let mut client = Client::connect(url)?;
    match client.create(path, &text(pieces, 0)) {
        Err(Refusal::Exists) => client.set(path, &text(pieces, 0), None),
        made => made,
    }
    .map_err(|e| failed("make", path, &e))
}

/// Removes the record, and the nodes of the lock that guarded it.
pub(crate) fn clear(url: &str, path: &str, lock: &str) -> Result<()> {
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
    pub(crate) fn open(url: &str, path: &str) -> Result<Self> {
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

    pub(crate) fn read(&mut self) -> Result<u64> {
        self.get().map(|(left, ..)| left)
    }

    /// Without a version: whoever writes last is believed.
    pub(crate) fn write(&mut self, left: u64) -> Result<()> {
        let (_, token, _) = self.get()?;
        self.client
            .set(&self.path, &text(left, token), None)
            .map_err(|e| failed("write", &self.path, &e))
    }

    /// The token is compared with the one in the node, and the write depends on the version that
    /// was compared.
    pub(crate) fn write_fenced(&mut self, left: u64, token: Token) -> Result<bool> {
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
    }
}
