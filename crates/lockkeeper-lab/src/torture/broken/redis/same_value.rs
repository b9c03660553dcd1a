//! Compare-and-delete, with the same value for everybody: it compares nothing.

use std::io;

use super::super::super::fault::STOP;
use super::super::super::raw::{Ending, GiveUp, Grant, RawLock};
use super::{BASE, Base, Broken, Strike};

pub(super) const THIS: Broken = Broken {
    name: "same-value-for-all",
    what: "every holder writes the same value: one whose lease was over frees the lock of the next",
    convicted_by: &["foreign-release"],
    trigger: &[Strike::one(STOP, (0, 100), 500)],
    round_ms: 800,
    make: |orders, task| Ok(Box::new(Lock(Base { value: "locked".to_owned(), ..Base::of(orders, task)? }))),
    ..BASE
};

struct Lock(Base);

impl RawLock for Lock {
    fn acquire(&mut self, name: &str, give_up: &GiveUp) -> io::Result<Option<Grant>> {
        self.0.set_if_free(name, give_up)
    }

    fn release(&mut self) -> io::Result<Ending> {
        self.0.compare_and_delete()
    }
}
