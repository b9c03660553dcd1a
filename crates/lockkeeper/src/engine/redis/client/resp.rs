//! RESP3, the protocol of Redis: commands out, values in. No I/O.

use std::fmt;

use super::texts::Texts;

/// The longest text we accept from a server; more is not an answer to anything we ask.
const BULK_BYTES_MAX: usize = 64 << 20;
/// The most elements of one aggregate.
const ELEMENTS_MAX: usize = 1 << 22;
/// How deep aggregates may nest.
const DEPTH_MAX: usize = 16;

/// One value from the server.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::engine) enum Value {
    Nil,
    Integer(i64),
    Text(Vec<u8>),
    Error(String),
    Array(Vec<Value>),
    Map(Vec<(Value, Value)>),
    Push(Vec<Value>),
}

impl Value {
    /// The bytes of a text; integers and nil have none.
    pub(in crate::engine) fn bytes(&self) -> Option<&[u8]> {
        match self {
            Self::Text(bytes) => Some(bytes),
            _ => None,
        }
    }

    /// A text that is UTF-8.
    pub(in crate::engine) fn text(&self) -> Option<&str> {
        self.bytes().and_then(|b| std::str::from_utf8(b).ok())
    }

    /// A whole number, sent as one or as decimal text.
    pub(in crate::engine) fn integer(&self) -> Option<i64> {
        match self {
            Self::Integer(n) => Some(*n),
            Self::Text(_) => self.text()?.parse().ok(),
            _ => None,
        }
    }

    /// A whole number that is not negative.
    pub(in crate::engine) fn unsigned(&self) -> Option<u64> {
        self.integer().and_then(|n| u64::try_from(n).ok())
    }

    /// The elements of an array, a set or a push; none for anything else.
    pub(in crate::engine) fn items(&self) -> &[Self] {
        match self {
            Self::Array(items) | Self::Push(items) => items,
            _ => &[],
        }
    }

    /// Pairs of a map, also when it came as a flat array.
    pub(in crate::engine) fn pairs(&self) -> Vec<(&Self, &Self)> {
        match self {
            Self::Map(pairs) => pairs.iter().map(|(k, v)| (k, v)).collect(),
            Self::Array(items) => items
                .chunks_exact(2)
                .filter_map(|pair| Some((pair.first()?, pair.get(1)?)))
                .collect(),
            _ => Vec::new(),
        }
    }
}

/// What came is not RESP: some other program listens there, or TLS was expected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::engine) struct Garbage(pub(in crate::engine) String);

impl fmt::Display for Garbage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What the answer to a command may give.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(in crate::engine) enum Gives {
    /// No hold, and no more time to one.
    #[default]
    Nothing,
    /// A hold.
    Hold,
    /// More time to holds, each of which has a word in the answer.
    Time,
}

/// One command as bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(in crate::engine) struct Command(Texts, Gives);

impl Command {
    /// A command from its words.
    pub(in crate::engine) fn new<'a>(words: impl IntoIterator<Item = &'a str>) -> Self {
        Self(words.into_iter().collect(), Gives::Nothing)
    }

    /// The same with what its answer may give.
    pub(super) fn giving(self, gives: Gives) -> Self {
        Self(self.0, gives)
    }

    /// What its answer may give.
    pub(super) fn gives(&self) -> Gives {
        self.1
    }

    /// Adds one argument.
    pub(in crate::engine) fn arg(mut self, bytes: impl AsRef<[u8]>) -> Self {
        self.0.push(bytes);
        self
    }

    /// Adds one argument that is a number.
    pub(in crate::engine) fn number(mut self, number: u64) -> Self {
        self.0.push_number(number);
        self
    }

    /// Adds one argument in place.
    pub(in crate::engine) fn push(&mut self, bytes: &[u8]) {
        self.0.push(bytes);
    }

    /// Adds arguments in place.
    pub(super) fn append(&mut self, texts: &Texts) {
        self.0.append(texts);
    }

    /// Appends the command to what goes to the socket.
    pub(in crate::engine) fn encode(&self, out: &mut Vec<u8>) {
        begin(self.0.len(), out);
        out.extend_from_slice(self.0.body());
    }

    /// Its words, each as it is sent.
    pub(super) fn bodies(&self) -> impl Iterator<Item = &[u8]> {
        self.0.bodies()
    }
}

