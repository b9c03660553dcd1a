//! How many columns of a terminal a text takes, and how a text is shortened so that it shows.

use unicode::{WIDE, ZERO};

mod unicode;

/// What stands where something was left out.
const ELLIPSIS: &str = "…";

/// How many columns a text takes.
pub fn columns(text: &str) -> usize {
    text.chars().map(of).sum()
}

fn of(c: char) -> usize {
    match u32::from(c) {
        0..0x300 => 1,
        c if is_in(&ZERO, c) => 0,
        c if is_in(&WIDE, c) => 2,
        _ => 1,
    }
}

/// Whether a number is in one of the ranges, of which each has its first number and the one after
/// its last.
fn is_in(ranges: &[u32], number: u32) -> bool {
    ranges.partition_point(|bound| *bound <= number) % 2 == 1
}

/// The text in at most `width` columns: its end gives way to an ellipsis where it has no room.
pub fn fit(text: &str, width: usize) -> String {
    if columns(text) <= width {
        return text.to_owned();
    }
    if width == 0 {
        return String::new();
    }
    head(text, width - 1).trim_end().to_owned() + ELLIPSIS
}

/// The same for a name, whose beginning and end both tell it from others: its middle gives way.
pub fn fit_name(text: &str, width: usize) -> String {
    if columns(text) <= width || width < 3 {
        return fit(text, width);
    }
    let end = (width - 1) / 2;
    let mut used = 0;
    let fits = |(_, c): &(usize, char)| {
        used += of(*c);
        used <= end
    };
    let mut at = text.char_indices().rev().take_while(fits).last().map_or(text.len(), |(at, _)| at);
    // A mark stays with the character that it stands on.
    at += text
        .get(at..)
        .unwrap_or_default()
        .chars()
        .take_while(|c| of(*c) == 0)
        .map(char::len_utf8)
        .sum::<usize>();
    head(text, width - 1 - end).to_owned() + ELLIPSIS + text.get(at..).unwrap_or_default()
}

/// As much of the beginning as has room, and the rest.
pub fn split(text: &str, width: usize) -> (&str, &str) {
    text.split_at(head(text, width).len())
}

/// As much of the beginning as has room.
fn head(text: &str, width: usize) -> &str {
    let mut used = 0;
    let over = |(_, c): &(usize, char)| {
        used += of(*c);
        used > width
    };
    let end = text.char_indices().find(over).map_or(text.len(), |(at, _)| at);
    text.get(..end).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wide_characters_take_two_columns_and_combining_marks_none() {
        for (text, width) in [
            ("", 0),
            ("stock/42", 8),
            ("日本", 4),
            ("ｱｲｳ", 3),
            ("Ｆｕｌｌ", 8),
            ("é", 1),
            ("e\u{301}", 1),
            ("नु", 1),
            ("하", 2),
            ("\u{1112}\u{1161}\u{11ab}", 2),
            ("🔒", 2),
            ("…—“”", 4),
            ("\u{20000}", 2),
            ("\u{fe0f}", 0),
            ("ไม้", 2),
        ] {
            assert_eq!(columns(text), width, "{text:?}");
        }
    }

    #[test]
    fn what_has_no_room_ends_in_an_ellipsis() {
        assert_eq!(fit("nightly", 7), "nightly");
        assert_eq!(fit("nightly", 6), "night…");
        assert_eq!(fit("the nightly", 5), "the…", "no space before it");
        assert_eq!(fit("日本語", 4), "日…", "half a character is none");
        assert_eq!(fit("e\u{301}e\u{301}e\u{301}", 2), "e\u{301}…");
        assert_eq!((fit("a", 0), fit("ab", 1)), (String::new(), "…".to_owned()));
    }

    #[test]
    fn a_name_keeps_its_beginning_and_its_end() {
        assert_eq!(fit_name("warehouse/berlin/42", 19), "warehouse/berlin/42");
        assert_eq!(fit_name("warehouse/berlin/42", 9), "ware…n/42");
        assert_eq!(fit_name("日本語日本語", 8), "日本…語");
        assert_eq!(fit_name("abcde\u{301}", 4), "ab…e\u{301}");
        assert_eq!(fit_name("abcdefg\u{301}h", 3), "a…h", "a mark does not move to the ellipsis");
        for width in 0..12 {
            assert!(columns(&fit_name("日a本b語c日d本e語f", width)) <= width, "{width}");
        }
    }
}
