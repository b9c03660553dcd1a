//! The scripts, by their SHA-1: EVALSHA first, the text only when the server does not know it.

use std::collections::BTreeSet;
use std::sync::LazyLock;

use super::resp::Command;

/// A Lua script and its name on the server.
pub(in crate::engine) struct Script {
    text: String,
    sha: String,
}

/// Which script a request runs: those of the native layout, of `plain`, and of `redisson`; what
/// looks for the others; and those of the members of a quorum.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(in crate::engine) enum Which {
    Acquire,
    Release,
    Withdraw,
    Convert,
    Renew,
    Together,
    Inspect,
    Force,
    Resize,
    Latch,
    Clear,
    Beside,
    PlainAcquire,
    PlainRelease,
    PlainRenew,
    PlainInspect,
    PlainForce,
    HashAcquire,
    HashRelease,
    HashRenew,
    HashInspect,
    HashForce,
    ReadAcquire,
    ReadRelease,
    ReadRenew,
    WriteAcquire,
    WriteRelease,
    FairAcquire,
    FairRelease,
    FairInspect,
    PermitsAcquire,
    PermitsRelease,
    PermitsRenew,
    PermitsInspect,
    PermitsResize,
    CountDown,
    #[cfg(feature = "redlock")]
    QuorumTake,
    #[cfg(feature = "redlock")]
    QuorumKeep,
    #[cfg(feature = "redlock")]
    QuorumGive,
    #[cfg(feature = "redlock")]
    QuorumLook,
    #[cfg(feature = "redlock")]
    QuorumForce,
    #[cfg(feature = "redlock")]
    QuorumTell,
    #[cfg(feature = "redlock")]
    QuorumAdmit,
}

/// One script call: which, and with what.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(in crate::engine) struct Call {
    pub(in crate::engine) script: Which,
    pub(in crate::engine) keys: Vec<String>,
    pub(in crate::engine) arguments: Vec<String>,
}

impl AsRef<Self> for Call {
    fn as_ref(&self) -> &Self {
        self
    }
}

impl Call {
    /// The command that names the script.
    pub(in crate::engine) fn by_name(&self) -> Command {
        self.command("EVALSHA", &self.script.get().sha)
    }

    /// The command that brings the script along.
    pub(in crate::engine) fn in_full(&self) -> Command {
        self.command("EVAL", &self.script.get().text)
    }

    fn command(&self, verb: &str, script: &str) -> Command {
        let mut command = Command::new([verb, script]).number(self.keys.len() as u64);
        for argument in self.keys.iter().chain(&self.arguments) {
            command.push(argument.as_bytes());
        }
        command
    }
}

macro_rules! scripts {
    (
        $($which:ident = $($file:literal)+;)+
        @quorum $($other:ident = $($its:literal)+;)+
    ) => {
        impl Which {
            /// Those of one server, each with the files that it is made of: a test looks whether
            /// one is forgotten.
            #[cfg(test)]
            pub(in crate::engine) const ALL: &[(Self, &[&str])] =
                &[$((Self::$which, &[$($file),+])),+];

            pub(in crate::engine) fn get(self) -> &'static Script {
                match self {
                    $(Self::$which => {
                        static SCRIPT: LazyLock<Script> = LazyLock::new(|| {
                            Script::new(&[$(include_str!(concat!("../", $file, ".lua"))),+])
                        });
                        &SCRIPT
                    })+
                    $(#[cfg(feature = "redlock")]
                    Self::$other => {
                        static SCRIPT: LazyLock<Script> = LazyLock::new(|| {
                            Script::new(&[$(include_str!(concat!("../", $its, ".lua"))),+])
                        });
                        &SCRIPT
                    })+
                }
            }
        }
    };
}

