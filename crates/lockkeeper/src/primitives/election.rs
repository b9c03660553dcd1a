//! Election: one leader at a time, under a name, with an id that everybody can see.

use std::future::Future;
use std::sync::Arc;
use std::time::SystemTime;

use crate::engine::Query;
use crate::primitives::acquire::Acquire;
use crate::primitives::guard::{Guard, Held};
use crate::primitives::mutex::Base;
use crate::primitives::watch::Watch;
use crate::words::claim::{Entry, Mode};
use crate::words::error::{Error, ErrorKind, Result};
use crate::words::guarantee::Ability;
use crate::words::name::{Kind, NAME_MAX};
use crate::words::token::Token;

/// An election.
#[derive(Clone)]
pub struct Election(pub(crate) Base);

/// Who leads.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Leader {
    /// The id that the candidate gave itself.
    pub id: String,
    /// Its host.
    pub host: Option<String>,
    /// Its process.
    pub pid: Option<u32>,
    /// Since when.
    pub since: Option<SystemTime>,
    /// The term's fencing token.
    pub token: Option<Token>,
}

impl Election {
    /// Stands for election and, once elected, runs `lead`; its work is dropped when the term is
    /// lost, and then this stands again. Ends with what `lead` gives.
    ///
    /// # Errors
    /// What acquiring gives; never `Lost`.
    ///
    /// # Cancel safety
    /// Dropping it drops the work and stands down.
    pub async fn run<T, F: Future<Output = T>>(
        &self,
        id: &str,
        mut lead: impl FnMut(Held) -> F,
    ) -> Result<T> {
        loop {
            let term = self.stand(id).await?;
            let done = term.run(lead(term.held())).await;
            match done {
                Ok(value) => {
                    // The work is done; when somebody else leads by now changes nothing about it.
                    drop(term.release().await);
                    return Ok(value);
                }
                Err(error) if error.kind() == ErrorKind::Lost => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Waits to be elected, with an id of at most 1 KiB that everybody can see. The guard is the
    /// term.
    #[track_caller]
    pub fn stand(&self, id: &str) -> Acquire<Guard> {
        let mut plan = self.0.plan(Mode::Exclusive);
        if id.len() > NAME_MAX {
            plan.entry = Err(Error::new(
                ErrorKind::InvalidArgument,
                format!("a candidate's id has at most {NAME_MAX} bytes"),
            ));
        }
        Acquire::new(plan).value(Arc::from(id))
    }

    /// Who leads now.
    ///
    /// # Errors
    /// `InvalidName`, `Unsupported`, `Unreachable`, `Refused`, `Closed`.
    pub async fn leader(&self) -> Result<Option<Leader>> {
        let entries = self.0.keeper.read(&self.query()?).await?;
        Ok(leader_of(&entries))
    }

    /// Follows who leads.
    ///
    /// # Errors
    /// As [`Election::leader`].
    pub async fn observe(&self) -> Result<Observe> {
        let watch = Watch::new(self.0.keeper.clone(), self.query()?).await?;
        Ok(Observe { watch, last: None })
    }

    fn query(&self) -> Result<Query> {
        if !self.0.keeper.facts.can.has(Ability::Election) {
            return Err(self.0.keeper.facts.lacks(Ability::Election));
        }
        Ok(Query::One(Kind::Election, self.0.name()?.clone()))
    }
}

impl std::fmt::Debug for Election {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Debug::fmt(&self.0, f)
    }
}

fn leader_of(entries: &[Entry]) -> Option<Leader> {
    let holder = entries.first()?.holders.first()?;
    Some(Leader {
        id: holder.value.clone().unwrap_or_default(),
        host: holder.host.clone(),
        pid: holder.pid,
        since: holder.since,
        token: holder.token,
    })
}

/// A stream of leaders.
#[derive(Debug)]
pub struct Observe {
    watch: Watch,
    last: Option<Option<Leader>>,
}

impl Observe {
    /// Who leads at the first call, and after that whenever it has changed; `None` = nobody leads.
    ///
    /// # Errors
    /// `Unreachable`, `Refused`, `Closed`.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub async fn next(&mut self) -> Result<Option<Leader>> {
        loop {
            let leader = leader_of(&self.watch.next().await?);
            if self.last.as_ref() != Some(&leader) {
                self.last = Some(leader.clone());
                return Ok(leader);
            }
        }
    }
}
