//! Text from outside, made harmless for terminals and logs.

/// Whether a terminal would act on a character: control characters, and those that turn or hide what stands beside them.
fn acts(c: char) -> bool {
    let hidden = matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{2069}' | '\u{feff}' | '\u{ad}');
    c.is_control() || hidden
}

/// The same text with every character escaped that a terminal would act on.
pub(crate) fn printable(text: String) -> String {
    if !text.chars().any(acts) {
        return text;
    }
    let mut out = String::with_capacity(text.len() + 8);
    for c in text.chars() {
        if acts(c) { out.extend(c.escape_unicode()) } else { out.push(c) }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::{Error, ErrorKind};

    #[test]
    fn c15_a_server_s_control_characters_never_stand_in_an_error() {
        let hostile = "-ERR \u{1b}]0;pwned\u{7}\u{1b}[31m\r\nforged line \u{9b}2J \u{202e}back é";
        let error = Error::new(ErrorKind::Refused, hostile);
        let shown = format!("{error} {error:?} {}", error.message());
        assert!(!shown.chars().any(acts), "{shown}");
        assert!(error.message().contains("\\u{1b}]0;pwned\\u{7}") && error.message().ends_with("back é"), "{shown}");
        // What passes on, as from a guardian, is not escaped again.
        assert_eq!(Error::new(ErrorKind::Refused, error.message()).message(), error.message());
    }
}
