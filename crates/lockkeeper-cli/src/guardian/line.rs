//! The line between `lockkeeper` and its guardian: whole messages, and an end that is noticed.

use std::io;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd, RawFd};

use nix::libc;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// The longest message: a URL, a name and a label have room in it.
const LONGEST: usize = 64 * 1024;

/// One end of the line.
#[derive(Debug)]
pub struct Line(OwnedFd);

/// What came.
pub enum Heard {
    /// Nothing yet.
    Nothing,
    /// One message.
    Message(Vec<u8>),
    /// The other end is closed, and everything it said was heard.
    Gone,
}

impl Line {
    /// Both ends.
    ///
    /// # Errors
    /// When no descriptor is left.
    pub fn pair() -> io::Result<(Self, OwnedFd)> {
        let mut ends = [-1; 2];
        // SAFETY: the call fills two descriptors.
        if unsafe {
            libc::socketpair(
                libc::AF_UNIX,
                libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC,
                0,
                ends.as_mut_ptr(),
            )
        } == -1
        {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: both were just made, and nobody else has them.
        Ok(unsafe { (Self(OwnedFd::from_raw_fd(ends[0])), OwnedFd::from_raw_fd(ends[1])) })
    }

    /// The end that a guardian finds as its standard input; `None` when that is something else.
    pub fn of_stdin() -> Option<Self> {
        let (mut kind, mut size) = (0i32, libc::socklen_t::try_from(size_of::<i32>()).ok()?);
        // SAFETY: the call fills `kind`, whose size it was told.
        let answer = unsafe {
            libc::getsockopt(
                0,
                libc::SOL_SOCKET,
                libc::SO_TYPE,
                (&raw mut kind).cast(),
                &raw mut size,
            )
        };
        // SAFETY: it is open, and from here on it is ours alone.
        (answer == 0 && kind == libc::SOCK_SEQPACKET)
            .then(|| Self(unsafe { OwnedFd::from_raw_fd(0) }))
    }

    /// Sends a message, without waiting for room.
    ///
    /// # Errors
    /// The other end is closed; there is no room.
    pub fn send(&self, message: &[u8]) -> io::Result<()> {
        send(self.0.as_raw_fd(), message)
    }

    /// Sends a message as JSON.
    ///
    /// # Errors
    /// As [`Line::send`].
    pub fn say(&self, message: &impl Serialize) -> io::Result<()> {
        self.send(&serde_json::to_vec(message)?)
    }

    /// What came, without waiting.
    pub fn hear(&self) -> Heard {
        let mut buffer = vec![0; LONGEST];
        loop {
            // SAFETY: the call fills the buffer, whose size it is told.
            let size = unsafe {
                libc::recv(
                    self.0.as_raw_fd(),
                    buffer.as_mut_ptr().cast(),
                    buffer.len(),
                    libc::MSG_DONTWAIT,
                )
            };
            match usize::try_from(size) {
                Ok(0) => return Heard::Gone,
                Ok(size) => {
                    buffer.truncate(size);
                    return Heard::Message(buffer);
                }
                Err(_) => match io::Error::last_os_error() {
                    e if e.kind() == io::ErrorKind::WouldBlock => return Heard::Nothing,
                    // That the other end left something unread is told before what it said; the
                    // latter still comes.
                    e if matches!(e.raw_os_error(), Some(libc::EINTR | libc::ECONNRESET)) => {}
                    _ => return Heard::Gone,
                },
            }
        }
    }

    /// Whether the other end is closed, also while something that it said was not heard yet.
    pub fn is_closed(&self) -> bool {
        let mut fds = [PollFd::new(self.0.as_fd(), PollFlags::empty())];
        poll(&mut fds, PollTimeout::ZERO).is_ok() && fds[0].any() == Some(true)
    }

    /// Says that nothing more will be said; what the other end says can still be heard.
    pub fn close(&self) {
        // SAFETY: it is a socket and stays open.
        unsafe { libc::shutdown(self.0.as_raw_fd(), libc::SHUT_WR) };
    }
}

impl AsFd for Line {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Sends a message. Async-signal-safe: it is also called between fork and exec.
///
/// # Errors
/// As [`Line::send`].
pub fn send(line: RawFd, message: &[u8]) -> io::Result<()> {
    // SAFETY: the call reads the message, whose size it is told.
    let sent = unsafe {
        libc::send(
            line,
            message.as_ptr().cast(),
            message.len(),
            libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL,
        )
    };
    if sent == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Reads a message that is JSON.
pub fn read<T: DeserializeOwned>(message: &[u8]) -> Option<T> {
    serde_json::from_slice(message).ok()
}

#[cfg(test)]
mod tests {
    use std::net::Shutdown;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn messages_come_whole_and_the_end_comes_after_them() {
        let (one, other) = Line::pair().unwrap();
        let other = Line(other);
        assert!(matches!(other.hear(), Heard::Nothing));
        one.send(b"first").unwrap();
        one.send(b"second").unwrap();
        // Left unread on the other side: it must not hide what was said.
        other.send(b"unread").unwrap();
        assert!(!other.is_closed());
        // Also while a child that another test starts still has it.
        UnixStream::from(one.0).shutdown(Shutdown::Both).unwrap();
        assert!(other.is_closed());
        assert!(matches!(other.hear(), Heard::Message(m) if m == b"first"));
        assert!(matches!(other.hear(), Heard::Message(m) if m == b"second"));
        assert!(matches!(other.hear(), Heard::Gone));
        assert_eq!(other.send(b"nobody").unwrap_err().raw_os_error(), Some(libc::EPIPE));
    }
}
