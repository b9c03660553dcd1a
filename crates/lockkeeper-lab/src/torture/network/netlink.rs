//! What a namespace's links, addresses, routes and queues are made with: a few messages of
//! rtnetlink(7).

use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsRawFd as _, BorrowedFd, OwnedFd};
use std::sync::{Mutex, PoisonError};

use nix::libc;
use rustix::net::{
    AddressFamily, Protocol, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socket_with,
};

/// NETLINK_ROUTE, which is number 0.
const ROUTE: Option<Protocol> = None;
/// The loopback link of every namespace.
pub(crate) const LOOPBACK: u32 = 1;
/// What linux/veth.h, pkt_sched.h and gen_stats.h call so.
const VETH_INFO_PEER: u16 = 1;
const TC_H_ROOT: u32 = u32::MAX;
const TCA_STATS_QUEUE: u16 = 3;

/// The constants are small; those that are declared wider than they are sent would be seen in the
/// first test.
const fn short(constant: i32) -> u16 {
    constant as u16
}

const MAKE: u16 =
    short(libc::NLM_F_REQUEST | libc::NLM_F_ACK | libc::NLM_F_CREATE | libc::NLM_F_EXCL);
const CHANGE: u16 = short(libc::NLM_F_REQUEST | libc::NLM_F_ACK);
const REPLACE: u16 =
    short(libc::NLM_F_REQUEST | libc::NLM_F_ACK | libc::NLM_F_CREATE | libc::NLM_F_REPLACE);
const LIST: u16 = short(libc::NLM_F_REQUEST | libc::NLM_F_DUMP);

/// One end of a pair of links: its number and its name in its namespace.
#[derive(Clone, Copy, Debug)]
pub(crate) struct End<'a> {
    pub(crate) link: u32,
    pub(crate) name: &'a str,
}

/// A socket that speaks of the namespace in which it was made, whoever uses it.
pub(crate) struct Netlink(Mutex<OwnedFd>);

impl Netlink {
    /// Of the calling thread's namespace.
    pub(crate) fn open() -> io::Result<Self> {
        let socket =
            socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, ROUTE)?;
        Ok(Self(Mutex::new(socket)))
    }

    /// Makes a pair of links, the other end in another namespace. Both ends have one hardware
    /// address: [`Netlink::up`] says why.
    pub(crate) fn pair(
        &self,
        ours: End<'_>,
        theirs: End<'_>,
        other: BorrowedFd<'_>,
    ) -> io::Result<()> {
        let [a, b, c, d] = ours.link.to_be_bytes();
        let hardware = [2, 0, a, b, c, d];
        let end = |message: Message, end: End<'_>| {
            let message = message
                .raw(&link(end.link, 0))
                .attribute(libc::IFLA_IFNAME, &[end.name.as_bytes(), &[0]].concat());
            message.attribute(libc::IFLA_ADDRESS, &hardware)
        };
        let peer = |message: Message| {
            end(message, theirs).attribute(libc::IFLA_NET_NS_FD, &other.as_raw_fd().to_ne_bytes())
        };
        let about = |message: Message| {
            let data = |message: Message| message.nested(VETH_INFO_PEER, peer);
            message.attribute(libc::IFLA_INFO_KIND, b"veth\0").nested(libc::IFLA_INFO_DATA, data)
        };
        self.tell(
            end(Message::new(libc::RTM_NEWLINK, MAKE), ours).nested(libc::IFLA_LINKINFO, about),
        )
    }

    /// Switches a link on. Nobody asks on it for hardware addresses: what is cut off would stay
    /// unfound for a while after its link is whole again, and its kernel would know that it is cut
    /// off. Packets are sent to their sender's own address, which is the other end's as well.
    pub(crate) fn up(&self, number: u32) -> io::Result<()> {
        let flags = if number == LOOPBACK { libc::IFF_UP } else { libc::IFF_UP | libc::IFF_NOARP };
        self.tell(Message::new(libc::RTM_NEWLINK, CHANGE).raw(&link(number, flags as u32)))
    }

    pub(crate) fn address(&self, link: u32, address: Ipv4Addr, prefix: u8) -> io::Result<()> {
        let message = Message::new(libc::RTM_NEWADDR, MAKE)
            .raw(&[libc::AF_INET as u8, prefix, 0, 0])
            .raw(&link.to_ne_bytes());
        self.tell(
            message
                .attribute(libc::IFA_LOCAL, &address.octets())
                .attribute(libc::IFA_ADDRESS, &address.octets()),
        )
    }

    /// What is for `to` goes to `via`.
    pub(crate) fn route(&self, to: Ipv4Addr, prefix: u8, via: Ipv4Addr) -> io::Result<()> {
        let (table, by) = (libc::RT_TABLE_MAIN, libc::RTPROT_STATIC);
        let header = [
            libc::AF_INET as u8,
            prefix,
            0,
            0,
            table,
            by,
            libc::RT_SCOPE_UNIVERSE,
            libc::RTN_UNICAST,
            0,
            0,
            0,
            0,
        ];
        let message = Message::new(libc::RTM_NEWROUTE, MAKE)
            .raw(&header)
            .attribute(libc::RTA_DST, &to.octets());
        self.tell(message.attribute(libc::RTA_GATEWAY, &via.octets()))
    }

    /// What goes out over a link finds a queue that has room for nothing, and is counted.
    pub(crate) fn lose_all(&self, link: u32) -> io::Result<()> {
        let message = Message::new(libc::RTM_NEWQDISC, REPLACE)
            .raw(&queue(link))
            .attribute(libc::TCA_KIND, b"pfifo\0");
        self.tell(message.attribute(libc::TCA_OPTIONS, &0u32.to_ne_bytes()))
    }

    /// What goes out over a link goes out.
    pub(crate) fn lose_nothing(&self, link: u32) -> io::Result<()> {
        self.tell(Message::new(libc::RTM_DELQDISC, CHANGE).raw(&queue(link)))
    }

    /// How many packets the queue of a link has had no room for.
    pub(crate) fn lost(&self, link: u32) -> io::Result<u32> {
        let mut lost = 0;
        self.ask(Message::new(libc::RTM_GETQDISC, LIST).raw(&queue(link)), |_, body| {
            let (header, attributes) = body.split_at_checked(20).unwrap_or_default();
            if number(header, 4) == Some(link) {
                let counts = find(attributes, libc::TCA_STATS2)
                    .and_then(|stats| find(stats, TCA_STATS_QUEUE));
                lost += counts.and_then(|counts| number(counts, 8)).unwrap_or(0);
            }
        })?;
        Ok(lost)
    }

    fn tell(&self, message: Message) -> io::Result<()> {
        self.ask(message, |_, _| {})
    }

    /// Sends a message and hears what comes back, until that is the end or a refusal.
    fn ask(&self, message: Message, mut hear: impl FnMut(u16, &[u8])) -> io::Result<()> {
        let socket = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut buffer = vec![0; 64 << 10];
        send(&*socket, &message.finished(), SendFlags::empty())?;
        loop {
            let (length, _) = recv(&*socket, &mut buffer[..], RecvFlags::empty())?;
            let mut rest = buffer.get(..length).unwrap_or_default();
            while let Some((kind, body)) = next(&mut rest) {
                match i32::from(kind) {
                    libc::NLMSG_DONE => return Ok(()),
                    libc::NLMSG_ERROR => {
                        let error = number(body, 0).unwrap_or(0).cast_signed();
                        return if error == 0 {
                            Ok(())
                        } else {
                            Err(io::Error::from_raw_os_error(-error))
                        };
                    }
                    _ => hear(kind, body),
                }
            }
        }
    }
}

