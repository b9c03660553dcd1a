//! Text from outside, made harmless for terminals and logs.

use std::borrow::Cow;
use std::fmt::Write as _;

/// Whether a terminal would act on a character: control characters, those that turn or hide what
/// stands beside them, and those that look like a blank or like nothing and are neither.
pub fn acts(c: char) -> bool {
    let turns = matches!(
        c,
        '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
    );
    let hidden = matches!(
        c,
        '\u{ad}' | '\u{34f}' | '\u{180b}'..='\u{180f}' | '\u{200b}'..='\u{200d}' | '\u{2028}'
            | '\u{2029}' | '\u{2060}'..='\u{2065}' | '\u{206a}'..='\u{206f}' | '\u{feff}'
            | '\u{fff9}'..='\u{fffb}' | '\u{1d173}'..='\u{1d17a}' | '\u{e0000}'..='\u{e007f}'
    );
    let looks_blank = matches!(
        c,
        '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}' | '\u{2800}' | '\u{3164}' | '\u{ffa0}'
    );
    c.is_control() || turns || hidden || looks_blank
}

/// The same text with every character escaped that a terminal would act on.
pub fn printable<'a>(text: impl Into<Cow<'a, str>>) -> String {
    let text = text.into();
    if !text.chars().any(acts) {
        return text.into_owned();
    }
    let mut out = String::with_capacity(text.len() + 8);
    for c in text.chars() {
        if acts(c) { out.extend(c.escape_unicode()) } else { out.push(c) }
    }
    out
}

/// One line of JSON with every such character escaped that JSON leaves raw, which changes no value.
pub fn json_line(line: String) -> String {
    if !line.chars().any(acts) {
        return line;
    }
    let mut out = String::with_capacity(line.len() + 8);
    // Outside of its texts JSON is ASCII, and on one line nothing of that acts: these stand inside
    // a text.
    for c in line.chars() {
        if acts(c) {
            for unit in c.encode_utf16(&mut [0; 2]) {
                _ = write!(out, "\\u{unit:04x}");
            }
        } else {
            out.push(c);
        }
    }
    out
}

/// The word of a list that was probably meant: at most a third of its letters are other ones.
pub(crate) fn near<'a>(word: &str, list: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let far = |other: &&str| other.len() / 3;
    let all = list.into_iter().map(|other| (letters_apart(word, other), other));
    all.filter(|(apart, other)| *apart <= far(other))
        .min_by_key(|(apart, _)| *apart)
        .map(|(_, other)| other)
}

/// How many letters are to be put in, taken out, changed or swapped with their neighbour.
fn letters_apart(one: &str, other: &str) -> usize {
    let (one, other): (Vec<_>, Vec<_>) = (one.chars().collect(), other.chars().collect());
    let mut rows = vec![(0..=other.len()).collect::<Vec<_>>()];
    for (at, letter) in one.iter().enumerate() {
        let mut row = vec![at + 1];
        for (to, wanted) in other.iter().enumerate() {
            let cell = |up: usize, column: usize| {
                rows.get(rows.len() - up).and_then(|row| row.get(column)).copied().unwrap_or(0)
            };
            let changed = cell(1, to) + usize::from(letter != wanted);
            let mut least =
                changed.min(cell(1, to + 1) + 1).min(row.last().copied().unwrap_or(0) + 1);
            let swapped = at > 0
                && to > 0
                && one.get(at - 1) == Some(wanted)
                && other.get(to - 1) == Some(letter);
            if swapped {
                least = least.min(cell(2, to - 1) + 1);
            }
            row.push(least);
        }
        rows.push(row);
    }
    rows.last().and_then(|row| row.last()).copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::words::error::{Error, ErrorKind};

    #[test]
    fn the_word_that_was_meant_is_found_and_none_is_made_up() {
        let list = ["layout", "lock", "ttl", "request_timeout", "db"];
        for (word, meant) in [
            ("layuot", "layout"),
            ("lok", "lock"),
            ("request-timeout", "request_timeout"),
            ("tll", "ttl"),
        ] {
            assert_eq!(near(word, list), Some(meant), "{word}");
        }
        for word in ["colour", "", "b", "tie"] {
            assert_eq!(near(word, list), None, "{word}");
        }
    }

    #[test]
    fn c15_a_server_s_control_characters_never_stand_in_an_error() {
        let hostile = "-ERR \u{1b}]0;pwned\u{7}\u{1b}[31m\r\nforged line \u{9b}2J \u{202e}back é";
        let error = Error::new(ErrorKind::Refused, hostile);
        let shown = format!("{error} {error:?} {}", error.message());
        assert!(!shown.chars().any(acts), "{shown}");
        assert!(
            error.message().contains("\\u{1b}]0;pwned\\u{7}")
                && error.message().ends_with("back é"),
            "{shown}"
        );
        // What passes on, as from a guardian, is not escaped again.
        assert_eq!(Error::new(ErrorKind::Refused, error.message()).message(), error.message());
    }

    #[test]
    fn what_acts_is_escaped_in_text_and_in_json_alike_and_json_keeps_its_value() {
        for c in
            "\u{7f}\u{9b}\u{ad}\u{200b}\u{200f}\u{2028}\u{2029}\u{202e}\u{2066}\u{feff}".chars()
        {
            assert_eq!(printable(format!("a{c}é")), format!("a{}é", c.escape_unicode()));
            assert_eq!(
                json_line(format!("{{\"a\":\"{c}é\"}}")),
                format!("{{\"a\":\"\\u{:04x}é\"}}", u32::from(c))
            );
        }
        assert_eq!(json_line("{\"a\":\"\\n é\"}".to_owned()), "{\"a\":\"\\n é\"}");
        // JSON writes it in two halves.
        assert_eq!(json_line("{\"a\":\"\u{e0041}\"}".to_owned()), "{\"a\":\"\\udb40\\udc41\"}");
    }

    #[test]
    fn what_turns_the_line_looks_blank_or_cannot_be_seen_is_escaped_and_letters_are_not() {
        let turns = "\u{61c}\u{200e}\u{200f}\u{202a}\u{202e}\u{2066}\u{2069}";
        let unseen = "\u{34f}\u{180e}\u{206a}\u{fff9}\u{1d173}\u{e0000}\u{e0041}\u{e007f}";
        let blank = "\u{115f}\u{1160}\u{2800}\u{3164}\u{ffa0}";
        for c in [turns, unseen, blank].concat().chars() {
            assert!(acts(c), "{}", c.escape_unicode());
        }
        for c in "a é 倉 ㄱ ᄀ ⠁ ᠠ م ע 🙂 … “".chars() {
            assert!(!acts(c), "{c}");
        }
    }
}
