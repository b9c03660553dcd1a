//! The scripts, by their SHA-1: EVALSHA first, the text only when the server does not know it. A
//! release brings its text along unless the server is known to have it: the process may end before
//! the server could say that it does not.

use std::collections::BTreeSet;
use std::sync::LazyLock;

use super::resp::{Command, Gives, begin};
use super::texts::{Texts, push_bulk, push_number};

/// A Lua script and its name on the server.
pub(in crate::engine) struct Script {
    text: String,
    sha: String,
    /// The same for a node of a cluster, where that is another one.
    #[cfg(feature = "cluster")]
    in_slot: Option<(String, String)>,
}

/// How scripts of the layout redisson wake those who wait, and how on a node of a cluster.
#[cfg(feature = "cluster")]
const WAKE: (&str, &str) =
    (include_str!("../redisson/wake.lua"), include_str!("../cluster/wake.lua"));

/// Which script a request runs: those of the native layout, of `plain`, and of `redisson`; what
/// looks for the others; and those of the members of a quorum.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(in crate::engine) enum Which {
    Take,
    TakePermits,
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
    Watch,
    Many,
    Gives,
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
    QuorumTakes,
    #[cfg(feature = "redlock")]
    QuorumGives,
    #[cfg(feature = "redlock")]
    QuorumRead,
    #[cfg(feature = "redlock")]
    QuorumReadKeep,
    #[cfg(feature = "redlock")]
    QuorumReadGive,
    #[cfg(feature = "redlock")]
    QuorumLook,
    #[cfg(feature = "redlock")]
    QuorumForce,
    #[cfg(feature = "redlock")]
    QuorumClear,
    #[cfg(feature = "redlock")]
    QuorumTell,
    #[cfg(feature = "redlock")]
    QuorumAdmit,
    #[cfg(feature = "redlock")]
    QuorumPlainTake,
    #[cfg(feature = "redlock")]
    QuorumPlainKeep,
    #[cfg(feature = "redlock")]
    QuorumPlainGive,
    #[cfg(feature = "redlock")]
    QuorumPlainLook,
    #[cfg(feature = "redlock")]
    QuorumPlainForce,
    #[cfg(feature = "redlock")]
    QuorumHashTake,
    #[cfg(feature = "redlock")]
    QuorumHashKeep,
    #[cfg(feature = "redlock")]
    QuorumHashGive,
    #[cfg(feature = "redlock")]
    QuorumHashLook,
    #[cfg(feature = "redlock")]
    QuorumHashForce,
    #[cfg(feature = "redlock")]
    QuorumFairTake,
    #[cfg(feature = "redlock")]
    QuorumFairGive,
}

/// One script call: which, and with what.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(in crate::engine) struct Call {
    pub(in crate::engine) script: Which,
    pub(in crate::engine) keys: Texts,
    pub(in crate::engine) arguments: Texts,
}

impl AsRef<Self> for Call {
    fn as_ref(&self) -> &Self {
        self
    }
}

impl Call {
    /// With nothing, so far.
    pub(in crate::engine) fn new(script: Which) -> Self {
        Self { script, keys: Texts::default(), arguments: Texts::default() }
    }

    /// The command that names the script.
    pub(in crate::engine) fn by_name(&self) -> Command {
        self.command("EVALSHA", &self.script.get().sha)
    }

    /// The same, appended to what goes to the socket.
    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        head(self.script, true, (self.keys.len(), self.arguments.len()), out);
        out.extend_from_slice(self.keys.body());
        out.extend_from_slice(self.arguments.body());
    }

    /// The command that brings the script along.
    pub(in crate::engine) fn in_full(&self) -> Command {
        self.command("EVAL", &self.script.get().text)
    }

    /// One of both, for a node of a cluster or for one server.
    pub(super) fn command_for(&self, in_slot: bool, known: bool) -> Command {
        #[cfg(feature = "cluster")]
        if in_slot {
            return if known { self.by_name_in_slot() } else { self.in_full_in_slot() };
        }
        #[cfg(not(feature = "cluster"))]
        let _ = in_slot;
        if known { self.by_name() } else { self.in_full() }
    }

    fn command(&self, verb: &str, script: &str) -> Command {
        self.command_with(verb, script, None)
    }

    fn command_with(&self, verb: &str, script: &str, more: Option<String>) -> Command {
        let keys = self.keys.len() + usize::from(more.is_some());
        let mut command = Command::new([verb, script]).number(keys as u64);
        command = command.giving(self.script.gives());
        command.append(&self.keys);
        if let Some(key) = more {
            command.push(key.as_bytes());
        }
        command.append(&self.arguments);
        command
    }
}

