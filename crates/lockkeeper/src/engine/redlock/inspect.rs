//! Telling who holds what, as the majority says, and taking a lock away.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::record::Record;
use super::{Quorum, errors};
use crate::engine::redis::client::resp::{Command, Value};
use crate::engine::redis::client::script::{Call, Which};
use crate::engine::redis::client::texts::Texts;
use crate::engine::redis::errors::{of_our_script, unheard, unheard_at_one};
use crate::engine::{BoxFuture, Change, Query};
use crate::words::claim::{Entry, Holder};
use crate::words::error::Result;
use crate::words::guarantee::Warning;
use crate::words::id::ClaimId;
use crate::words::name::{Kind, Name};
use crate::words::token::Token;

/// How many names one message asks about.
const NAMES_PER_CALL: usize = 50;
/// How many keys one message deletes.
const KEYS_AT_ONCE: usize = 1000;

impl Quorum {
    pub(super) async fn look(self: Arc<Self>, query: Query) -> Result<Vec<Entry>> {
        match query {
            Query::One(Kind::Lock, name) => self.look_at(&[name]).await,
            Query::One(kind, _) => Err(errors::unsupported(kind.as_str())),
            Query::Prefix(_) if self.options.plain.is_some() => {
                Err(errors::unsupported("a list of names in the layout of other programs"))
            }
            Query::Prefix(prefix) => {
                let names: Vec<Name> = self.scan(&prefix).await?.into_iter().collect();
                let mut entries = Vec::new();
                for some in names.chunks(NAMES_PER_CALL) {
                    let told = self.look_at(some).await?;
                    entries.extend(told.into_iter().filter(Entry::is_in_use));
                }
                Ok(entries)
            }
        }
    }

    async fn look_at(self: &Arc<Self>, names: &[Name]) -> Result<Vec<Entry>> {
        let keys: Texts = names.iter().flat_map(|name| self.keys_of(name)).collect();
        let script = match &self.options.plain {
            Some(plain) => plain.look_and_force(None).0,
            None => Which::QuorumLook,
        };
        let call = Call { script, keys, arguments: Texts::default() };
        let told = self.of_all(|quorum, at| quorum.call(at, call.clone())).await?;
        for (at, value) in &told {
            if value.items().len() != names.len() {
                return Err(self.garbage(*at));
            }
        }
        let each = names.iter().enumerate().map(|(nth, name)| {
            let found = told.iter().filter_map(|(_, value)| value.items().get(nth));
            self.entry(name, found, told.len())
        });
        Ok(each.collect())
    }

    /// The keys of a name.
    fn keys_of(&self, name: &Name) -> Vec<String> {
        match &self.options.plain {
            Some(plain) => vec![plain.key(name)],
            None => vec![self.keys.record(name), self.keys.readers(name)],
        }
    }

