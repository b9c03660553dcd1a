//! Finds its node again by its id after a lost connection, and does not look whose session it
//! belongs to: the old one's end takes it away.

use std::io;

use super::{ARENA, BASE, Base, Broken, Kind, Strike};
use crate::torture::raw::{Ending, GiveUp, Grant, Long, RawLock, Style};

pub(super) const THIS: Broken = Broken {
    name: "reuses-old-session-node",
    url: ARENA,
    what: "after a lost connection it takes its old session's node for its own: that node \
           disappears when the old session ends, and the next client gets the lock",
    convicted_by: &["overlap"],
    trigger: &[Strike::one("reset", (0, 100), 20)],
    round_ms: 700,
    style: Style { hold_ms: (10, 30), long_one_in: 2, long: Long::Ms(900), ..Style::PLAIN },
    make: |orders, task| Ok(Box::new(Lock(Base::of(orders, task)?))),
    ..BASE
};

struct Lock(Base);

impl Lock {
    /// A node of ours that is there already, or a new one.
    fn find_or_join(&mut self, name: &str) -> io::Result<()> {
        self.0.directory = format!("/{}", name.replace('/', "-"));
        let ours = self.0.line(false)?.into_iter().find(|node| node.starts_with(&self.0.id));
        match ours {
            Some(node) => {
                self.0.node = node;
                Ok(())
            }
            None => self.0.join(name, Kind::Persistent),
        }
    }
}

impl RawLock for Lock {
    fn acquire(&mut self, name: &str, give_up: &GiveUp) -> io::Result<Option<Grant>> {
        let got = self.find_or_join(name).and_then(|()| self.0.wait_for_turn(give_up));
        Ok(self.0.or_lost(got)?.then(Grant::default))
    }

    fn tend(&mut self) -> bool {
        self.0.tend()
    }

    fn release(&mut self) -> io::Result<Ending> {
        // Without its session it leaves the node to the next claim.
        if self.0.session.is_none() { Ok(Ending::Unknown) } else { self.0.release() }
    }
}