/// Where slots move.
#[cfg(feature = "cluster")]
impl Call {
    /// As [`Call::by_name`], for a node of a cluster.
    pub(super) fn by_name_in_slot(&self) -> Command {
        let script = self.script.get();
        let sha = script.in_slot.as_ref().map_or(&script.sha, |(_, sha)| sha);
        self.command_with("EVALSHA", sha, self.never())
    }

    /// As [`Call::in_full`], for a node of a cluster.
    pub(super) fn in_full_in_slot(&self) -> Command {
        let script = self.script.get();
        let text = script.in_slot.as_ref().map_or(&script.text, |(text, _)| text);
        self.command_with("EVAL", text, self.never())
    }

    /// A key that never exists. While a slot is being moved a node answers TRYAGAIN, and does
    /// nothing, where some keys are there and others are not. Where all are there the script
    /// begins, and a key that it deletes counts as moved: its next call on that key fails, and
    /// Redis does not undo half a script.
    fn never(&self) -> Option<String> {
        let second = self.keys.get(1)?;
        self.script.deletes().then(|| [second, ":never"].concat())
    }
}

#[cfg(feature = "cluster")]
impl Which {
    /// Whether a key that it deletes, or empties, may be used by the same script again.
    fn deletes(self) -> bool {
        matches!(
            self,
            Self::Acquire
                | Self::Release
                | Self::Withdraw
                | Self::Convert
                | Self::Force
                | Self::Resize
                | Self::Latch
                | Self::Clear
                | Self::ReadRelease
                | Self::FairAcquire
                | Self::FairRelease
                | Self::PermitsAcquire
                | Self::PermitsRelease
                | Self::CountDown
        )
    }
}

impl Which {
    /// What its answer may give on one server; what members of a quorum give is counted elsewhere.
    fn gives(self) -> Gives {
        match self {
            Self::Take
            | Self::TakePermits
            | Self::Acquire
            | Self::Convert
            | Self::Together
            | Self::PlainAcquire
            | Self::HashAcquire
            | Self::ReadAcquire
            | Self::WriteAcquire
            | Self::FairAcquire
            | Self::PermitsAcquire => Gives::Hold,
            Self::Renew
            | Self::PlainRenew
            | Self::HashRenew
            | Self::ReadRenew
            | Self::PermitsRenew => Gives::Time,
            _ => Gives::Nothing,
        }
    }