/// A message that grows.
struct Message(Vec<u8>);

impl Message {
    fn new(kind: u16, flags: u16) -> Self {
        // Its length is known at the end, and the kernel fills in who sent it.
        let header: [&[u8]; 4] = [&[0; 4], &kind.to_ne_bytes(), &flags.to_ne_bytes(), &[0; 8]];
        Self(header.concat())
    }

    fn raw(mut self, bytes: &[u8]) -> Self {
        self.0.extend_from_slice(bytes);
        self
    }

    fn attribute(self, kind: u16, value: &[u8]) -> Self {
        self.nested(kind, |message| message.raw(value))
    }

    fn nested(mut self, kind: u16, fill: impl FnOnce(Self) -> Self) -> Self {
        let start = self.0.len();
        self = fill(self.raw(&[0; 2]).raw(&kind.to_ne_bytes()));
        let length = u16::try_from(self.0.len() - start).unwrap_or(u16::MAX);
        if let Some(place) = self.0.get_mut(start..start + 2) {
            place.copy_from_slice(&length.to_ne_bytes());
        }
        self.0.resize(self.0.len().next_multiple_of(4), 0);
        self
    }

    fn finished(mut self) -> Vec<u8> {
        let length = u32::try_from(self.0.len()).unwrap_or(u32::MAX);
        if let Some(place) = self.0.get_mut(..4) {
            place.copy_from_slice(&length.to_ne_bytes());
        }
        self.0
    }
}

/// struct ifinfomsg: a link, and what of [`libc::IFF_UP`] and its like is switched on.
fn link(number: u32, flags: u32) -> [u8; 16] {
    let mut header = [0; 16];
    header[4..8].copy_from_slice(&number.to_ne_bytes());
    header[8..12].copy_from_slice(&flags.to_ne_bytes());
    header[12..].copy_from_slice(&flags.to_ne_bytes());
    header
}

/// struct tcmsg: the queue through which everything goes out over a link.
fn queue(link: u32) -> [u8; 20] {
    let mut header = [0; 20];
    header[4..8].copy_from_slice(&link.to_ne_bytes());
    header[12..16].copy_from_slice(&TC_H_ROOT.to_ne_bytes());
    header
}

fn number(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn short_number(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

/// The next message of what was received: its kind, and what follows its header.
fn next<'a>(rest: &mut &'a [u8]) -> Option<(u16, &'a [u8])> {
    let (length, kind) = (number(rest, 0)? as usize, short_number(rest, 4)?);
    let body = rest.get(16..length)?;
    *rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
    Some((kind, body))
}

/// The value of one attribute.
fn find(mut attributes: &[u8], wanted: u16) -> Option<&[u8]> {
    loop {
        let (length, kind) =
            (usize::from(short_number(attributes, 0)?), short_number(attributes, 2)?);
        let value = attributes.get(4..length)?;
        if kind & !short(libc::NLA_F_NESTED) == wanted {
            return Some(value);
        }
        attributes = attributes.get(length.next_multiple_of(4)..)?;
    }
}