/// Begins a command of so many words.
pub(super) fn begin(words: usize, out: &mut Vec<u8>) {
    let mut digits = [0u8; 20];
    out.push(b'*');
    out.extend_from_slice(decimal(words as u64, &mut digits));
    out.extend_from_slice(b"\r\n");
}

pub(super) fn decimal(mut number: u64, digits: &mut [u8; 20]) -> &[u8] {
    let mut at = digits.len();
    while let Some(before) = at.checked_sub(1) {
        at = before;
        if let Some(digit) = digits.get_mut(at) {
            *digit = b'0' + (number % 10) as u8;
        }
        number /= 10;
        if number == 0 {
            break;
        }
    }
    digits.get(at..).unwrap_or_default()
}

/// Reads one value from the start of `bytes`: the value and its length, or `None` while it is not
/// complete.
pub(in crate::engine) fn parse(bytes: &[u8]) -> Result<Option<(Value, usize)>, Garbage> {
    let mut reader = Reader { bytes, at: 0 };
    Ok(reader.value(0)?.map(|value| (value, reader.at)))
}

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    fn line(&mut self) -> Option<&'a [u8]> {
        let rest = self.bytes.get(self.at..)?;
        let end = rest.iter().position(|b| *b == b'\n')?;
        self.at += end + 1;
        let line = rest.get(..end)?;
        Some(line.strip_suffix(b"\r").unwrap_or(line))
    }

    fn value(&mut self, depth: usize) -> Result<Option<Value>, Garbage> {
        if depth > DEPTH_MAX {
            return Err(Garbage("a reply nests too deep".into()));
        }
        let Some(line) = self.line() else {
            // A server that never ends its first line is not a Redis.
            return if self.bytes.len() - self.at > BULK_BYTES_MAX {
                Err(Garbage("an endless line".into()))
            } else {
                Ok(None)
            };
        };
        let Some((kind, rest)) = line.split_first() else { return Err(foreign(line)) };
        Ok(match kind {
            b'+' | b',' | b'(' => Some(Value::Text(rest.to_vec())),
            b'-' => Some(Value::Error(String::from_utf8_lossy(rest).into_owned())),
            b':' => Some(Value::Integer(number(rest, line)?)),
            b'#' => Some(Value::Integer(i64::from(rest == b"t"))),
            b'_' => Some(Value::Nil),
            b'$' | b'=' => self
                .bulk(number(rest, line)?, *kind == b'=')?
                .map(|b| b.map_or(Value::Nil, Value::Text)),
            b'!' => self.bulk(number(rest, line)?, false)?.map(|b| {
                Value::Error(String::from_utf8_lossy(&b.unwrap_or_default()).into_owned())
            }),
            b'*' | b'~' | b'>' => {
                let length = number(rest, line)?;
                if length < 0 {
                    return Ok(Some(Value::Nil));
                }
                let Some(items) = self.sequence(length, 1, depth)? else { return Ok(None) };
                Some(if *kind == b'>' { Value::Push(items) } else { Value::Array(items) })
            }
            b'%' => {
                let Some(items) = self.sequence(number(rest, line)?, 2, depth)? else {
                    return Ok(None);
                };
                let mut items = items.into_iter();
                let mut pairs = Vec::with_capacity(items.len() / 2);
                while let (Some(key), Some(value)) = (items.next(), items.next()) {
                    pairs.push((key, value));
                }
                Some(Value::Map(pairs))
            }
            b'|' => {
                // Attributes stand before the value that they describe; nothing of ours asks for
                // them.
                let Some(_) = self.sequence(number(rest, line)?, 2, depth)? else {
                    return Ok(None);
                };
                self.value(depth + 1)?
            }
            _ => return Err(foreign(line)),
        })
    }

    fn sequence(
        &mut self,
        length: i64,
        times: usize,
        depth: usize,
    ) -> Result<Option<Vec<Value>>, Garbage> {
        let length = usize::try_from(length)
            .ok()
            .filter(|n| *n <= ELEMENTS_MAX)
            .ok_or_else(|| Garbage(format!("an aggregate of {length} elements")))?;
        let mut items = Vec::with_capacity((length * times).min(1024));
        for _ in 0..length * times {
            let Some(item) = self.value(depth + 1)? else { return Ok(None) };
            items.push(item);
        }
        Ok(Some(items))
    }

    /// `Ok(None)`: not complete; `Ok(Some(None))`: RESP2's nil.
    fn bulk(&mut self, length: i64, verbatim: bool) -> Result<Option<Option<Vec<u8>>>, Garbage> {
        if length == -1 {
            return Ok(Some(None));
        }
        let length = usize::try_from(length)
            .ok()
            .filter(|n| *n <= BULK_BYTES_MAX)
            .ok_or_else(|| Garbage(format!("a text of {length} bytes")))?;
        let Some(bytes) = self.bytes.get(self.at..self.at + length + 2) else { return Ok(None) };
        let Some(text) = bytes.strip_suffix(b"\r\n") else {
            return Err(Garbage("a text without its end".into()));
        };
        self.at += length + 2;
        // A verbatim string starts with its format and a colon.
        Ok(Some(Some(if verbatim {
            text.get(4..).unwrap_or_default().to_vec()
        } else {
            text.to_vec()
        })))
    }
}

