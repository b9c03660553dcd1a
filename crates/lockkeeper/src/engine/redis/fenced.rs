//! A small client for fenced data: it sends what `RedisFence` builds.

use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;

use super::name::{Keys, last, line};
use super::options::RedisOptions;
use super::pipe::Broken;
use super::resp::{Command, Value};
use super::wire::Link;
use super::{errors, url};
use crate::open::url::EngineUrl;
use crate::primitives::fence::{RedisFence, Script, fence_key};
use crate::words::clock::Clock;
use crate::words::error::{Error, ErrorKind, Result};
use crate::words::name::{Kind, Name};
use crate::words::token::Token;

/// Keys of a Redis server whose writes are refused once a newer token was seen: a client for
/// [`RedisFence`], which programs that have one of their own use directly.
///
/// A key is a string as any other; the greatest tokens seen stand beside it, in `{KEY}:fence`
/// (docs/fencing.md). Check and act are one script: nothing comes between them.
///
/// ```no_run
/// # async fn sell(locks: lockkeeper::Locks) -> lockkeeper::Result<()> {
/// let stock = lockkeeper::FencedKeys::open("redis://localhost").await?;
/// let guard = locks.mutex("stock/sku-42").lock().await?;
/// let token = guard.token()?;
/// // The first read carries the token already: no older write slips in behind it.
/// let left = stock.read("shop:sku-42", token).await?;
/// # let _ = left;
/// if !stock.set("shop:sku-42", b"41", token).await? {
///     println!("too late: somebody with a newer token was here");
/// }
/// # Ok(()) }
/// ```
pub struct FencedKeys {
    link: Arc<Link>,
    options: Arc<RedisOptions>,
}

impl FencedKeys {
    /// Connects to the server of a `redis:` URL, with a task on the runtime of the caller that
    /// keeps the connection up.
    ///
    /// # Errors
    /// `InvalidArgument` for the URL, or outside of a tokio runtime with time and I/O;
    /// `Unreachable`, `Refused`.
    ///
    /// # Cancel safety
    /// Dropping it closes what was opened.
    pub async fn open(url: &str) -> Result<Self> {
        let runtime = Handle::try_current().map_err(|_| {
            Error::new(ErrorKind::InvalidArgument, "this needs a tokio runtime around it")
        })?;
        let mut url = EngineUrl::parse(url)?;
        let ttl = url.take_duration("ttl")?.unwrap_or(Duration::from_secs(30));
        for common in ["handoff", "handoff_time", "drift"] {
            url.take(common);
        }
        let options = Arc::new(url::options(&mut url, ttl, 100)?);
        url.finish()?;
        let link = Link::new(
            options.clone(),
            Clock::real(),
            "lockkeeper:data".to_owned(),
            Arc::new(|_, _| {}),
        );
        let driver = link.connect().await?;
        runtime.spawn(link.clone().keep(Some(driver), |_| {}));
        Ok(Self { link, options })
    }

    /// The value of a key, for whoever holds no lock; `None` when there is none.
    ///
    /// # Errors
    /// `Unreachable`; `Refused`; `Corrupt` for a key of another type.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub async fn get(&self, key: &str) -> Result<Option<Vec<u8>>> {
        let value = self.ask("GET", Command::new(["GET", key])).await?;
        Ok(value.bytes().map(<[u8]>::to_vec))
    }

    /// The value of a key, for its exclusive holder: from then on older tokens are refused.
    ///
    /// # Errors
    /// `Lost` when a newer token was seen; `Unreachable`; `Unknown` when the answer was lost;
    /// `Refused`; `Corrupt` for a key of another type.
    ///
    /// # Cancel safety
    /// Dropped after its first poll it may or may not seal.
    pub async fn read(&self, key: &str, token: Token) -> Result<Option<Vec<u8>>> {
        let answer = self.eval(&RedisFence::of(key).read(token)).await?;
        match answer.items() {
            [accepted, value @ ..] if accepted.integer() == Some(1) => {
                Ok(value.first().and_then(Value::bytes).map(<[u8]>::to_vec))
            }
            _ => Err(Error::new(
                ErrorKind::Lost,
                format!("a newer token than {token} was used on {key}: this holder is too late"),
            )),
        }
    }

    /// Writes a value, unless a newer token was seen; answers whether it was written. Sent again
    /// after a lost answer it has the effect of one.
    ///
    /// # Errors
    /// `Unreachable`; `Unknown` when the answer was lost; `Refused`; `Corrupt` for a key of another
    /// type.
    ///
    /// # Cancel safety
    /// Dropped after its first poll it may or may not write.
    pub async fn set(&self, key: &str, value: &[u8], token: Token) -> Result<bool> {
        Ok(self.eval(&RedisFence::of(key).write(token, value)).await?.integer() == Some(1))
    }

    /// Writes a value whoever asks, as a program does that knows no tokens; what was seen of them
    /// stays.
    ///
    /// # Errors
    /// As [`FencedKeys::set`].
    ///
    /// # Cancel safety
    /// As [`FencedKeys::set`].
    pub async fn set_unchecked(&self, key: &str, value: &[u8]) -> Result<()> {
        self.ask("SET", Command::new(["SET", key]).arg(value).arg("KEEPTTL")).await.map(drop)
    }

    /// Removes a key, with what was seen of tokens; answers whether it was there. From then on any
    /// token is accepted again: only once no holder of an old one can be alive.
    ///
    /// # Errors
    /// As [`FencedKeys::set`].
    ///
    /// # Cancel safety
    /// As [`FencedKeys::set`].
    pub async fn remove(&self, key: &str) -> Result<bool> {
        Ok(self
            .ask("DEL", Command::new(["DEL", key, &fence_key(key)]))
            .await?
            .integer()
            .is_some_and(|keys| keys > 0))
    }

    /// Removes everything that is kept about a name of the native layout that nobody will use
    /// again.
    #[doc(hidden)]
    pub async fn forget(&self, kind: Kind, name: &Name) -> Result<()> {
        let record = Keys::new(&self.options.namespace, self.options.db).record(kind, name);
        self.ask("DEL", Command::new(["DEL", &record, &line(&record), &last(&record)]))
            .await
            .map(drop)
    }

    async fn eval(&self, script: &Script) -> Result<Value> {
        self.ask("EVAL", script.words().fold(Command::new([]), Command::arg)).await
    }

    async fn ask(&self, name: &str, command: Command) -> Result<Value> {
        let unreachable = |why: &str| errors::unreachable(&self.options.address, why);
        let answered = self
            .link
            .finish(
                self.link.start(std::slice::from_ref(&command)),
                || Some(command.clone()),
                self.options.connect_timeout,
            )
            .await;
        match answered {
            Ok(answered) => match answered.value {
                Value::Error(text) => Err(errors::server(&self.options, name, &text)),
                value => Ok(value),
            },
            Err(Broken::NotSent(why)) => Err(unreachable(&why)),
            Err(Broken::Unknown(why) | Broken::Unacknowledged(why)) => Err(Error::new(
                ErrorKind::Unknown,
                format!("whether it was written is not known: {why}"),
            )),
        }
    }
}

impl Drop for FencedKeys {
    fn drop(&mut self) {
        self.link.close();
    }
}

impl std::fmt::Debug for FencedKeys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FencedKeys")
            .field("server", &self.options.address.to_string())
            .finish_non_exhaustive()
    }
}
