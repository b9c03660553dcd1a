//! The subcommands that look at locks without holding one: everything through the library's public
//! API.

pub mod change;
pub mod doctor;
pub mod list;
pub mod schema;
pub mod table;
pub mod watch;

use lockkeeper::blocking::Locks;
use lockkeeper::{Ability, Entry, Error, ErrorKind, Holder, Kind, Name};

use crate::args::common::Global;
use crate::choice::Choice;
use crate::failure::Failure;
use crate::urls;

/// The chosen engine, opened.
pub struct Opened {
    pub choice: Choice,
    pub locks: Locks,
    /// The engine's name.
    pub engine: &'static str,
}

/// Opens the chosen engine and checks what it must promise.
///
/// # Errors
/// What the choice or the engine says.
pub fn open(global: &Global) -> Result<Opened, Failure> {
    open_chosen(Choice::make(global)?)
}

/// What there is, and why that is not all: a part of the store may not answer.
///
/// # Errors
/// Nothing is known.
pub fn told(told: Result<Vec<Entry>, Error>) -> Result<(Vec<Entry>, Option<Failure>), Failure> {
    match told {
        Ok(entries) => Ok((entries, None)),
        Err(error) => match error.partial().map(<[Entry]>::to_vec) {
            Some(entries) => Ok((entries, Some(error.into()))),
            None => Err(error.into()),
        },
    }
}

/// Says what cannot be read: the last of it is what the program ends with.
///
/// # Errors
/// The last one, if there is any.
pub fn all_read(mut unreadable: Vec<Failure>, global: &Global) -> Result<(), Failure> {
    let Some(last) = unreadable.pop() else { return Ok(()) };
    for failure in unreadable {
        failure.print(global.json);
    }
    Err(last)
}

/// What a look ended with: nothing was to be carried out, so whoever did not answer cannot be
/// reached.
pub fn looked(mut failure: Failure) -> Failure {
    if failure.kind == ErrorKind::Unknown.as_str() {
        failure.kind = ErrorKind::Unreachable.as_str();
        let doubt = ", so it is not known whether the request was carried out";
        failure.message = failure.message.replace(doubt, "");
    }
    failure
}

/// Opens an engine and checks what it must promise.
///
/// # Errors
/// What the engine says.
pub fn open_chosen(choice: Choice) -> Result<Opened, Failure> {
    let url = choice.url.clone();
    open_at(&url, choice)
}

/// The same for whoever only looks: nothing is made where locks would be kept.
///
/// # Errors
/// What the engine says: that it is not there, too.
pub fn open_as_it_is(choice: Choice) -> Result<Opened, Failure> {
    open_at(&urls::making_nothing(&choice.url), choice)
}

fn open_at(url: &str, choice: Choice) -> Result<Opened, Failure> {
    let locks =
        Locks::open(url).map_err(|e| Failure::from(e).engine(Some(choice.engine().to_owned())))?;
    for require in &choice.require {
        locks.require(*require)?;
    }
    let engine = locks.describe().engine;
    Ok(Opened { choice, locks, engine })
}

impl Opened {
    /// What there is under a name, in every name space that the engine has; the lock's entry when
    /// there is nothing. And what keeps a name space from being read: a record there is neither
    /// free nor held.
    ///
    /// # Errors
    /// What the engine says.
    pub fn about(&self, name: &Name) -> Result<(Vec<Entry>, Vec<Failure>), Failure> {
        let can = self.locks.describe().can;
        let is_there = |kind: &Kind| match kind {
            Kind::Semaphore => can.has(Ability::Permits),
            Kind::Election => can.has(Ability::Election),
            Kind::Latch => can.has(Ability::Latch),
            _ => true,
        };
        let (mut found, mut unreadable): (Vec<Entry>, _) = (Vec::new(), Vec::new());
        for kind in Kind::ALL.into_iter().filter(is_there) {
            match self.locks.status(kind, name) {
                Ok(entry) => found.push(entry),
                Err(error) if error.kind() == ErrorKind::Unsupported => {}
                Err(error)
                    if matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::NewerLayout) =>
                {
                    unreadable.push(Failure::from(error).name(name.as_str()));
                }
                Err(error) => return Err(Failure::from(error).name(name.as_str())),
            }
        }
        if self.locks.describe().layout == "redisson" {
            // All kinds share the name's key: one of them says what is wrong with it, and a counter
            // with permits out is no latch.
            unreadable.truncate(1);
            if found.iter().any(|e| e.kind == Kind::Semaphore && !e.holders.is_empty()) {
                found.retain(|e| e.kind != Kind::Latch);
            }
        }
        let mut found = found.into_iter().fold(Vec::new(), |mut once: Vec<Entry>, entry| {
            if !once.iter().any(|known| is_same_line(known, &entry)) {
                once.push(entry);
            }
            once
        });
        let is_used = |e: &Entry| {
            !e.holders.is_empty()
                || !e.waiters.is_empty()
                || e.limit.is_some()
                || e.count.is_some_and(|c| c > 0)
        };
        if found.iter().any(is_used) || !unreadable.is_empty() {
            found.retain(is_used);
        } else {
            found.truncate(1);
        }
        Ok((found, unreadable))
    }

    /// The failures of the entries that cannot be read, and the others.
    pub fn sorted_out(&self, entries: Vec<Entry>) -> (Vec<Entry>, Vec<Failure>) {
        let (mut readable, mut unreadable) = (Vec::new(), Vec::new());
        for entry in entries {
            match entry.readable() {
                Ok(()) => readable.push(entry),
                Err(error) => unreadable.push(Failure::from(error.engine(self.engine))),
            }
        }
        (readable, unreadable)
    }

    /// Which engine it is and where that was said.
    pub fn says(&self) -> String {
        says(&self.choice)
    }
}

/// Whether two kinds of a name show the same holds: some layouts keep them in one line, where the
/// first kind stands for all.
fn is_same_line(one: &Entry, other: &Entry) -> bool {
    let is_same = |(a, b): (&Holder, &Holder)| match (a.claim, b.claim) {
        (Some(a), Some(b)) => a == b,
        _ => a.token.is_some() && (a.token, a.since) == (b.token, b.since),
    };
    !one.holders.is_empty()
        && one.holders.len() == other.holders.len()
        && one.waiters.len() == other.waiters.len()
        && other.limit.is_none()
        && one.holders.iter().zip(&other.holders).all(is_same)
}

/// The same of one that is not open yet.
pub fn says(choice: &Choice) -> String {
    format!("engine {} ({})", choice.redacted(), choice.source)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_does_not_answer_a_look_cannot_be_reached() {
        let text = "Redis at h did not answer, so it is not known whether the request was carried \
                    out: no answer within 1s";
        let failure = looked(Error::new(ErrorKind::Unknown, text).into());
        let said = (failure.kind, failure.message.as_str(), failure.exit);
        assert_eq!(said, ("unreachable", "Redis at h did not answer: no answer within 1s", 69));
    }
}
