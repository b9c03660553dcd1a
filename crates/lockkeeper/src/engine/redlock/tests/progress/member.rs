//! A member as clients meet it: the commands that they send, over connections that subscribe.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::rules::{Flaw, Rules};
use crate::engine::redis::client::resp::{Value, parse};
use crate::engine::redis::client::script::Which;

/// When the members' clocks stand at when a simulation begins: 2026-06-01.
const BEGINS_US: u64 = 1_780_272_000_000_000;

const SCRIPTS: [Which; 5] = [
    Which::QuorumTake,
    Which::QuorumKeep,
    Which::QuorumGive,
    Which::QuorumForce,
    Which::QuorumTell,
];

/// What a client was asked to be told.
pub(super) struct Word {
    pub(super) to: u64,
    pub(super) bytes: Vec<u8>,
}

/// A script that was run: which, and about which claim.
pub(super) struct Ran {
    pub(super) which: Which,
    pub(super) claim: String,
}

/// What came of what was received.
#[derive(Default)]
pub(super) struct Carried {
    pub(super) answer: Vec<u8>,
    pub(super) words: Vec<Word>,
    pub(super) ran: Vec<Ran>,
    pub(super) commands: u64,
}

pub(super) struct Member {
    pub(super) rules: Rules,
    /// How far its clock is ahead.
    ahead_us: u64,
    inbox: BTreeMap<u64, Vec<u8>>,
    channels: BTreeMap<String, BTreeSet<u64>>,
}

impl Member {
    pub(super) fn new(at: usize, ahead: Duration, flaw: Option<Flaw>) -> Self {
        let run = format!("{:040x}", 0xabc0 + at);
        Self {
            rules: Rules::new(run, flaw),
            ahead_us: u64::try_from(ahead.as_micros()).unwrap_or(u64::MAX),
            inbox: BTreeMap::new(),
            channels: BTreeMap::new(),
        }
    }

    /// Whose claim has the one name that is used, and until when after the beginning.
    pub(super) fn record(&self) -> Option<(&String, Duration)> {
        let record = self.rules.locks.values().next()?.record.as_ref()?;
        let until_us = ((record.until + 1) * 1_000).saturating_sub(BEGINS_US + self.ahead_us);
        Some((&record.claim, Duration::from_micros(until_us)))
    }

    /// A connection has ended.
    pub(super) fn ended(&mut self, connection: u64) {
        self.inbox.remove(&connection);
        for channel in self.channels.values_mut() {
            channel.remove(&connection);
        }
    }

    /// Bytes came over a connection, so long after the beginning.
    pub(super) fn receive(&mut self, connection: u64, bytes: &[u8], since_us: u64) -> Carried {
        let mut inbox = self.inbox.remove(&connection).unwrap_or_default();
        inbox.extend_from_slice(bytes);
        let (mut at, mut carried) = (0, Carried::default());
        while let Ok(Some((command, length))) = parse(&inbox[at..]) {
            at += length;
            let text = |word: &Value| word.text().unwrap_or_default().to_owned();
            let command: Vec<String> = command.items().iter().map(text).collect();
            carried.commands += 1;
            self.carry_out(connection, &command, since_us, &mut carried);
        }
        inbox.drain(..at);
        self.inbox.insert(connection, inbox);
        carried
    }

    fn carry_out(&mut self, from: u64, command: &[String], since_us: u64, carried: &mut Carried) {
        let now_us = BEGINS_US + self.ahead_us + since_us;
        let words: Vec<&str> = command.iter().map(String::as_str).collect();
        let answer: Vec<u8> = match words.as_slice() {
            ["HELLO", ..] => {
                b"%3\r\n+server\r\n+redis\r\n+mode\r\n+standalone\r\n+role\r\n+master\r\n".to_vec()
            }
            ["TIME"] => {
                array(&[(now_us / 1_000_000).to_string(), (now_us % 1_000_000).to_string()])
            }
            ["INFO", ..] => bulk(&format!(
                "redis_version:7.2.0\r\nuptime_in_seconds:{}\r\nrun_id:{}\r\naof_enabled:1\r\n",
                100_000 + since_us / 1_000_000,
                self.rules.run
            )),
            ["CONFIG", ..] => b"%1\r\n+appendfsync\r\n+always\r\n".to_vec(),
            ["HMGET", ..] => array(&[self.rules.run.clone(), "2".into(), "10000".into()]),
            ["SCRIPT", "EXISTS", scripts @ ..] => {
                let each = ":1\r\n".repeat(scripts.len());
                format!("*{}\r\n{each}", scripts.len()).into_bytes()
            }
            ["SUBSCRIBE", channel] => {
                self.channels.entry((*channel).to_owned()).or_default().insert(from);
                push(&["subscribe", channel], Some(1))
            }
            ["UNSUBSCRIBE", channel] => {
                if let Some(those) = self.channels.get_mut(*channel) {
                    those.remove(&from);
                }
                push(&["unsubscribe", channel], Some(0))
            }
            ["PING"] => b"+PONG\r\n".to_vec(),
            ["EVALSHA", sha, keys, ..] => {
                let count: usize = keys.parse().unwrap_or_default();
                let which = SCRIPTS.into_iter().find(|which| which.get().sha() == *sha);
                match which {
                    Some(which) => {
                        let (keys, arguments) = command[3..].split_at(count);
                        self.run(which, keys, arguments, now_us, carried)
                    }
                    None => b"-NOSCRIPT it is not played\r\n".to_vec(),
                }
            }
            _ => format!("-ERR unknown command {words:?}\r\n").into_bytes(),
        };
        carried.answer.extend_from_slice(&answer);
    }

    fn run(
        &mut self,
        which: Which,
        keys: &[String],
        arguments: &[String],
        now_us: u64,
        carried: &mut Carried,
    ) -> Vec<u8> {
        let (channels, told) = (&self.channels, &mut carried.words);
        let mut publish = |channel: &str, text: &str| {
            let those = channels.get(channel).into_iter().flatten();
            told.extend(
                those
                    .clone()
                    .map(|to| Word { to: *to, bytes: push(&["message", channel, text], None) }),
            );
            those.count() as u64
        };
        let answer = self.rules.call(which, keys, arguments, now_us, &mut publish);
        let answer = answer.unwrap_or_default();
        carried.ran.push(Ran { which, claim: arguments.first().cloned().unwrap_or_default() });
        array(&answer)
    }
}

fn bulk(text: &str) -> Vec<u8> {
    format!("${}\r\n{text}\r\n", text.len()).into_bytes()
}

fn array(texts: &[String]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", texts.len()).into_bytes();
    texts.iter().for_each(|text| bytes.extend(bulk(text)));
    bytes
}

fn push(texts: &[&str], count: Option<u64>) -> Vec<u8> {
    let more = usize::from(count.is_some());
    let mut bytes = format!(">{}\r\n", texts.len() + more).into_bytes();
    texts.iter().for_each(|text| bytes.extend(bulk(text)));
    bytes.extend(count.into_iter().flat_map(|count| format!(":{count}\r\n").into_bytes()));
    bytes
}
