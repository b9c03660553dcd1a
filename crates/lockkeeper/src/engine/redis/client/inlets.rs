//! Where the answers of several servers come in, as one thing to wait for.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};

use super::node::Node;
use crate::engine::{Flush, Inlet, Took};

/// How many of them are read at a time.
const AT_ONCE: usize = 16;

/// Readable while one of the connections is. It lives as long as the links, whatever becomes of
/// their connections.
pub(in crate::engine) struct All {
    epoll: Epoll,
    socket: Arc<OwnedFd>,
    watched: AtomicBool,
    /// As of how many connections that were made the inlets are known.
    known: AtomicU64,
    /// Not kept alive by this: their connections end when nobody else has them.
    inlets: Mutex<Vec<(Node, Weak<dyn Inlet>)>>,
}

impl All {
    /// `None` where the kernel gives no more descriptors: then the keeper's thread reads all.
    pub(in crate::engine) fn new() -> Option<Arc<Self>> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).ok()?;
        let socket = Arc::new(epoll.0.try_clone().ok()?);
        let (watched, known) = (AtomicBool::new(false), AtomicU64::new(0));
        Some(Arc::new(Self { epoll, socket, watched, known, inlets: Mutex::default() }))
    }

    /// Whether other connections were made than are known.
    pub(in crate::engine) fn is_new(&self, connected: u64) -> bool {
        self.known.load(Ordering::Acquire) != connected
    }

    /// These are the connections now, of so many that were made.
    pub(in crate::engine) fn follow(&self, connected: u64, now: &[(Node, Arc<dyn Inlet>)]) {
        self.known.store(connected, Ordering::Release);
        let mut inlets = self.inlets.lock().unwrap_or_else(PoisonError::into_inner);
        // What has ended took its descriptor along.
        inlets.retain(|(_, inlet)| inlet.strong_count() > 0);
        let is = |known: &(Node, Weak<dyn Inlet>), new: &(Node, Arc<dyn Inlet>)| {
            known.0 == new.0 && known.1.as_ptr().addr() == Arc::as_ptr(&new.1).addr()
        };
        for new in now {
            let Some(socket) = new.1.socket() else { continue };
            if inlets.iter().any(|known| is(known, new)) {
                continue;
            }
            let event = EpollEvent::new(EpollFlags::EPOLLIN, new.0.0.into());
            // What is not watched is read by the keeper's thread.
            _ = self.epoll.add(socket, event);
            inlets.retain(|(node, _)| *node != new.0);
            inlets.push((new.0, Arc::downgrade(&new.1)));
        }
    }
}

impl All {
    fn all(&self) -> Vec<Arc<dyn Inlet>> {
        let inlets = self.inlets.lock().unwrap_or_else(PoisonError::into_inner);
        inlets.iter().filter_map(|(_, inlet)| inlet.upgrade()).collect()
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
        let inlets: Vec<Arc<dyn Inlet>> = {
            let inlets = self.inlets.lock().unwrap_or_else(PoisonError::into_inner);
            let of = |event: &EpollEvent| {
                let mut found = inlets.iter().filter(|(node, _)| u64::from(node.0) == event.data());
                found.next().and_then(|(_, inlet)| inlet.upgrade())
            };
            ready.iter().filter_map(of).collect()
        };
        let mut took = Took::Nothing;
        for inlet in inlets {
            if inlet.take(patient) == Took::Something {
                took = Took::Something;
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
    }

    impl Gathers {
        fn new(gathers: bool) -> Arc<Self> {
            let (socket, _) = nix::unistd::pipe().unwrap();
            let (socket, gathers) = (Arc::new(socket), AtomicBool::new(gathers));
            Arc::new(Self { socket, gathers, written: AtomicU64::new(0) })
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
            Took::Nothing
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
}
