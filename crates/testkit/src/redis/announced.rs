//! Where servers tell a client to find others: what they say, with the addresses at which this
//! client reaches them.
//!
//! Sentinels name the master, nodes of a cluster name each other, and all of them tell everybody
//! the same addresses. A client that goes through proxies of its own has to hear of those.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Where servers listen, and what they call themselves.
const HERE: &[u8] = b"127.0.0.1";
/// What stands between host and port inside a text: addresses, events of Sentinels, INFO.
const BETWEEN: [&[u8]; 4] = [b":", b" ", b",port=", b"\r\nmaster_port:"];

/// Where one client finds servers, by the port at which they are.
#[derive(Clone, Debug, Default)]
pub struct Elsewhere(Arc<Mutex<Places>>);

#[derive(Debug, Default)]
struct Places {
    host: Option<IpAddr>,
    ports: BTreeMap<u16, u16>,
}

impl Elsewhere {
    /// From now on a server is found at this port of this host. All are at one host.
    pub fn put(&self, server: u16, host: IpAddr, port: u16) {
        let mut all = self.places();
        all.host = Some(host);
        all.ports.insert(server, port);
    }

    /// A server is no longer there.
    pub fn remove(&self, server: u16) {
        self.places().ports.remove(&server);
    }

    fn places(&self) -> MutexGuard<'_, Places> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn host(&self) -> Vec<u8> {
        let host = self.places().host;
        host.map_or_else(|| HERE.to_vec(), |host| host.to_string().into_bytes())
    }

    fn port(&self, server: &[u8]) -> Option<Vec<u8>> {
        let server = std::str::from_utf8(server).ok()?.parse().ok()?;
        self.places().ports.get(&server).map(|port| port.to_string().into_bytes())
    }
}

/// What one connection's server says, read word by word.
pub(crate) struct Translation {
    elsewhere: Elsewhere,
    /// The beginning of a word whose rest has not come yet.
    rest: Vec<u8>,
    /// Whether the word before was a host or the name of a port, so that this one is a port.
    port_is_next: bool,
}

impl Translation {
    pub(crate) fn to(elsewhere: Elsewhere) -> Self {
        Self { elsewhere, rest: Vec::new(), port_is_next: false }
    }

    /// What the client hears. An answer that came as a whole is heard as a whole.
    pub(crate) fn of(&mut self, bytes: &[u8]) -> Vec<u8> {
        self.rest.extend_from_slice(bytes);
        let (all, mut heard, mut at) = (std::mem::take(&mut self.rest), Vec::new(), 0);
        while let Some((length, word)) = all.get(at..).and_then(next) {
            match word {
                Word::Bulk(kind, text) => {
                    let text = self.text(text);
                    heard.push(kind);
                    heard.extend(format!("{}\r\n", text.len()).bytes());
                    heard.extend(text);
                }
                Word::Line(kind, text) => {
                    heard.push(kind);
                    heard.extend(self.line(kind, text));
                }
            }
            heard.extend(b"\r\n");
            at += length;
        }
        self.rest = all.get(at..).unwrap_or_default().to_vec();
        heard
    }

    fn line(&mut self, kind: u8, text: &[u8]) -> Vec<u8> {
        match kind {
            b':' => self.port(text),
            b'+' | b'-' => self.text(text),
            // The length of a list, a null and the like are no words.
            _ => text.to_vec(),
        }
    }

    fn port(&mut self, text: &[u8]) -> Vec<u8> {
        let here = std::mem::take(&mut self.port_is_next).then(|| self.elsewhere.port(text));
        here.flatten().unwrap_or_else(|| text.to_vec())
    }

