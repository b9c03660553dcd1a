//! The stock as a key of the Redis server that keeps the lock.

use lockkeeper::{Error, ErrorKind, FencedKeys, Kind, Name, Result, Token};

/// The stock in a key: the pieces that are left, and the greatest token that was shown with a
/// write.
pub(crate) struct RedisStock {
    keys: FencedKeys,
    key: String,
}

/// Makes the record.
pub(crate) async fn fill(url: &str, key: &str, pieces: u64) -> Result<()> {
    let stock = RedisStock::open(url, key).await?;
    stock.keys.remove(key).await?;
    stock.write(pieces).await
}

/// Removes the record, and what is kept about the lock that guarded it.
pub(crate) async fn clear(url: &str, key: &str, lock: &str) -> Result<()> {
    let keys = FencedKeys::open(url).await?;
    keys.remove(key).await?;
    keys.forget(Kind::Lock, &Name::new(lock)?).await
}

impl RedisStock {
    pub(crate) async fn open(url: &str, key: &str) -> Result<Self> {
        Ok(Self { keys: FencedKeys::open(url).await?, key: key.to_owned() })
    }

    pub(crate) async fn read(&self) -> Result<u64> {
        let value = self.keys.get(&self.key).await?;
        let text = value.as_deref().and_then(|v| std::str::from_utf8(v).ok());
        let wrong = || {
            Error::new(ErrorKind::Corrupt, format!("the stock record {} holds {text:?}", self.key))
        };
        text.and_then(|t| t.parse().ok()).ok_or_else(wrong)
    }

    pub(crate) async fn write(&self, left: u64) -> Result<()> {
        self.keys.set_unchecked(&self.key, left.to_string().as_bytes()).await
    }

    pub(crate) async fn write_fenced(&self, left: u64, token: Token) -> Result<bool> {
        self.keys.set(&self.key, left.to_string().as_bytes(), token).await
    }
}
