//! A network namespace: one thread that has left that of its process. What the thread starts and
//! the sockets that it makes are inside.
//!
//! It has no name and no file: the kernel removes it after the last thread, process and socket in
//! it, however those end.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;

use nix::sched::{CloneFlags, unshare};

use super::netlink::{LOOPBACK, Netlink};

type Work = Box<dyn FnOnce() + Send>;

/// See the module. Processes that it started are told when it is dropped that their parent died.
pub(crate) struct Namespace {
    /// What tells its links what to do.
    pub(crate) links: Netlink,
    file: File,
    work: Option<Sender<Work>>,
    thread: Option<JoinHandle<()>>,
}

impl Namespace {
    /// A new one in which there is nothing but the loopback link; `forwards` from link to link.
    ///
    /// # Errors
    /// Why that is not allowed, or not possible.
    pub(crate) fn new(forwards: bool) -> Result<Self, String> {
        let ((work, works), (ready, made)) = (channel::<Work>(), channel());
        let live = move || {
            let entered = enter(forwards);
            let inside = entered.is_ok();
            // Nobody hears it who has gone.
            let _ = ready.send(entered);
            if inside {
                works.into_iter().for_each(|work| work());
            }
        };
        let thread = std::thread::Builder::new()
            .name("namespace".to_owned())
            .spawn(live)
            .map_err(|e| e.to_string())?;
        let (links, file) = made.recv().map_err(|e| e.to_string())??;
        Ok(Self { links, file, work: Some(work), thread: Some(thread) })
    }

    /// Does something inside.
    pub(crate) fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> io::Result<T> {
        let (done, result) = channel();
        let work = Box::new(move || drop(done.send(work())));
        let gone = || io::Error::other("the thread of the network namespace has ended");
        self.work.as_ref().and_then(|to| to.send(work).ok()).ok_or_else(gone)?;
        result.recv().map_err(|_| gone())
    }
}

impl AsFd for Namespace {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        drop(self.work.take());
        if let Some(thread) = self.thread.take() {
            // One that panicked has said so.
            let _ = thread.join();
        }
    }
}

/// Takes the calling thread into a new one.
fn enter(forwards: bool) -> Result<(Netlink, File), String> {
    unshare(CloneFlags::CLONE_NEWNET)
        .map_err(io::Error::from)
        .map_err(cannot("have a network namespace of its own (root may)"))?;
    // What an IPv6 link says by itself would be taken for somebody's packets. A kernel without IPv6
    // says nothing.
    for of in ["default", "all"] {
        match std::fs::write(format!("/proc/sys/net/ipv6/conf/{of}/disable_ipv6"), "1") {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(cannot("switch IPv6 off in its namespace")(error));
            }
            _ => {}
        }
    }
    if forwards {
        std::fs::write("/proc/sys/net/ipv4/ip_forward", "1")
            .map_err(cannot("forward packets in its namespace"))?;
    }
    let links = Netlink::open().map_err(cannot("speak of the links of its namespace"))?;
    links.up(LOOPBACK).map_err(cannot("switch a link on"))?;
    let file = File::open("/proc/thread-self/ns/net").map_err(cannot("name its namespace"))?;
    Ok((links, file))
}

fn cannot(what: &'static str) -> impl Fn(io::Error) -> String {
    move |error| format!("this process cannot {what}: {error}")
}
