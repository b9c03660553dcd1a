//! The stock as a key of the Redis server that keeps the lock.

use lockkeeper::{Error, ErrorKind, FencedKeys, Kind, Name, Result, Token};

use crate::demo::stock::{Doing, Shelf, Stock};

/// A record in a key.
pub(crate) struct Keys;

impl Shelf for Keys {
    fn place(&self, _url: &str, lock: &str) -> Option<String> {
        Some(format!("{lock}:stock"))
    }

    fn open<'a>(&self, url: &'a str, at: &'a str) -> Doing<'a, Box<dyn Stock>> {
        Box::pin(async move { Ok(Box::new(RedisStock::open(url, at).await?) as Box<dyn Stock>) })
    }

    fn fill<'a>(&self, url: &'a str, at: &'a str, pieces: u64) -> Doing<'a, ()> {
        Box::pin(async move {
            let mut stock = RedisStock::open(url, at).await?;
            stock.keys.remove(at).await?;
            stock.write(pieces).await
        })
    }

    fn clear<'a>(&self, url: &'a str, at: &'a str, lock: &'a str) -> Doing<'a, ()> {
        Box::pin(async move {
            let keys = FencedKeys::open(url).await?;
            keys.remove(at).await?;
            keys.forget(Kind::Lock, &Name::new(lock)?).await
        })
    }
}

/// The stock in a key: the pieces that are left, and the greatest token that was shown with a
/// write.
struct RedisStock {
    keys: FencedKeys,
    key: String,
}

impl RedisStock {
    async fn open(url: &str, key: &str) -> Result<Self> {
        Ok(Self { keys: FencedKeys::open(url).await?, key: key.to_owned() })
    }
}

impl Stock for RedisStock {
    fn read(&mut self) -> Doing<'_, u64> {
        Box::pin(async {
            let value = self.keys.get(&self.key).await?;
            let text = value.as_deref().and_then(|v| std::str::from_utf8(v).ok());
            let wrong = || {
                let text = format!("the stock record {} holds {text:?}", self.key);
                Error::new(ErrorKind::Corrupt, text)
            };
            text.and_then(|t| t.parse().ok()).ok_or_else(wrong)
        })
    }

    fn write(&mut self, left: u64) -> Doing<'_, ()> {
        Box::pin(
            async move { self.keys.set_unchecked(&self.key, left.to_string().as_bytes()).await },
        )
    }

    fn write_fenced(&mut self, left: u64, token: Token) -> Doing<'_, bool> {
        Box::pin(async move { self.keys.set(&self.key, left.to_string().as_bytes(), token).await })
    }
}
