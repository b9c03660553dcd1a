//! Locks of another layout under the same name: members keep them beside ours, and so there can be
//! two holders. `redis/beside` looks for them on one server, and has the words.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::Quorum;
use super::name::Keys;
use crate::engine::BoxFuture;
use crate::engine::redis::beside::{warning, word};
use crate::engine::redis::client::script::{Call, Which};
use crate::engine::redis::options::{Layout, RedisOptions};
use crate::words::error::Result;
use crate::words::guarantee::Warning;
use crate::words::name::Name;

impl Quorum {
    /// The other layouts in which a majority may have a lock of this name: a minority is nobody's.
    ///
    /// # Errors
    /// Fewer than a majority answer. What members do not let us look at is not known, and no error.
    pub(super) async fn other_layouts(self: Arc<Self>, name: Name) -> Result<Vec<Warning>> {
        let Some(member) = self.options.members.first() else { return Ok(Vec::new()) };
        let look = |key: &String, ours: &[&str]| Call {
            script: Which::Beside,
            keys: [key].into(),
            arguments: ours.iter().collect(),
        };
        let key = match &self.options.plain {
            Some(plain) => plain.key(&name),
            None => name.as_str().to_owned(),
        };
        let mut calls = vec![(look(&key, &[]), key)];
        if member.layout != Layout::Native {
            // With the default namespace: another one is not known.
            let defaults = RedisOptions::new(member.address.clone());
            let record = Keys::new(&defaults.namespace, member.db).record(&name);
            calls.push((look(&record, &[Layout::Native.as_str()]), record));
        }
        let mut found = Vec::new();
        for (call, key) in calls {
            let told = self.of_all(|quorum, at| quorum.word_of(at, call.clone())).await?;
            let words: Vec<String> = told.into_iter().filter_map(|(_, word)| word).collect();
            // A member that does not say may have it, too.
            let silent = self.members.len() - words.len();
            let count = |theirs: &str| words.iter().filter(|word| *word == theirs).count();
            let different: BTreeSet<&str> = words.iter().map(String::as_str).collect();
            let held = different
                .into_iter()
                .filter(|theirs| count(theirs) + silent >= self.options.majority());
            found.extend(held.filter_map(|theirs| warning(member.layout, &key, theirs)));
        }
        Ok(found)
    }

    /// Whose lock a member takes a key for; `None` where it does not let us look.
    fn word_of(self: Arc<Self>, at: usize, call: Call) -> BoxFuture<Result<Option<String>>> {
        Box::pin(async move { word(self.call(at, call).await) })
    }
}
