//! The texts of a request, as they are sent.

use std::fmt;

use super::resp::decimal;

/// Texts one behind the other. A request has many, and there may be ten thousand renewals a second:
/// an allocation for each text would be most of what a request costs.
#[derive(Clone, Default, PartialEq, Eq, Hash)]
pub(in crate::engine) struct Texts {
    count: usize,
    /// Each as a bulk string of RESP.
    body: Vec<u8>,
}

impl Texts {
    /// How many there are.
    pub(in crate::engine) fn len(&self) -> usize {
        self.count
    }

    pub(in crate::engine) fn push(&mut self, text: impl AsRef<[u8]>) {
        self.push_joined(&[text.as_ref()]);
    }

    /// One text of these parts.
    pub(in crate::engine) fn push_joined(&mut self, parts: &[impl AsRef<[u8]>]) {
        push_bulk(&mut self.body, parts);
        self.count += 1;
    }

    pub(in crate::engine) fn push_number(&mut self, number: u64) {
        let mut digits = [0u8; 20];
        self.push(decimal(number, &mut digits));
    }

    pub(in crate::engine) fn append(&mut self, others: &Self) {
        self.count += others.count;
        self.body.extend_from_slice(&others.body);
    }

    /// Puts these before the one that was at this place.
    pub(in crate::engine) fn insert(&mut self, at: usize, others: &Self) {
        let all = self.iter().take(at).chain(others.iter()).chain(self.iter().skip(at));
        *self = all.collect();
    }

    pub(in crate::engine) fn get(&self, at: usize) -> Option<&str> {
        self.iter().nth(at)
    }

    pub(in crate::engine) fn first(&self) -> Option<&str> {
        self.get(0)
    }

    pub(in crate::engine) fn iter(&self) -> impl Iterator<Item = &str> {
        let mut rest = self.body.as_slice();
        std::iter::from_fn(move || {
            let end = rest.iter().position(|byte| *byte == b'\r')?;
            let length: usize = std::str::from_utf8(rest.get(1..end)?).ok()?.parse().ok()?;
            let text = rest.get(end + 2..)?.get(..length)?;
            rest = rest.get(end + 2 + length + 2..)?;
            Some(std::str::from_utf8(text).unwrap_or_default())
        })
    }

    /// Each as it is sent.
    pub(super) fn bodies(&self) -> impl Iterator<Item = &[u8]> {
        let mut rest = self.body.as_slice();
        std::iter::from_fn(move || {
            let end = rest.iter().position(|byte| *byte == b'\r')?;
            let digits = rest.get(1..end)?;
            let length = digits.iter().fold(0, |all, digit| all * 10 + usize::from(digit - b'0'));
            let (text, more) = rest.split_at_checked(end + 2 + length + 2)?;
            rest = more;
            Some(text)
        })
    }

    /// As they are sent.
    pub(super) fn body(&self) -> &[u8] {
        &self.body
    }
}

/// Appends one text of these parts, as it is sent.
pub(super) fn push_bulk(to: &mut Vec<u8>, parts: &[impl AsRef<[u8]>]) {
    let mut digits = [0u8; 20];
    let length: usize = parts.iter().map(|part| part.as_ref().len()).sum();
    let digits = decimal(length as u64, &mut digits);
    to.reserve(digits.len() + length + 5);
    to.push(b'$');
    to.extend_from_slice(digits);
    to.extend_from_slice(b"\r\n");
    for part in parts {
        to.extend_from_slice(part.as_ref());
    }
    to.extend_from_slice(b"\r\n");
}

/// Appends a number as a text.
pub(super) fn push_number(to: &mut Vec<u8>, number: u64) {
    let mut digits = [0u8; 20];
    push_bulk(to, &[decimal(number, &mut digits)]);
}

impl fmt::Debug for Texts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

impl<T: AsRef<[u8]>> Extend<T> for Texts {
    fn extend<I: IntoIterator<Item = T>>(&mut self, texts: I) {
        for text in texts {
            self.push(text);
        }
    }
}

impl<T: AsRef<[u8]>> FromIterator<T> for Texts {
    fn from_iter<I: IntoIterator<Item = T>>(texts: I) -> Self {
        let mut all = Self::default();
        all.extend(texts);
        all
    }
}

impl<T: AsRef<[u8]>, const N: usize> From<[T; N]> for Texts {
    fn from(texts: [T; N]) -> Self {
        texts.into_iter().collect()
    }
}

impl<T: AsRef<[u8]>> From<Vec<T>> for Texts {
    fn from(texts: Vec<T>) -> Self {
        texts.into_iter().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_come_back_as_they_were_put_in_whatever_stands_in_them() {
        let texts = ["a", "", "$3\r\nabc\r\n", "é", "0123456789"];
        let mut all = Texts::from(texts);
        assert_eq!(all.iter().collect::<Vec<_>>(), texts);
        assert_eq!(
            (all.len(), all.first(), all.get(3), all.get(5)),
            (5, Some("a"), Some("é"), None)
        );
        all.push_joined(&["a", ":", "b"]);
        all.push_number(u64::MAX);
        assert_eq!((all.get(5), all.get(6)), (Some("a:b"), Some("18446744073709551615")));
    }

    #[test]
    fn others_are_put_at_a_place_or_at_the_end() {
        let two = Texts::from(["x", "yy"]);
        for (at, expected) in [
            (0, ["x", "yy", "a", "bb", "c"]),
            (2, ["a", "bb", "x", "yy", "c"]),
            (3, ["a", "bb", "c", "x", "yy"]),
        ] {
            let mut all = Texts::from(["a", "bb", "c"]);
            all.insert(at, &two);
            assert_eq!(all, Texts::from(expected), "at {at}");
        }
        let mut all = Texts::from(["a"]);
        all.append(&two);
        assert_eq!(all, Texts::from(["a", "x", "yy"]));
    }
}
