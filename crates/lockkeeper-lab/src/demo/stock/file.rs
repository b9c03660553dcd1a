//! The stock as a small file, replaced by every write so that nobody ever reads half of one.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use lockkeeper::{Error, ErrorKind, Result, Token};

use super::{Doing, Stock};

pub(super) fn failed(what: &str, path: &Path, error: &io::Error) -> Error {
    Error::new(
        ErrorKind::Refused,
        format!("cannot {what} the stock record {}: {error}", path.display()),
    )
}

/// The stock in a file: the pieces that are left, and the greatest token that was shown with a
/// write.
pub(super) struct FileStock {
    path: PathBuf,
    /// A name of our own to write under before the record is replaced.
    draft: PathBuf,
}

/// Makes the record.
pub(super) fn fill(path: &Path, pieces: u64) -> Result<()> {
    FileStock::new(path.to_owned()).put(pieces, 0)
}

impl FileStock {
    pub(super) fn new(path: PathBuf) -> Self {
        let draft = path.with_extension(std::process::id().to_string());
        Self { path, draft }
    }

    fn get(&self) -> Result<(u64, u64)> {
        let text = fs::read_to_string(&self.path).map_err(|e| failed("read", &self.path, &e))?;
        let mut numbers = text.split_whitespace().map(str::parse);
        match (numbers.next(), numbers.next()) {
            (Some(Ok(left)), Some(Ok(token))) => Ok((left, token)),
            _ => Err(Error::new(
                ErrorKind::Corrupt,
                format!("the stock record {} holds {text:?}", self.path.display()),
            )),
        }
    }

    fn put(&self, left: u64, token: u64) -> Result<()> {
        let write = || {
            fs::write(&self.draft, format!("{left} {token}\n"))
                .and_then(|()| fs::rename(&self.draft, &self.path))
        };
        write().map_err(|e| failed("write", &self.path, &e))
    }
}

impl Stock for FileStock {
    fn read(&mut self) -> Doing<'_, u64> {
        Box::pin(async { self.get().map(|(left, _)| left) })
    }

    fn write(&mut self, left: u64) -> Doing<'_, ()> {
        Box::pin(async move {
            let (_, token) = self.get()?;
            self.put(left, token)
        })
    }

    fn write_fenced(&mut self, left: u64, token: Token) -> Doing<'_, bool> {
        Box::pin(async move {
            // What a database does inside one statement: nobody writes between the comparison and
            // the write.
            let path = self.path.with_extension("busy");
            let busy = File::create(&path).map_err(|e| failed("open", &path, &e))?;
            busy.lock().map_err(|e| failed("lock", &path, &e))?;
            let (_, seen) = self.get()?;
            if token.get() < seen {
                return Ok(false);
            }
            self.put(left, token.get()).map(|()| true)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_fenced_write_needs_a_token_that_is_not_older_than_the_newest() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("stock");
        fill(&path, 5).unwrap();
        let mut stock = FileStock::new(path);
        let token = |n: u64| Token::raw(n).unwrap();
        assert_eq!(stock.write_fenced(4, token(7)).await.ok(), Some(true));
        assert_eq!(stock.write_fenced(3, token(6)).await.ok(), Some(false), "older");
        assert_eq!(stock.read().await.ok(), Some(4));
        assert_eq!(
            stock.write_fenced(3, token(7)).await.ok(),
            Some(true),
            "the same turn writes again"
        );
        stock.write(9).await.unwrap();
        assert_eq!(
            stock.write_fenced(1, token(6)).await.ok(),
            Some(false),
            "an unchecked write forgets no token"
        );
        assert_eq!(stock.read().await.ok(), Some(9));
    }
}