    /// What so many members say of one name.
    fn entry<'a>(
        &self,
        name: &Name,
        found: impl Iterator<Item = &'a Value>,
        asked: usize,
    ) -> Entry {
        let mut entry = Entry::new(Kind::Lock, name.clone());
        let mut records: BTreeMap<ClaimId, Vec<Record>> = BTreeMap::new();
        for value in found.flat_map(Value::items) {
            let [text, rest, marks @ ..] = value.items() else { continue };
            let text = text.bytes().map(String::from_utf8_lossy).unwrap_or_default();
            let rest = rest.integer().unwrap_or(0);
            let read = match &self.options.plain {
                Some(plain) => Ok(Record::plain(&text, rest, plain.id_of(&text))),
                None => Record::read(&text, rest, &self.keys.record(name)),
            };
            match read {
                Ok(mut record) => {
                    record.shared = !marks.is_empty();
                    records.entry(record.claim).or_default().push(record);
                }
                Err(said) => entry.unreadable = Some(of_our_script(&said).into()),
            }
        }
        let silent = self.members.len() - asked;
        let majority = self.options.majority();
        // A member that does not answer may have it, too.
        let mut holders: Vec<Vec<Record>> =
            records.into_values().filter(|of_one| of_one.len() + silent >= majority).collect();
        // Where several might, the one of whom the most members know; others may read beside it.
        holders.sort_by_key(|of_one| std::cmp::Reverse(of_one.len()));
        let reads = |of_one: &Vec<Record>| of_one.iter().any(|record| record.shared);
        match holders.first().is_some_and(reads) {
            true => holders.retain(reads),
            false => holders.truncate(1),
        }
        for mut records in holders {
            entry.unreadable = None;
            records.sort_unstable_by_key(|record| record.rest);
            // Until then a majority has it.
            let ends = records.len().saturating_sub(majority);
            let numbers: Vec<u64> = records.iter().map(|record| record.number).collect();
            let same = |number: &u64| numbers.iter().filter(|n| *n == number).count() >= majority;
            // None is shown where no majority that answers keeps one number: either nobody was told
            // one yet, or a member that keeps it is silent.
            let number =
                numbers.iter().copied().find(same).filter(|_| self.options.plain.is_none());
            let token = number.and_then(|n| Token::of(n, 0));
            let holder = records.get(ends).map(|record| record.holder(record.rest));
            entry.holders.extend(holder.map(|holder| Holder { token, ..holder }));
        }
        entry
    }

    /// Every name that starts with the text and that a majority can have: any majority of the
    /// members knows one of its records.
    async fn scan(self: &Arc<Self>, prefix: &str) -> Result<BTreeSet<Name>> {
        let pattern = self.keys.pattern(prefix);
        let told = self.of_all(|quorum, at| quorum.keys_like(at, pattern.clone())).await?;
        let keys = told.iter().flat_map(|(_, keys)| keys);
        let text = keys.filter_map(|key| std::str::from_utf8(key).ok());
        Ok(text.filter_map(|key| self.keys.parse(key)).collect())
    }

    /// Every key of a member that fits a pattern.
    fn keys_like(self: Arc<Self>, at: usize, pattern: String) -> BoxFuture<Result<Vec<Vec<u8>>>> {
        Box::pin(async move {
            let Some(member) = self.members.get(at) else { return Ok(Vec::new()) };
            let (mut cursor, mut found) = ("0".to_owned(), BTreeSet::new());
            loop {
                let scan = Command::new(["SCAN", &cursor, "MATCH", &pattern, "COUNT", "1000"]);
                let value = member.command("SCAN", scan).await?;
                let [next, keys] = value.items() else { return Err(self.garbage(at)) };
                found.extend(keys.items().iter().filter_map(Value::bytes).map(<[u8]>::to_vec));
                cursor = next.text().ok_or_else(|| self.garbage(at))?.to_owned();
                if cursor == "0" {
                    return Ok(found.into_iter().collect());
                }
            }
        })
    }

    /// Runs a script on a member.
    pub(super) fn call(self: Arc<Self>, at: usize, call: Call) -> BoxFuture<Result<Value>> {
        Box::pin(async move {
            match self.members.get(at) {
                Some(member) => member.call(call).await,
                None => Err(self.garbage(at)),
            }
        })
    }

    pub(super) async fn change(self: Arc<Self>, change: Change) -> Result<bool> {
        match change {
            Change::Force(Kind::Lock, name, from) => self.force(&name, &from).await,
            Change::Force(kind, ..) => Err(errors::unsupported(kind.as_str())),
            Change::LatchSet(..) | Change::LatchCountDown(..) => {
                Err(errors::unsupported(Kind::Latch.as_str()))
            }
            Change::Resize(..) => Err(errors::unsupported(Kind::Semaphore.as_str())),
        }
    }

    /// Takes a name away, on every member that answers. Its holder hears of it when it renews: a
    /// majority does not have it any more.
    async fn force(self: &Arc<Self>, name: &Name, from: &[Holder]) -> Result<bool> {
        let (script, mut arguments) = match &self.options.plain {
            Some(plain) => {
                let (_, force, first) = plain.look_and_force(Some(name));
                (force, first)
            }
            None => (Which::QuorumForce, vec![self.keys.channel(name)]),
        };
        let word = |holder: &Holder| match &self.options.plain {
            Some(_) => holder.label.clone(),
            None => holder.claim.map(|claim| claim.to_string()),
        };
        let meant: Vec<String> = from.iter().filter_map(word).collect();
        if meant.is_empty() && !from.is_empty() {
            return Ok(false);
        }
        arguments.extend(meant);
        let mut keys = self.keys_of(name);
        match &self.options.plain {
            None => keys.extend(self.line_of(name)),
            Some(plain) if plain.stands() => {
                let [_, queue, ..] = plain.keys(name);
                keys.push(queue);
            }
            Some(_) => {}
        }
        let call = Call { script, keys: keys.into(), arguments: arguments.into() };
        let told = self.of_all(|quorum, at| quorum.call(at, call.clone())).await?;
        Ok(told.iter().any(|(_, value)| value.items().get(1).and_then(Value::text) == Some("1")))
    }

    /// Removes the number that a probe left on each member that answers, and tells whether words of
    /// a release get through: those of a majority wake a waiter. A minority that lets none through
    /// is named. The layouts of others leave nothing.
    pub(super) async fn clear_probe(self: Arc<Self>, name: Name) -> Result<Vec<Warning>> {
        if self.options.plain.is_some() {
            return Ok(Vec::new());
        }
        let keys = [self.keys.record(&name), self.keys.last(&name), self.keys.readers(&name)];
        let arguments = [self.keys.channel(&name)].into();
        let call = Call { script: Which::QuorumClear, keys: keys.into(), arguments };
        let told = self.of_all(|quorum, at| quorum.call(at, call.clone())).await?;
        let refuses = |value: &Value| {
            value.items().get(1).and_then(Value::text).is_some_and(|why| !why.is_empty())
        };
        let refusing = told.iter().filter(|(_, value)| refuses(value));
        let refusing = refusing.filter_map(|(at, _)| self.options.members.get(*at));
        let refusing: Vec<_> = refusing.collect();
        Ok(match refusing.as_slice() {
            [first, ..] if refusing.len() >= self.options.majority() => vec![unheard(first)],
            few => few.iter().map(|member| unheard_at_one(member)).collect(),
        })
    }

    /// Deletes each key that has the word somewhere, on every member that answers.
    pub(super) async fn sweep(self: Arc<Self>, word: String) -> Result<bool> {
        let pattern = format!("*{word}*");
        let told = self.of_all(|quorum, at| quorum.sweep_one(at, pattern.clone())).await?;
        Ok(told.iter().any(|(_, found)| *found))
    }

    fn sweep_one(self: Arc<Self>, at: usize, pattern: String) -> BoxFuture<Result<bool>> {
        Box::pin(async move {
            let keys = self.clone().keys_like(at, pattern).await?;
            let Some(member) = self.members.get(at) else { return Ok(false) };
            for some in keys.chunks(KEYS_AT_ONCE) {
                let delete = some.iter().fold(Command::new(["DEL"]), Command::arg);
                member.command("DEL", delete).await?;
            }
            Ok(!keys.is_empty())
        })
    }
}
