//! Looking before anything is written, and looking past what is no contender.

use super::words::{Action, Listing, Say, Seen, Want};
use super::{Contender, Phase};

impl Contender {
    /// A try has looked.
    pub(super) fn looked(&mut self, listing: &Listing, out: &mut Vec<Action>) {
        if let Want::Permits { count, limit } = self.want {
            return self.looked_for_permits(listing, count, limit, out);
        }
        if let Some(limit) = self.counts() {
            return self.counted(listing, limit, out);
        }
        if let Some(name) = self.stranger_among(&listing.children) {
            // Before our node is made.
            self.phase = Phase::Peeking;
            self.stranger = Some(name.clone());
            return out.push(Action::Peek(name));
        }
        if !self.only_try {
            return self.create(out);
        }
        let others = listing
            .children
            .iter()
            .filter(|c| self.want.excludes(c.tag) && !self.ignored.contains(&c.name));
        let first = others.reduce(|first, c| if c.is_before(first.seq) { c } else { first });
        match first {
            None => self.create(out),
            Some(first) => {
                self.phase = Phase::Peeking;
                out.push(Action::Peek(first.name.clone()));
            }
        }
    }

    pub(super) fn peeked(&mut self, name: &str, seen: Seen, out: &mut Vec<Action>) {
        match seen {
            Seen::NoContender => self.ignore(name, out),
            seen if self.stranger.as_deref() == Some(name) => self.stranger_seen(seen, out),
            _ if self.phase == Phase::Peeking => self.over(Say::Busy, out),
            _ => {}
        }
    }

    /// A child that is no contender: look again without it.
    pub(super) fn ignore(&mut self, name: &str, out: &mut Vec<Action>) {
        self.ignored.insert(name.to_owned());
        match self.phase {
            Phase::Peeking | Phase::Suspecting(_) => self.look_anew(out),
            Phase::Waiting(_) | Phase::Queueing(_) if self.lists == 0 => self.list(out),
            _ => {}
        }
    }
}
