//! The layout `plain`: one string key, set if absent and deleted if it is still ours.
//!
//! So redis-py, redsync, node-redlock, RedLock.net, rslock and the commands of the articles write
//! it; the key's template and the value's format follow theirs. Keys without a time to live are
//! understood. There is no token.

use super::dialect::{Dialect, IN_NATIVE, Terms, call, lease, unsupported};
use super::options::{RedisOptions, ValueFormat};
use super::script::{Call, Which};
use crate::words::claim::{Claim, Mode};
use crate::words::error::Result;
use crate::words::guarantee::{Ability, Can, Description};
use crate::words::id::ClaimId;
use crate::words::name::{Kind, Name};

pub(super) struct Plain {
    key: String,
    value: ValueFormat,
}

impl Plain {
    pub(super) fn new(options: &RedisOptions) -> Self {
        Self { key: options.key.clone(), value: options.value }
    }

    fn key(&self, kind: Kind, name: &Name) -> Result<String> {
        if kind != Kind::Lock {
            return Err(unsupported(format!(
                "layout=plain has only exclusive locks: an {kind} needs layout=native"
            )));
        }
        Ok(self.key.replace("{name}", name.as_str()))
    }

    /// The value of a claim: fresh for each, the same each time it is sent.
    fn value(&self, id: ClaimId) -> String {
        let hex = id.to_string();
        match self.value {
            ValueFormat::Hex => hex,
            ValueFormat::Guid => {
                let part = |range: std::ops::Range<usize>| hex.get(range).unwrap_or_default();
                [part(0..8), part(8..12), part(12..16), part(16..20), part(20..32)].join("-")
            }
            ValueFormat::Base64 => base64(&id.0.to_be_bytes()),
        }
    }
}

/// Bytes as the standard alphabet of base64 writes them, padded.
pub(in crate::engine) fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut out = String::new();
    for three in bytes.chunks(3) {
        let bits = three.iter().fold(0u32, |bits, byte| bits << 8 | u32::from(*byte))
            << (8 * (3 - three.len()));
        for at in 0..4usize {
            let digit = DIGITS.get((bits >> (18 - 6 * at) & 63) as usize).copied().unwrap_or(b'A');
            out.push(if at <= three.len() { char::from(digit) } else { '=' });
        }
    }
    out
}

impl Dialect for Plain {
    fn describe(&self, description: &mut Description) {
        description.fenced = false;
        description.can = Can::NONE.with(&[Ability::Force]);
        description.elsewhere = &[IN_NATIVE];
        description.breaks.push(
            "the layout has no fencing token: a holder that was paused is not kept out of the \
             resource"
                .into(),
        );
    }

    fn terms(&self, claim: &Claim) -> Result<Terms> {
        if claim.mode != Mode::Exclusive {
            return Err(unsupported(format!(
                "layout=plain has only exclusive locks: {} needs layout=native",
                claim.mode.as_str()
            )));
        }
        if !claim.lock_delay.is_zero() {
            return Err(unsupported("layout=plain has no lock_delay: use layout=native"));
        }
        let (key, value, ttl) =
            (self.key(claim.kind, &claim.name)?, self.value(claim.id), lease(claim.ttl));
        Ok(Terms::new(
            call(Which::PlainAcquire, &[&key], &[&value, &ttl]),
            2,
            call(Which::PlainRenew, &[&key], &[&value, &ttl]),
            call(Which::PlainRelease, &[&key], &[&value]),
        ))
    }

    fn inspect(&self, kind: Kind, name: &Name) -> Result<Call> {
        Ok(call(Which::PlainInspect, &[&self.key(kind, name)?], &[]))
    }

    fn force(&self, kind: Kind, name: &Name, from: &[&str]) -> Result<Call> {
        Ok(call(Which::PlainForce, &[&self.key(kind, name)?], from))
    }

    fn channel(&self, _kind: Kind, _name: &Name) -> Option<String> {
        None
    }

    fn watched_key(&self, kind: Kind, name: &Name) -> Option<String> {
        self.key(kind, name).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::base64;

    #[test]
    fn base64_as_its_standard_says() {
        for (bytes, text) in [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg=="),
            ("fooba", "Zm9vYmE="),
        ] {
            assert_eq!(base64(bytes.as_bytes()), text);
        }
        assert_eq!(base64(&[0xff; 16]).len(), 24);
    }
}
