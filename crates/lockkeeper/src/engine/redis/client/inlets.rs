//! Where the answers of several servers come in, as one thing to wait for.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};

use super::node::Node;
use crate::engine::{Flush, Inlet, Took};
use crate::words::id::fork_generation;

/// How many of them are read at a time.
const AT_ONCE: usize = 16;

/// Readable while one of the connections is. It lives as long as the links, whatever becomes of
/// their connections.
pub(in crate::engine) struct All {
    epoll: Epoll,
    socket: Arc<OwnedFd>,
    watched: AtomicBool,
    /// How many connections were made.
    made: AtomicU64,
    /// As of how many of them the inlets are known.
    known: AtomicU64,
    inlets: Mutex<Inlets>,
    born: u32,
}

#[derive(Default)]
struct Inlets {
    known: Vec<Known>,
    /// How many were known.
    drawn: u64,
}

/// A connection that is watched.
struct Known {
    node: Node,
    /// What its events say. One that was replaced has another: a child of this process may keep its
    /// socket open, and in the epoll, for as long as it lives.
    number: u64,
    /// Not kept alive by this: its connection ends when nobody else has it.
    inlet: Weak<dyn Inlet>,
}

impl All {
    /// `None` where the kernel gives no more descriptors: then the keeper's thread reads all.
    pub(in crate::engine) fn new() -> Option<Arc<Self>> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).ok()?;
        let socket = Arc::new(epoll.0.try_clone().ok()?);
        Some(Arc::new(Self {
            epoll,
            socket,
            watched: AtomicBool::new(false),
            made: AtomicU64::new(0),
            known: AtomicU64::new(0),
            inlets: Mutex::default(),
            born: fork_generation(),
        }))
    }

    /// A connection was made.
    pub(in crate::engine) fn made(&self) {
        self.made.fetch_add(1, Ordering::AcqRel);
    }

    /// The inlet of all connections, which are asked for where one was made. A child of this
    /// process has none, and looks at nothing that may be locked.
    pub(in crate::engine) fn of(
        self: &Arc<Self>,
        now: impl FnOnce() -> Vec<(Node, Arc<dyn Inlet>)>,
    ) -> Option<Arc<dyn Inlet>> {
        if self.born != fork_generation() {
            return None;
        }
        let made = self.made.load(Ordering::Acquire);
        if self.known.load(Ordering::Acquire) != made {
            self.follow(made, &now());
        }
        Some(self.clone())
    }

    /// These are the connections now, of so many that were made.
    fn follow(&self, made: u64, now: &[(Node, Arc<dyn Inlet>)]) {
        self.known.store(made, Ordering::Release);
        let mut inlets = self.lock();
        // What has ended took its descriptor along.
        inlets.known.retain(|known| known.inlet.strong_count() > 0);
        let is = |known: &Known, (node, inlet): &(Node, Arc<dyn Inlet>)| {
            known.node == *node && known.inlet.as_ptr().addr() == Arc::as_ptr(inlet).addr()
        };
        for new in now {
            let Some(socket) = new.1.socket() else { continue };
            if inlets.known.iter().any(|known| is(known, new)) {
                continue;
            }
            inlets.drawn += 1;
            let number = inlets.drawn;
            let event = EpollEvent::new(EpollFlags::EPOLLIN, number);
            // It may have been known before. What is not watched is read by the keeper's thread.
            if self.epoll.add(socket, event).is_err() {
                _ = self.epoll.modify(socket, &mut event.clone());
            }
            inlets.known.retain(|known| known.node != new.0);
            inlets.known.push(Known { node: new.0, number, inlet: Arc::downgrade(&new.1) });
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inlets> {
        self.inlets.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn all(&self) -> Vec<Arc<dyn Inlet>> {
        self.lock().known.iter().filter_map(|known| known.inlet.upgrade()).collect()
    }
}

impl Inlet for All {
    fn socket(&self) -> Option<&Arc<OwnedFd>> {
        Some(&self.socket)
    }

    fn watch(&self) -> bool {
        !self.watched.swap(true, Ordering::AcqRel)
    }

    fn unwatch(&self) {
        self.watched.store(false, Ordering::Release);
    }

    fn promise(self: Arc<Self>) -> Option<Flush> {
        // Each node's is a promise by itself.
        let mut promised: Vec<Flush> =
            self.all().into_iter().filter_map(|inlet| inlet.promise()).collect();
        (!promised.is_empty()).then(|| Flush::new(move || promised.clear()))
    }

    fn take(&self, patient: bool) -> Took {
        let mut ready = [EpollEvent::empty(); AT_ONCE];
        let ready = match self.epoll.wait(&mut ready, EpollTimeout::ZERO) {
            Ok(count) => ready.get(..count).unwrap_or_default(),
            Err(_) => return Took::Nothing,
        };
        if ready.is_empty() {
            return Took::Nothing;
        }
        let inlets: Vec<Arc<dyn Inlet>> = {
            let inlets = self.lock();
            let of = |event: &EpollEvent| {
                let mut found = inlets.known.iter().filter(|known| known.number == event.data());
                found.next().and_then(|known| known.inlet.upgrade())
            };
            ready.iter().filter_map(of).collect()
        };
        // What is ready and can be read by nobody stays so: whoever slept until it is ready would
        // not sleep at all. The keeper's thread reads for it, and makes the connection anew.
        let mut took = Took::Over;
        for inlet in inlets {
            match (inlet.take(patient), took) {
                (Took::Something, _) => took = Took::Something,
                (Took::Nothing, Took::Over) => took = Took::Nothing,
                _ => {}
            }
        }
        took
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A node's connection at which something gathers, or nothing.
    struct Gathers {
        socket: Arc<OwnedFd>,
        gathers: AtomicBool,
        written: AtomicU64,
        took: Took,
    }

    impl Gathers {
        fn new(gathers: bool) -> Arc<Self> {
            let gathers = AtomicBool::new(gathers);
            Arc::new(Self { gathers, ..Self::says(Took::Nothing) })
        }

        /// At whose socket something is always ready: the other end is closed.
        fn says(took: Took) -> Self {
            let (socket, _) = nix::unistd::pipe().unwrap();
            let (socket, gathers) = (Arc::new(socket), AtomicBool::new(false));
            Self { socket, gathers, written: AtomicU64::new(0), took }
        }
    }

    impl Inlet for Gathers {
        fn socket(&self) -> Option<&Arc<OwnedFd>> {
            Some(&self.socket)
        }

        fn watch(&self) -> bool {
            false
        }

        fn unwatch(&self) {}

        fn promise(self: Arc<Self>) -> Option<Flush> {
            let gathers = self.gathers.swap(false, Ordering::Relaxed);
            gathers.then(|| Flush::new(move || _ = self.written.fetch_add(1, Ordering::Relaxed)))
        }

        fn take(&self, _: bool) -> Took {
            self.took
        }
    }

    #[test]
    fn a_caller_writes_to_the_nodes_for_which_it_promised_that_and_to_no_other() {
        let all = All::new().unwrap();
        let nodes = [Gathers::new(true), Gathers::new(false), Gathers::new(true)];
        let inlet = |at: usize| (Node(at as u16), nodes[at].clone() as Arc<dyn Inlet>);
        all.follow(1, &[inlet(0), inlet(1), inlet(2)]);
        let written = || nodes.each_ref().map(|node| node.written.load(Ordering::Relaxed));
        let first = all.clone().promise().expect("something gathers at two of them");
        nodes[1].gathers.store(true, Ordering::Relaxed);
        let second = all.clone().promise().expect("and now at the third");
        assert!(all.promise().is_none());
        drop(first);
        assert_eq!(written(), [1, 0, 1]);
        drop(second);
        assert_eq!(written(), [1, 1, 1]);
    }

    fn follows(all: &All, made: u64, inlets: &[&Arc<Gathers>]) {
        let of =
            |(node, inlet): (u16, &&Arc<Gathers>)| (Node(node), (*inlet).clone() as Arc<dyn Inlet>);
        all.follow(made, &(0..).zip(inlets).map(of).collect::<Vec<_>>());
    }

    #[test]
    fn a_caller_does_not_sleep_at_what_is_ready_and_can_be_read_by_nobody() {
        let all = All::new().unwrap();
        assert_eq!(all.take(true), Took::Nothing, "nothing is ready");
        let [over, empty, full] =
            [Took::Over, Took::Nothing, Took::Something].map(|took| Arc::new(Gathers::says(took)));
        follows(&all, 1, &[&over]);
        assert_eq!(all.take(true), Took::Over, "the keeper's thread has not closed it yet");
        follows(&all, 2, &[&over, &empty]);
        assert_eq!(all.take(true), Took::Nothing, "somebody else was first");
        follows(&all, 3, &[&over, &full, &empty]);
        assert_eq!(all.take(true), Took::Something);
    }

    #[test]
    fn a_socket_that_a_child_keeps_open_is_taken_for_no_later_connection() {
        let all = All::new().unwrap();
        let before = Arc::new(Gathers::says(Took::Nothing));
        let _childs = before.socket.try_clone().unwrap();
        follows(&all, 1, &[&before]);
        assert_eq!(all.take(true), Took::Nothing);
        drop(before);
        assert_eq!(all.take(true), Took::Over, "it is in the epoll still");
        // Its other end is open, and nothing comes.
        let (socket, _open) = nix::unistd::pipe().unwrap();
        let anew = Gathers { socket: Arc::new(socket), ..Gathers::says(Took::Nothing) };
        let anew = Arc::new(anew);
        follows(&all, 2, &[&anew]);
        assert_eq!(all.take(true), Took::Over, "what is ready is not its own");
    }
}
