//! Byte locks as the kernel keeps them for open file descriptions, and the kernel itself beside
//! them.

use std::collections::BTreeMap;

use lockkeeper::test_util::machines::bytes::{Grip, Span};

/// The locks of one file: by owner and first byte, up to which byte and how.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct ByteLocks(BTreeMap<(u8, u32), (u32, Grip)>);

fn end(span: Span) -> u32 {
    span.start + span.len
}

impl ByteLocks {
    /// Whether nobody else's lock stands in the way.
    pub fn may_lock(&self, owner: u8, span: Span, grip: Grip) -> bool {
        self.0.iter().all(|((other, from), (to, held))| {
            let apart = *other == owner || *to <= span.start || end(span) <= *from;
            apart || (grip == Grip::Read && *held == Grip::Read)
        })
    }

    /// Locks the range if it may; what the owner has there is replaced.
    pub fn try_lock(&mut self, owner: u8, span: Span, grip: Grip) -> bool {
        let may = self.may_lock(owner, span, grip);
        if may {
            self.unlock(owner, span);
            self.0.insert((owner, span.start), (end(span), grip));
            self.join(owner);
        }
        may
    }

    pub fn unlock(&mut self, owner: u8, span: Span) {
        let (from, to) = (span.start, end(span));
        let mine: Vec<_> = self
            .0
            .iter()
            .filter(|((who, _), _)| *who == owner)
            .map(|((_, start), (stop, grip))| (*start, *stop, *grip))
            .collect();
        for (start, stop, grip) in
            mine.into_iter().filter(|(start, stop, _)| *start < to && from < *stop)
        {
            self.0.remove(&(owner, start));
            if start < from {
                self.0.insert((owner, start), (from, grip));
            }
            if to < stop {
                self.0.insert((owner, to), (stop, grip));
            }
        }
    }

    /// Neighbours of one kind are one, so that equal locks are equal states.
    fn join(&mut self, owner: u8) {
        let mut before: Option<(u32, u32, Grip)> = None;
        for ((who, start), (stop, grip)) in self.0.clone() {
            if who != owner {
                continue;
            }
            match before {
                Some((first, last, kind)) if last == start && kind == grip => {
                    self.0.remove(&(owner, start));
                    self.0.insert((owner, first), (stop, grip));
                    before = Some((first, stop, grip));
                }
                _ => before = Some((start, stop, grip)),
            }
        }
    }

    /// The description is closed: its process died or let go of it.
    pub fn close(&mut self, owner: u8) {
        self.0.retain(|(who, _), _| *who != owner);
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

mod real {
    use std::fs::File;
    use std::os::fd::AsFd;
    use std::time::{Duration, Instant};

    use lockkeeper_testkit::dice::Dice;
    use nix::errno::Errno;
    use nix::fcntl::{FcntlArg, fcntl};
    use nix::libc;

    use super::*;

    fn call(file: &File, span: Span, kind: libc::c_int, ask: bool) -> Result<libc::c_short, Errno> {
        // SAFETY: a plain struct of integers, for which zeroes are valid.
        let mut lock: libc::flock = unsafe { std::mem::zeroed() };
        lock.l_type = kind as libc::c_short;
        lock.l_whence = libc::SEEK_SET as libc::c_short;
        (lock.l_start, lock.l_len) = (span.start.into(), span.len.into());
        if ask {
            fcntl(file.as_fd(), FcntlArg::F_OFD_GETLK(&mut lock)).map(|_| lock.l_type)
        } else {
            fcntl(file.as_fd(), FcntlArg::F_OFD_SETLK(&lock)).map(|_| lock.l_type)
        }
    }

    fn kind(grip: Grip) -> libc::c_int {
        if grip == Grip::Read { libc::F_RDLCK } else { libc::F_WRLCK }
    }

    /// What the kernel answers. A child that another test of this program has just started keeps
    /// every description until it runs its own program, and so what was closed may be locked for a
    /// moment longer than the model says.
    fn settled(said: bool, mut ask: impl FnMut() -> bool) -> bool {
        let since = Instant::now();
        let mut answer = ask();
        while said && !answer && since.elapsed() < Duration::from_secs(120) {
            std::thread::yield_now();
            answer = ask();
        }
        answer
    }

    #[test]
    fn the_model_of_byte_locks_answers_every_call_as_the_kernel_does() {
        let path = tempfile::NamedTempFile::new().unwrap();
        let open = || File::options().read(true).write(true).open(path.path()).unwrap();
        let plan = [
            Span::ALL,
            Span::UPGRADE,
            Span::MAIN,
            Span::MAIN_AND_GATE,
            Span::GATE,
            Span::waiter(0),
            Span::WAITERS,
            Span::EVERYTHING,
        ];
        let (mut calls, mut refused) = (0, 0);
        for seed in 0..300 {
            let mut dice = Dice::new(seed);
            let mut files = [open(), open(), open()];
            let mut model = ByteLocks::default();
            for step in 0..100 {
                let who = u8::try_from(dice.below(3)).unwrap();
                let (from, len) = (dice.below(20) as u32, 1 + dice.below(8) as u32);
                let span = if dice.chance(500) {
                    plan[dice.below(8) as usize]
                } else {
                    Span { start: from, len }
                };
                let grip = if dice.chance(500) { Grip::Read } else { Grip::Write };
                let file = &mut files[usize::from(who)];
                let told = || {
                    format!("seed {seed}, call {step}: {who} {span:?} {grip:?}, model {model:?}")
                };
                match dice.below(10) {
                    0 => {
                        *file = open();
                        model.close(who);
                    }
                    1..=3 => {
                        assert_eq!(
                            call(file, span, libc::F_UNLCK, false).map(drop),
                            Ok(()),
                            "{}",
                            told()
                        );
                        model.unlock(who, span);
                    }
                    4 => {
                        let said = model.may_lock(who, span, grip);
                        let free = settled(said, || {
                            call(file, span, kind(grip), true) == Ok(libc::F_UNLCK as libc::c_short)
                        });
                        assert_eq!(free, said, "{}", told());
                    }
                    _ => {
                        let before = model.clone();
                        let said = model.try_lock(who, span, grip);
                        let told = || {
                            format!(
                                "seed {seed}, call {step}: {who} {span:?} {grip:?}, model \
                                 {before:?}"
                            )
                        };
                        let locked = settled(said, || match call(file, span, kind(grip), false) {
                            Ok(_) => true,
                            Err(Errno::EAGAIN | Errno::EACCES) => false,
                            Err(error) => panic!("{error}: {}", told()),
                        });
                        assert_eq!(locked, said, "{}", told());
                        refused += u32::from(!locked);
                    }
                }
                calls += 1;
            }
        }
        println!(
            "byte locks: {calls} calls, {refused} of them refused, answered alike by the kernel \
             and its model"
        );
        assert!(refused > calls / 20, "too weak: nothing is ever refused");
    }
}
