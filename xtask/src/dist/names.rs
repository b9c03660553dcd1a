//! A name server that knows one name: whether the static binary asks for names at all.

use std::net::{Ipv4Addr, UdpSocket};

/// The name, and where it leads.
pub const NAME: &str = "lock.example";
/// What it says once it can be asked.
pub const ANSWERING: &str = "answering";

/// Answers questions on 127.0.0.1:53, until it is killed. Says so as soon as it does.
///
/// # Errors
/// The socket.
pub fn answer() -> Result<(), String> {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 53)).map_err(|error| error.to_string())?;
    println!("{ANSWERING} on port 53");
    let mut question = [0; 512];
    loop {
        let (len, from) = socket.recv_from(&mut question).map_err(|error| error.to_string())?;
        let Some(answer) = question.get(..len).and_then(reply) else { continue };
        socket.send_to(&answer, from).map_err(|error| error.to_string())?;
    }
}

/// RFC 1035, sections 4.1.1 to 4.1.3: our name has one address of IPv4; others do not exist.
fn reply(question: &[u8]) -> Option<Vec<u8>> {
    let id = question.get(..2)?;
    let body = question.get(12..)?;
    let end = body.iter().position(|byte| *byte == 0)?;
    let (name, rest) = (body.get(..=end)?, body.get(end + 1..end + 5)?);
    let ours = NAME.split('.').flat_map(|label| {
        std::iter::once(u8::try_from(label.len()).unwrap_or(0)).chain(label.bytes())
    });
    let known = name.iter().map(u8::to_ascii_lowercase).eq(ours.chain([0]));
    let found = known && rest == [0, 1, 0, 1];
    // An answer, recursion available; 3: no such name.
    let code = if known { 0x80 } else { 0x83 };
    let mut reply = [id, &[0x81, code, 0, 1, 0, u8::from(found), 0, 0, 0, 0], name, rest].concat();
    if found {
        // The name is the question's, at byte 12; IPv4, Internet, for a minute, four bytes.
        reply.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4, 127, 0, 0, 1]);
    }
    Some(reply)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(name: &str, kind: u8) -> Vec<u8> {
        let mut question = vec![7, 9, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
        for label in name.split('.') {
            question.push(u8::try_from(label.len()).unwrap());
            question.extend(label.bytes());
        }
        question.extend([0, 0, kind, 0, 1]);
        question
    }

    #[test]
    fn one_name_has_one_address_and_others_do_not_exist() {
        let known = reply(&ask("LOCK.example", 1)).unwrap();
        assert_eq!(
            (&known[..4], &known[known.len() - 4..]),
            (&[7, 9, 0x81, 0x80][..], &[127, 0, 0, 1][..])
        );
        let no_ipv6 = reply(&ask(NAME, 28)).unwrap();
        assert_eq!((no_ipv6[3], no_ipv6[7]), (0x80, 0));
        let other = reply(&ask("other.example", 1)).unwrap();
        assert_eq!((other[3], other[7]), (0x83, 0));
        assert_eq!(reply(b"short"), None);
    }
}