fn number(digits: &[u8], line: &[u8]) -> Result<i64, Garbage> {
    std::str::from_utf8(digits).ok().and_then(|d| d.parse().ok()).ok_or_else(|| foreign(line))
}

fn foreign(line: &[u8]) -> Garbage {
    let shown: String =
        String::from_utf8_lossy(line).chars().take(40).flat_map(char::escape_debug).collect();
    Garbage(format!("\"{shown}\""))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(t: &str) -> Value {
        Value::Text(t.as_bytes().to_vec())
    }

    #[test]
    fn a_command_is_an_array_of_texts() {
        let mut out = Vec::new();
        Command::new(["GET", "é"]).number(1_234_567_890).arg([0u8, 255]).encode(&mut out);
        assert_eq!(
            out,
            b"*4\r\n$3\r\nGET\r\n$2\r\n\xc3\xa9\r\n$10\r\n1234567890\r\n$2\r\n\0\xff\r\n"
        );
        let mut digits = [0u8; 20];
        assert_eq!(decimal(0, &mut digits), b"0");
        assert_eq!(decimal(u64::MAX, &mut [0u8; 20]), u64::MAX.to_string().as_bytes());
    }

    #[test]
    fn every_kind_of_value_is_read_and_every_cut_of_it_waits_for_more() {
        let all: &[(&[u8], Value)] = &[
            (b"+OK\r\n", text("OK")),
            (b"-ERR no\r\n", Value::Error("ERR no".into())),
            (b":-7\r\n", Value::Integer(-7)),
            (b"_\r\n", Value::Nil),
            (b"$-1\r\n", Value::Nil),
            (b"*-1\r\n", Value::Nil),
            (b"$4\r\na\r\nb\r\n", text("a\r\nb")),
            (b"=7\r\ntxt:abc\r\n", text("abc")),
            (b"#t\r\n", Value::Integer(1)),
            (b",1.5\r\n", text("1.5")),
            (b"!5\r\nERR x\r\n", Value::Error("ERR x".into())),
            (b"*2\r\n:1\r\n$1\r\nx\r\n", Value::Array(vec![Value::Integer(1), text("x")])),
            (b"%1\r\n+a\r\n:1\r\n", Value::Map(vec![(text("a"), Value::Integer(1))])),
            (b">2\r\n+message\r\n+b\r\n", Value::Push(vec![text("message"), text("b")])),
            (b"|1\r\n+ttl\r\n:1\r\n:5\r\n", Value::Integer(5)),
        ];
        for (bytes, value) in all {
            assert_eq!(
                parse(bytes),
                Ok(Some((value.clone(), bytes.len()))),
                "{}",
                String::from_utf8_lossy(bytes)
            );
            for cut in 0..bytes.len() {
                assert_eq!(
                    parse(&bytes[..cut]),
                    Ok(None),
                    "{} cut at {cut}",
                    String::from_utf8_lossy(bytes)
                );
            }
        }
    }

    #[test]
    fn garbage_is_named_and_never_allocated_for() {
        for bad in [
            &b"HTTP/1.1 400 Bad Request\r\n"[..],
            b"$999999999999\r\n",
            b"*99999999\r\n",
            b":x\r\n",
            b"\r\n",
            b"$1\r\nabc\r\n",
        ] {
            assert!(parse(bad).is_err(), "{}", String::from_utf8_lossy(bad));
        }
        let deep: Vec<u8> = b"*1\r\n".repeat(100);
        assert!(parse(&deep).is_err());
        assert_eq!(parse(b"SSH-2.0\x07\r\n"), Err(Garbage("\"SSH-2.0\\u{7}\"".into())));
    }
}