    /// What asks a server which of these it knows, as a node of a cluster has them or as one server
    /// does.
    pub(super) fn exist(scripts: &[Self], in_slot: bool) -> Command {
        #[cfg(not(feature = "cluster"))]
        let _ = in_slot;
        let names = scripts.iter().map(|which| {
            let script = which.get();
            #[cfg(feature = "cluster")]
            if let Some((_, sha)) = script.in_slot.as_ref().filter(|_| in_slot) {
                return sha;
            }
            &script.sha
        });
        names.fold(Command::new(["SCRIPT", "EXISTS"]), |command, sha| command.arg(sha))
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
    Take = "native/take";
    TakePermits = "native/permits";
    Acquire =
        "native/now" "native/forms" "native/holders" "native/settle" "native/answers"
        "native/acquire";
    Release =
        "native/give" "native/forms" "native/holders" "native/settle" "native/answers"
        "native/release";
    Withdraw =
        "native/now" "native/forms" "native/holders" "native/settle" "native/answers"
        "native/withdraw";
    Convert =
        "native/now" "native/forms" "native/holders" "native/settle" "native/answers"
        "native/convert";
    Renew = "native/renew";
    Together =
        "native/together" "native/forms" "native/holders" "native/settle" "native/answers"
        "native/all";
    Inspect = "native/inspect";
    Force =
        "native/now" "native/forms" "native/holders" "native/settle" "native/answers"
        "native/force";
    Resize =
        "native/now" "native/forms" "native/holders" "native/settle" "native/answers"
        "native/resize";
    Latch = "native/latch";
    Clear = "native/clear";
    Watch = "native/watch";
    Many = "native/many";
    Gives = "native/gives";
    Beside = "foreign/beside";
    PlainAcquire = "foreign/now" "plain/acquire";
    PlainRelease = "plain/release";
    PlainRenew = "plain/ours" "foreign/renew";
    PlainInspect = "plain/inspect";
    PlainForce = "plain/force";
    HashAcquire = "foreign/now" "redisson/owner" "redisson/acquire";
    HashRelease = "redisson/wake" "redisson/release";
    HashRenew = "redisson/ours" "foreign/renew";
    HashInspect = "redisson/inspect";
    HashForce = "redisson/wake" "redisson/force";
    ReadAcquire = "foreign/now" "redisson/owner" "redisson/read";
    ReadRelease = "redisson/wake" "redisson/read_release";
    ReadRenew = "redisson/read_renew";
    WriteAcquire = "foreign/now" "redisson/owner" "redisson/write";
    WriteRelease = "redisson/wake" "redisson/write_release";
    FairAcquire = "foreign/now" "redisson/owner" "redisson/fair_line" "redisson/fair";
    FairRelease = "redisson/wake" "redisson/time" "redisson/fair_line" "redisson/fair_release";
    FairInspect = "redisson/time" "redisson/fair_line" "redisson/fair_inspect";
    PermitsAcquire = "foreign/now" "redisson/bytes" "redisson/wake" "redisson/permits";
    PermitsRelease = "redisson/wake" "redisson/bytes" "redisson/permits_release";
    PermitsRenew = "redisson/time" "redisson/bytes" "redisson/permits_renew";
    PermitsInspect = "redisson/time" "redisson/bytes" "redisson/permits_inspect";
    PermitsResize = "redisson/wake" "redisson/permits_resize";
    CountDown = "redisson/wake" "redisson/latch";
    @quorum
    QuorumTake =
        "../redlock/numbers" "../redlock/take_free" "../redlock/record" "../redlock/readers"
        "../redlock/line" "../redlock/take";
    QuorumKeep = "../redlock/record" "../redlock/readers" "../redlock/numbers" "../redlock/keep";
    QuorumGive = "../redlock/give_free" "../redlock/record" "../redlock/line" "../redlock/give";
    QuorumTakes = "../redlock/numbers" "../redlock/takes";
    QuorumGives = "../redlock/gives";
    QuorumRead = "../redlock/record" "../redlock/readers" "../redlock/numbers" "../redlock/read";
    QuorumReadKeep =
        "../redlock/record" "../redlock/readers" "../redlock/numbers" "../redlock/read_keep";
    QuorumReadGive =
        "../redlock/record" "../redlock/readers" "../redlock/line" "../redlock/read_give";
    QuorumLook = "../redlock/look";
    QuorumForce = "../redlock/line" "../redlock/force";
    QuorumClear = "../redlock/clear";
    QuorumTell = "../redlock/numbers" "../redlock/tell";
    QuorumAdmit = "../redlock/numbers" "../redlock/admit";
    QuorumPlainTake = "../redlock/plain/value" "../redlock/plain/take";
    QuorumPlainKeep = "../redlock/plain/value" "../redlock/plain/keep";
    QuorumPlainGive = "../redlock/plain/value" "../redlock/plain/give";
    QuorumPlainLook = "../redlock/plain/look";
    QuorumPlainForce = "../redlock/plain/value" "../redlock/plain/force";
    QuorumHashTake =
        "../redlock/plain/value" "../redlock/redisson/owner" "../redlock/redisson/take";
    QuorumHashKeep =
        "../redlock/plain/value" "../redlock/redisson/owner" "../redlock/redisson/keep";
    QuorumHashGive =
        "../redlock/plain/value" "../redlock/redisson/owner" "../redlock/redisson/give";
    QuorumHashLook = "../redlock/redisson/owner" "../redlock/redisson/look";
    QuorumHashForce =
        "../redlock/plain/value" "../redlock/redisson/owner" "../redlock/redisson/force";
    QuorumFairTake =
        "../redlock/plain/value" "../redlock/redisson/owner" "redisson/time" "redisson/fair_line"
        "../redlock/redisson/fair_take";
    QuorumFairGive =
        "../redlock/plain/value" "../redlock/redisson/owner" "redisson/time" "redisson/fair_line"
        "../redlock/redisson/fair_give";
}

/// Begins a call of a script with so many keys and arguments, by its name or with its text.
pub(super) fn head(
    script: Which,
    by_name: bool,
    (keys, arguments): (usize, usize),
    out: &mut Vec<u8>,
) {
    let script = script.get();
    begin(3 + keys + arguments, out);
    if by_name {
        push_bulk(out, &["EVALSHA"]);
        push_bulk(out, &[&script.sha]);
    } else {
        push_bulk(out, &["EVAL"]);
        push_bulk(out, &[&script.text]);
    }
    push_number(out, keys as u64);
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

    #[cfg(test)]
    pub(in crate::engine) fn text(&self) -> &str {
        &self.text
    }

    fn new(parts: &[&str]) -> Self {
        let text = parts.concat();
        let sha = sha1(text.as_bytes());
        Self {
            #[cfg(feature = "cluster")]
            in_slot: text.contains(WAKE.0).then(|| {
                let text = text.replacen(WAKE.0, WAKE.1, 1);
                let sha = sha1(text.as_bytes());
                (text, sha)
            }),
            text,
            sha,
        }
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
