//! Keeping late writes out of data in Redis: commands that check a fencing token and act, in one
//! script.
//!
//! A lock cannot stop a holder that was paused beyond its lease and goes on in good faith; what it
//! protects can, if it checks the [token](crate::Token). [`RedisFence`] builds the commands that
//! do, for one key of data; send them with whatever Redis client the program has, or with
//! [`FencedKeys`](crate::FencedKeys), to the server where the data is, which need not be the one
//! that keeps the lock. Beside the data stands a second key with the greatest tokens seen,
//! `{KEY}:fence`, in the same slot of a cluster (docs/fencing.md). Nothing may delete it while
//! holders of older tokens can be alive.
//!
//! Whoever goes past the fence, with a bare `SET`, is not kept out. Write the data through it only.

use std::fmt;

use crate::Token;

const CHECK: &str = include_str!("fence/check.lua");
/// Answers 1 and what `act` returned. Within an array an error would be one of its elements.
const ANSWER: &str = "local r = {act()}
if type(r[1]) == 'table' and r[1].err then return r[1] end
return {1, unpack(r)}";

/// The fence of one key of data in Redis.
///
/// ```
/// # use lockkeeper::Token;
/// use lockkeeper::fence::RedisFence;
///
/// # let token: Token = "129600000064".parse()?;
/// let stock = RedisFence::of("stock/sku-42");
/// // The first read of an exclusive holder already carries its token: no older write can slip in
/// // behind it.
/// let read = stock.read(token);
/// assert_eq!(read.keys, ["stock/sku-42", "{stock/sku-42}:fence"]);
/// let write = stock.write(token, "49");
/// // Any client sends it: EVAL script 2 key fence token value. The answer is 1, or 0 for a token
/// // that is too old.
/// assert_eq!(write.words().next(), Some(&b"EVAL"[..]));
/// # Ok::<(), lockkeeper::BadToken>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RedisFence {
    key: String,
    fence: String,
}

impl RedisFence {
    /// The fence of this key. Its own key is `{KEY}:fence`, or `KEY:fence` where the key has a hash
    /// tag already.
    pub fn of(key: impl Into<String>) -> Self {
        let key = key.into();
        Self { fence: fence_key(&key), key }
    }

    /// Sets the key to a value, as an exclusive holder. The script answers 1, or 0 when a greater
    /// token was seen: the write is late, and nothing was changed. A time to live that the key had
    /// is kept; a key of another type is an error, and stays as it is.
    pub fn write(&self, token: Token, value: impl Into<Vec<u8>>) -> Script {
        const ACT: &str = "redis.call('STRLEN', KEYS[1])\nredis.call('SET', KEYS[1], ARGV[2], \
                           'KEEPTTL')\nreturn 1";
        self.script(token, "fence_exclusive", "return 0", ACT, vec![value.into()])
    }

    /// Reads the key as an exclusive holder, and seals it against older ones. The script answers an
    /// array: 1 and the value (nil if there is none), or 0 alone when a greater token was seen.
    pub fn read(&self, token: Token) -> Script {
        self.script(
            token,
            "fence_exclusive",
            "return {0}",
            "return {1, redis.call('GET', KEYS[1])}",
            Vec::new(),
        )
    }

    /// Reads the key as a shared holder. The script answers as for [`read`](Self::read).
    pub fn read_shared(&self, token: Token) -> Script {
        self.script(
            token,
            "fence_shared",
            "return {0}",
            "return {1, redis.call('GET', KEYS[1])}",
            Vec::new(),
        )
    }

