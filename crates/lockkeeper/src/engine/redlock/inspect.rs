//! Telling who holds what, as the majority says, and taking a lock away.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::record::Record;
use super::{Quorum, errors};
use crate::claim::{Entry, Holder};
use crate::engine::redis::client::resp::{Command, Value};
use crate::engine::redis::client::script::{Call, Which};
use crate::engine::redis::errors::of_our_script;
use crate::engine::{BoxFuture, Change, Query};
use crate::error::Result;
use crate::id::ClaimId;
use crate::name::{Kind, Name};
use crate::token::Token;

/// How many names one message asks about.
const NAMES_PER_CALL: usize = 50;
/// How many keys one message deletes.
const KEYS_AT_ONCE: usize = 1000;

impl Quorum {
    pub(super) async fn look(self: Arc<Self>, query: Query) -> Result<Vec<Entry>> {
        match query {
            Query::One(Kind::Lock, name) => self.look_at(&[name]).await,
            Query::One(kind, _) => Err(errors::unsupported(kind.as_str())),
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
        let keys: Vec<String> = names.iter().map(|name| self.keys.record(name)).collect();
        let call = Call { script: Which::QuorumLook, keys, arguments: Vec::new() };
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

    /// What so many members say of one name.
    fn entry<'a>(
        &self,
        name: &Name,
        found: impl Iterator<Item = &'a Value>,
        asked: usize,
    ) -> Entry {
        let mut entry = Entry::new(Kind::Lock, name.clone());
        let mut records: BTreeMap<ClaimId, Vec<Record>> = BTreeMap::new();
        for value in found {
            let [text, rest] = value.items() else { continue };
            let text = text.bytes().map(String::from_utf8_lossy).unwrap_or_default();
            match Record::read(&text, rest.integer().unwrap_or(0), &self.keys.record(name)) {
                Ok(record) => records.entry(record.claim).or_default().push(record),
                Err(said) => entry.unreadable = Some(of_our_script(&said).into()),
            }
        }
        let silent = self.members.len() - asked;
        let majority = self.options.majority();
        // A member that does not answer may have it, too.
        let holder = records.into_values().find(|of_one| of_one.len() + silent >= majority);
        if let Some(mut records) = holder {
            entry.unreadable = None;
            records.sort_unstable_by_key(|record| record.rest);
            // Until then a majority has it.
            let ends = records.len().saturating_sub(majority);
            let numbers: Vec<u64> = records.iter().map(|record| record.number).collect();
            let same = |number: &u64| numbers.iter().filter(|n| *n == number).count() >= majority;
            // Before a majority keeps one number, it has none that anybody was told.
            let token = numbers.iter().copied().find(same).and_then(|n| Token::of(n, 0));
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

    fn call(self: Arc<Self>, at: usize, call: Call) -> BoxFuture<Result<Value>> {
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
        let mut arguments = vec![self.keys.channel(name)];
        arguments.extend(from.iter().filter_map(|holder| Some(holder.claim?.to_string())));
        if arguments.len() == 1 && !from.is_empty() {
            return Ok(false);
        }
        let keys = vec![self.keys.record(name)];
        let call = Call { script: Which::QuorumForce, keys, arguments };
        let told = self.of_all(|quorum, at| quorum.call(at, call.clone())).await?;
        Ok(told.iter().any(|(_, value)| value.items().get(1).and_then(Value::text) == Some("1")))
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
