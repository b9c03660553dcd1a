//! What the library tells about the claim, kept until the guardian has passed it on.

use std::sync::{Arc, Mutex, PoisonError};
use std::task::Wake;

use lockkeeper::observe::{Observer, Seen};
use lockkeeper::{ClaimId, Error, Kind, Name, Ticks, Token};
use nix::sys::eventfd::EventFd;

use super::wire::{ErrorWord, Tell};
use crate::text::millis;
use crate::under::Caution;

/// Rings when a future is to be polled again.
pub(super) struct Bell(pub(super) EventFd);

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        // Full means that it rings already.
        _ = self.0.write(1);
    }
}

/// What the library told about our claim.
pub(super) struct Noted {
    pub(super) bell: Arc<Bell>,
    pub(super) state: Mutex<Note>,
}

/// A hold, without what changes while it lasts.
type Whose = (Option<ClaimId>, Option<Token>, Option<u32>);

#[derive(Clone, Default)]
pub(super) struct Note {
    /// How we stand in line, until it was told.
    pub(super) news: Vec<Tell>,
    /// What was told of it last: how many are before us, and whose it is.
    stands: Option<(Option<u32>, Option<Whose>)>,
    /// What the last try to connect came to, while the engine is being opened.
    pub(super) trying: Option<ErrorWord>,
    pub(super) hold: Option<String>,
    pub(super) token: Option<u64>,
}

impl Noted {
    pub(super) fn with<T>(&self, change: impl FnOnce(&mut Note) -> T) -> T {
        change(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Observer for Noted {
    fn seen(&self, _at: Ticks, _kind: Kind, _name: &Name, what: &Seen) {
        match what {
            Seen::InLine { ahead, holder, .. } => {
                let whose = holder.as_deref().map(|h| (h.claim, h.token, h.pid));
                let holder = holder.as_deref().map(Into::into);
                self.with(|note| {
                    // Told again and again, and there is not room for ever with one who is stopped:
                    // what is new counts.
                    if note.stands.replace((*ahead, whose)) == Some((*ahead, whose)) {
                        return;
                    }
                    note.news.retain(|tell| !matches!(tell, Tell::InLine { .. }));
                    note.news.push(Tell::InLine { ahead: *ahead, holder });
                });
            }
            // The deadline moved.
            Seen::Renewed { .. } => {}
            Seen::Unreachable { refused, silent_for, why, .. } => {
                let (refused, silent_ms) = (*refused, millis(*silent_for));
                let tell = Tell::Unreachable { refused, silent_ms, why: why.clone() };
                self.with(|note| note.news.push(tell));
            }
            Seen::Reachable { .. } => self.with(|note| note.news.push(Tell::Reachable)),
            Seen::Warned { warning } => {
                let caution = Caution { id: warning.id.to_owned(), text: warning.text.clone() };
                self.with(|note| note.news.push(Tell::Warning(caution)));
            }
            Seen::Got { hold, token, .. } => self.with(|note| {
                (note.hold, note.token) = (Some(hold.to_string()), token.map(|token| token.get()));
            }),
            _ => return,
        }
        Arc::clone(&self.bell).wake();
    }

    fn trying(&self, why: &Error) {
        self.with(|note| note.trying = Some(why.into()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    use lockkeeper::{Ends, Holder};
    use nix::sys::eventfd::EfdFlags;

    #[test]
    fn a_place_in_line_is_told_when_it_changes_and_not_because_a_lease_goes_on() {
        let bell = Arc::new(Bell(EventFd::from_flags(EfdFlags::EFD_NONBLOCK).unwrap()));
        let noted = Noted { bell, state: Mutex::default() };
        let name = Name::new("a").unwrap();
        let told = |ahead, pid, left| {
            let mut holder = Holder::default();
            holder.pid = Some(pid);
            holder.ends = Some(Ends::Lease(Duration::from_secs(left)));
            let (place, fair, holder) = (ClaimId::fresh(), true, Some(Box::new(holder)));
            let seen = Seen::InLine { place, fair, ahead: Some(ahead), holder };
            noted.seen(Ticks::default(), Kind::Lock, &name, &seen);
            noted.with(|note| std::mem::take(&mut note.news)).len()
        };
        assert_eq!([told(1, 7, 30), told(1, 7, 29), told(1, 7, 30)], [1, 0, 0]);
        assert_eq!([told(0, 7, 30), told(0, 8, 30), told(0, 8, 29)], [1, 1, 0]);
    }
}
