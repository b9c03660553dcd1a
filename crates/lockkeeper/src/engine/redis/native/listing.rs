//! Telling of all names of a beginning, of every node that has some.
//!
//! A node that does not answer keeps back nothing of what the others tell: the answer is an error
//! then that names it and has the rest ([`Error::partial`]).

use std::collections::{BTreeMap, BTreeSet};

use super::Native;
use crate::engine::redis::client::node::Node;
use crate::engine::redis::errors;
use crate::engine::redis::resp::Command;
use crate::engine::redis::script::Call;
use crate::engine::redis::together::all;
use crate::engine::redis::wire::Started;
use crate::words::claim::Entry;
use crate::words::error::{Error, ErrorKind, Result};
use crate::words::name::{Kind, Name};

/// How many names one listing tells of, and how many are looked at in one message.
const NAMES_MAX: usize = 100_000;
const NAMES_PER_CALL: usize = 50;

/// What is told, and why the rest is not.
#[derive(Default)]
struct Missing(BTreeSet<String>);

impl Missing {
    /// Another error than that nobody answered is about all.
    fn take(&mut self, error: Error) -> Result<()> {
        if !is_away(&error) {
            return Err(error);
        }
        self.0.insert(error.message().to_owned());
        Ok(())
    }

    fn among(self, entries: Vec<Entry>) -> Result<Vec<Entry>> {
        if self.0.is_empty() {
            return Ok(entries);
        }
        let each: Vec<String> = self.0.into_iter().collect();
        let text = format!("not all names can be told: {}", each.join("; "));
        Err(Error::new(ErrorKind::Unreachable, text).with_partial(entries))
    }
}

fn is_away(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Unreachable | ErrorKind::Unknown)
}

impl Native {
    /// Everything in use whose name starts with the text, sorted.
    pub(super) async fn list(&self, prefix: &str) -> Result<Vec<Entry>> {
        let (names, mut missing) = self.scan(prefix).await?;
        let names: Vec<(Kind, Name)> = names.into_iter().take(NAMES_MAX).collect();
        let mut entries = Vec::new();
        if self.links.names_at_once(NAMES_PER_CALL) > 1 {
            let mut rest = names.as_slice();
            while !rest.is_empty() {
                let (some, _) = rest.split_at(rest.len().min(NAMES_PER_CALL));
                let told = self.look_at(some).await?;
                rest = rest.get(told.len()..).unwrap_or_default();
                entries.extend(told);
            }
        } else {
            for some in names.chunks(NAMES_PER_CALL) {
                self.look_at_each(some, &mut entries, &mut missing).await?;
            }
        }
        entries.retain(Entry::is_in_use);
        missing.among(entries)
    }

    /// Tells of names that are in different slots: a script each, in one message a node.
    async fn look_at_each(
        &self,
        names: &[(Kind, Name)],
        entries: &mut Vec<Entry>,
        missing: &mut Missing,
    ) -> Result<()> {
        let link = self.links.prompt();
        let calls: Vec<Call> =
            names.iter().map(|one| self.inspection(std::slice::from_ref(one))).collect();
        let mut started = link.start(&calls.iter().collect::<Vec<_>>()).each();
        let asked = names.iter().zip(&calls).map(|((kind, name), call)| {
            let one = started.next().unwrap_or_else(Started::nothing);
            let patience = self.links.patience(link, self.home(*kind, name));
            self.links.run(link, one, call, patience)
        });
        let answers = all(asked.collect()).await;
        for (name, answer) in names.iter().zip(answers) {
            match answer {
                Ok(answered) => {
                    entries.extend(self.told(std::slice::from_ref(name), &answered.value)?);
                }
                Err(error) => missing.take(error)?,
            }
        }
        Ok(())
    }

    /// Every name that starts with the text, of every node that answers.
    async fn scan(&self, prefix: &str) -> Result<(BTreeSet<(Kind, Name)>, Missing)> {
        let (mut names, mut told) = (BTreeSet::new(), BTreeSet::new());
        let mut silent: BTreeMap<Node, Error> = BTreeMap::new();
        let pattern = self.keys.pattern(prefix);
        loop {
            // Another node may have the names of one that does not answer by now.
            let nodes = self.links.main.nodes();
            silent.retain(|node, _| nodes.contains(node));
            let asked = |node: &Node| told.contains(node) || silent.contains_key(node);
            let rest: Vec<Node> = nodes.into_iter().filter(|node| !asked(node)).collect();
            if rest.is_empty() {
                break;
            }
            let each = rest.iter().map(|node| self.scan_one(*node, &pattern));
            for (node, found) in rest.iter().zip(all(each.collect()).await) {
                match found {
                    Ok(found) => {
                        told.insert(*node);
                        names.extend(found);
                    }
                    Err(error) if is_away(&error) => _ = silent.insert(*node, error),
                    Err(error) => return Err(error),
                }
            }
        }
        let mut missing = Missing::default();
        for error in silent.into_values() {
            if told.is_empty() {
                return Err(error);
            }
            missing.take(error)?;
        }
        Ok((names, missing))
    }

    /// Every name of a node that fits the pattern.
    async fn scan_one(&self, node: Node, pattern: &str) -> Result<BTreeSet<(Kind, Name)>> {
        let (mut names, mut cursor) = (BTreeSet::new(), "0".to_owned());
        loop {
            let command = Command::new(["SCAN", &cursor, "MATCH", pattern, "COUNT", "1000"]);
            let value = self.links.command_at(self.links.side(), node, "SCAN", command).await?;
            let [next, keys] = value.items() else {
                return Err(errors::garbage(&self.links.options));
            };
            names.extend(keys.items().iter().filter_map(|key| self.keys.parse(key.text()?)));
            cursor = next.text().unwrap_or("0").to_owned();
            if cursor == "0" || names.len() >= NAMES_MAX {
                return Ok(names);
            }
        }
    }
}