    fn text(&mut self, text: &[u8]) -> Vec<u8> {
        if text == HERE {
            self.port_is_next = true;
            return self.elsewhere.host();
        }
        if text == b"port" {
            self.port_is_next = true;
            return text.to_vec();
        }
        let (mut heard, mut left) = (Vec::new(), text);
        while let Some(at) = find(left, HERE) {
            let (before, after) = left.split_at(at);
            heard.extend(before);
            let after = after.get(HERE.len()..).unwrap_or_default();
            left = after;
            let between = BETWEEN.into_iter().find(|between| after.starts_with(between));
            let digits = after.get(between.map_or(0, <[u8]>::len)..).unwrap_or_default();
            let length = digits.iter().take_while(|byte| byte.is_ascii_digit()).count();
            let (digits, behind) = digits.split_at(length);
            match (between, self.elsewhere.port(digits)) {
                (Some(between), Some(port)) => {
                    heard.extend(self.elsewhere.host());
                    heard.extend(between);
                    heard.extend(port);
                    left = behind;
                }
                _ => heard.extend(HERE),
            }
        }
        heard.extend(left);
        self.port(&heard)
    }
}

enum Word<'a> {
    /// Of so many bytes as it says itself.
    Bulk(u8, &'a [u8]),
    /// Until the end of the line.
    Line(u8, &'a [u8]),
}

/// The next whole word, and how long it is with its end.
fn next(bytes: &[u8]) -> Option<(usize, Word<'_>)> {
    let end = find(bytes, b"\r\n")?;
    let (kind, line) = bytes.get(..end)?.split_first()?;
    let length = std::str::from_utf8(line).ok().and_then(|line| line.parse::<usize>().ok());
    match (kind, length) {
        (b'$' | b'=' | b'!', Some(length)) => {
            let from = end + 2;
            bytes.get(from + length..from + length + 2)?;
            Some((from + length + 2, Word::Bulk(*kind, bytes.get(from..from + length)?)))
        }
        _ => Some((end + 2, Word::Line(*kind, line))),
    }
}

fn find(bytes: &[u8], wanted: &[u8]) -> Option<usize> {
    bytes.windows(wanted.len()).position(|window| window == wanted)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bulk(text: &str) -> String {
        format!("${}\r\n{text}\r\n", text.len())
    }

    #[test]
    fn every_address_that_a_server_tells_is_the_clients_own_however_the_bytes_are_cut() {
        let elsewhere = Elsewhere::default();
        for (server, port) in [(7001, 45001), (7002, 5002)] {
            elsewhere.put(server, IpAddr::from([10, 2, 0, 6]), port);
        }
        let (ip, port) = (bulk("127.0.0.1"), bulk("port"));
        let cases = [
            (format!("*2\r\n{ip}{}", bulk("7001")), "*2\r\n$8\r\n10.2.0.6\r\n$5\r\n45001\r\n"),
            (format!("{port}:7002\r\n{ip}"), "$4\r\nport\r\n:5002\r\n$8\r\n10.2.0.6\r\n"),
            (format!("{port}{}", bulk("7002")), "$4\r\nport\r\n$4\r\n5002\r\n"),
            (format!("*2\r\n{ip}:7002\r\n"), "*2\r\n$8\r\n10.2.0.6\r\n:5002\r\n"),
            ("-MOVED 1 127.0.0.1:7001\r\n".to_owned(), "-MOVED 1 10.2.0.6:45001\r\n"),
            (bulk("m 127.0.0.1 7001 127.0.0.1 7002"), "$30\r\nm 10.2.0.6 45001 10.2.0.6 5002\r\n"),
            (bulk("ip=127.0.0.1,port=7001,"), "$23\r\nip=10.2.0.6,port=45001,\r\n"),
            (bulk("7001 127.0.0.1:7003"), "$19\r\n7001 127.0.0.1:7003\r\n"),
            (format!(":7001\r\n{}$-1\r\n", bulk("7001")), ":7001\r\n$4\r\n7001\r\n$-1\r\n"),
        ];
        for (said, heard) in cases {
            let mut whole = Translation::to(elsewhere.clone());
            assert_eq!(String::from_utf8(whole.of(said.as_bytes())).unwrap(), heard);
            assert!(whole.rest.is_empty(), "nothing is kept back of {said:?}");
            let mut pieces = Translation::to(elsewhere.clone());
            let bytes: Vec<u8> = said.bytes().flat_map(|byte| pieces.of(&[byte])).collect();
            assert_eq!(String::from_utf8(bytes).unwrap(), heard, "byte by byte");
        }
    }
}