    /// Does anything else as an exclusive holder: `act` is Lua that runs when the token is
    /// accepted, with the data's key as `KEYS[1]` and `arguments` from `ARGV[2]` on. The script
    /// answers an array, as for [`read`](Self::read): 1 and what `act` returns, or 0 alone when a
    /// greater token was seen. So nothing that `act` returns reads as a refusal; an error that it
    /// returns (`redis.error_reply`) is the script's. It is the body of a function without
    /// arguments: `...` is not there. Redis does not undo a script that fails half way: let `act`
    /// check before it writes.
    ///
    /// ```
    /// # use lockkeeper::Token;
    /// # use lockkeeper::fence::RedisFence;
    /// # let token = Token::raw(7).expect("below 2^63");
    /// let sell = "
    ///     local left = tonumber(redis.call('GET', KEYS[1]) or 0) - tonumber(ARGV[2])
    ///     if left < 0 then return 'sold out' end
    ///     redis.call('SET', KEYS[1], left, 'KEEPTTL')
    ///     return left";
    /// let sold = RedisFence::of("stock/sku-42").act(token, sell, ["2"]);
    /// assert_eq!(sold.arguments.len(), 2);
    /// // The answer: [1, pieces left], [1, "sold out"], or [0] for a token that is too old.
    /// ```
    pub fn act<A: Into<Vec<u8>>>(
        &self,
        token: Token,
        act: &str,
        arguments: impl IntoIterator<Item = A>,
    ) -> Script {
        self.script(
            token,
            "fence_exclusive",
            "return {0}",
            &format!("local function act()\n{act}\nend\n{ANSWER}"),
            arguments.into_iter().map(Into::into).collect(),
        )
    }

    fn script(
        &self,
        token: Token,
        check: &str,
        refused: &str,
        act: &str,
        rest: Vec<Vec<u8>>,
    ) -> Script {
        let text = format!("{CHECK}if not {check}(KEYS[2], ARGV[1]) then {refused} end\n{act}\n");
        let mut arguments = vec![format!("{:019}", token.get()).into_bytes()];
        arguments.extend(rest);
        Script { text, keys: [self.key.clone(), self.fence.clone()], arguments }
    }
}

/// The key that holds the tokens seen of a key of data.
pub(crate) fn fence_key(key: &str) -> String {
    let tag = key.split_once('{').and_then(|(_, rest)| rest.split_once('}')).map(|(tag, _)| tag);
    if tag.is_some_and(|tag| !tag.is_empty()) {
        format!("{key}:fence")
    } else {
        format!("{{{key}}}:fence")
    }
}

/// A script with its keys and arguments, for any client of Redis or Valkey.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Script {
    /// The Lua text. It is the same for every call of one kind, so that a client may send EVALSHA.
    pub text: String,
    /// The data's key and its fence's.
    pub keys: [String; 2],
    /// The token, as the script compares it, and what the script needs beside it.
    pub arguments: Vec<Vec<u8>>,
}

impl Script {
    /// The words of the command: `EVAL`, the text, `2`, the keys, the arguments.
    pub fn words(&self) -> impl Iterator<Item = &[u8]> {
        let keys = self.keys.iter().map(String::as_bytes);
        [b"EVAL", self.text.as_bytes(), b"2"]
            .into_iter()
            .chain(keys)
            .chain(self.arguments.iter().map(Vec::as_slice))
    }
}

impl fmt::Debug for Script {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Values may be anybody's secrets.
        f.debug_struct("Script")
            .field("keys", &self.keys)
            .field("arguments", &self.arguments.len())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_compared_as_text_of_one_length() {
        let text = |value| {
            String::from_utf8(
                RedisFence::of("k").read(Token::raw(value).unwrap()).arguments[0].clone(),
            )
            .unwrap()
        };
        let great = [0, 9, 10, 1 << 53, (1 << 53) + 1, (1 << 63) - 1].map(text);
        assert!(
            great.windows(2).all(|two| two[0] < two[1] && two[0].len() == two[1].len()),
            "{great:?}"
        );
    }

    #[test]
    fn both_keys_are_in_one_slot() {
        for (key, fence) in [("a", "{a}:fence"), ("a{b}c", "a{b}c:fence"), ("a{b", "{a{b}:fence")] {
            assert_eq!(RedisFence::of(key).read(Token::raw(1).unwrap()).keys, [key, fence]);
        }
    }

    #[test]
    fn values_are_not_shown() {
        let script = RedisFence::of("k").write(Token::raw(1).unwrap(), "s3same");
        assert!(!format!("{script:?}").contains("s3same"));
    }
}