scripts! {
    Acquire = "native/take" "native/settle" "native/acquire";
    Release = "native/give" "native/settle" "native/release";
    Withdraw = "native/now" "native/settle" "native/withdraw";
    Convert = "native/now" "native/settle" "native/convert";
    Renew = "native/renew";
    Together = "native/together" "native/settle" "native/all";
    Inspect = "native/inspect";
    Force = "native/now" "native/settle" "native/force";
    Resize = "native/now" "native/settle" "native/resize";
    Latch = "native/latch";
    Clear = "native/clear";
    Beside = "foreign/beside";
    PlainAcquire = "foreign/now" "plain/acquire";
    PlainRelease = "plain/release";
    PlainRenew = "plain/ours" "foreign/renew";
    PlainInspect = "plain/inspect";
    PlainForce = "plain/force";
    HashAcquire = "foreign/now" "redisson/owner" "redisson/acquire";
    HashRelease = "redisson/release";
    HashRenew = "redisson/ours" "foreign/renew";
    HashInspect = "redisson/inspect";
    HashForce = "redisson/force";
    ReadAcquire = "foreign/now" "redisson/owner" "redisson/read";
    ReadRelease = "redisson/read_release";
    ReadRenew = "redisson/read_renew";
    WriteAcquire = "foreign/now" "redisson/owner" "redisson/write";
    WriteRelease = "redisson/write_release";
    FairAcquire = "foreign/now" "redisson/owner" "redisson/fair_line" "redisson/fair";
    FairRelease = "redisson/time" "redisson/fair_line" "redisson/fair_release";
    FairInspect = "redisson/time" "redisson/fair_line" "redisson/fair_inspect";
    PermitsAcquire = "foreign/now" "redisson/bytes" "redisson/permits";
    PermitsRelease = "redisson/bytes" "redisson/permits_release";
    PermitsRenew = "redisson/time" "redisson/bytes" "redisson/permits_renew";
    PermitsInspect = "redisson/time" "redisson/bytes" "redisson/permits_inspect";
    PermitsResize = "redisson/permits_resize";
    CountDown = "redisson/latch";
    @quorum
    QuorumTake = "../redlock/record" "../redlock/numbers" "../redlock/take";
    QuorumKeep = "../redlock/record" "../redlock/numbers" "../redlock/keep";
    QuorumGive = "../redlock/record" "../redlock/give";
    QuorumLook = "../redlock/look";
    QuorumForce = "../redlock/force";
    QuorumTell = "../redlock/tell";
    QuorumAdmit = "../redlock/admit";
}

impl Script {
    /// The commands that it calls, sorted.
    pub(in crate::engine) fn commands(&self) -> impl Iterator<Item = &str> {
        let called = self
            .text
            .split("call('")
            .skip(1)
            .filter_map(|rest| rest.split_once('\'').map(|(command, _)| command));
        called
            .filter(|command| command.bytes().all(|b| b.is_ascii_uppercase()))
            .collect::<BTreeSet<_>>()
            .into_iter()
    }

    #[cfg(test)]
    pub(in crate::engine) fn sha(&self) -> &str {
        &self.sha
    }

    fn new(parts: &[&str]) -> Self {
        let text = parts.concat();
        let sha = sha1(text.as_bytes());
        Self { text, sha }
    }
}

/// SHA-1 in hexadecimal, which is how the server names scripts.
fn sha1(message: &[u8]) -> String {
    let mut padded = message.to_vec();
    padded.push(0x80);
    while padded.len() % 64 != 56 {
        padded.push(0);
    }
    padded.extend_from_slice(&(message.len() as u64 * 8).to_be_bytes());
    let mut state: [u32; 5] = [0x6745_2301, 0xefcd_ab89, 0x98ba_dcfe, 0x1032_5476, 0xc3d2_e1f0];
    for block in padded.chunks_exact(64) {
        let mut words: Vec<u32> = block
            .chunks_exact(4)
            .map(|w| w.iter().fold(0, |word, byte| word << 8 | u32::from(*byte)))
            .collect();
        for i in 16..80 {
            let word =
                [3, 8, 14, 16].iter().filter_map(|back| words.get(i - back)).fold(0, |a, b| a ^ b);
            words.push(word.rotate_left(1));
        }
        let [mut a, mut b, mut c, mut d, mut e] = state;
        for (i, word) in words.iter().enumerate() {
            let (mixed, constant) = match i / 20 {
                0 => ((b & c) | (!b & d), 0x5a82_7999u32),
                1 => (b ^ c ^ d, 0x6ed9_eba1),
                2 => ((b & c) | (b & d) | (c & d), 0x8f1b_bcdc),
                _ => (b ^ c ^ d, 0xca62_c1d6),
            };
            let next = a
                .rotate_left(5)
                .wrapping_add(mixed)
                .wrapping_add(e)
                .wrapping_add(constant)
                .wrapping_add(*word);
            (e, d, c, b, a) = (d, c, b.rotate_left(30), a, next);
        }
        for (sum, part) in state.iter_mut().zip([a, b, c, d, e]) {
            *sum = sum.wrapping_add(part);
        }
    }
    state.iter().map(|word| format!("{word:08x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::sha1;

    #[test]
    fn sha1_as_its_standard_says() {
        assert_eq!(sha1(b""), "da39a3ee5e6b4b0d3255bfef95601890afd80709");
        assert_eq!(sha1(b"abc"), "a9993e364706816aba3e25717850c26c9cd0d89d");
        assert_eq!(
            sha1(b"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"),
            "84983e441c3bd26ebaae4aa1f95129e5e54670f1"
        );
        assert_eq!(sha1(&b"a".repeat(1000)), "291e9a6c66994949b57ba5e650361e98fc36b1ba");
    }
}
