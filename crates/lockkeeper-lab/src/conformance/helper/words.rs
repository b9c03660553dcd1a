//! The words that both sides speak.

use lockkeeper::{Error, Mode};

/// A text as hexadecimal digits; `-` for none.
pub(super) fn hex(text: &str) -> String {
    if text.is_empty() {
        "-".to_owned()
    } else {
        text.bytes().map(|b| format!("{b:02x}")).collect()
    }
}

/// What [`hex`] wrote.
pub(super) fn unhex(text: &str) -> Option<String> {
    if text == "-" {
        return Some(String::new());
    }
    let digits = |at: usize| text.get(at..at + 2).and_then(|d| u8::from_str_radix(d, 16).ok());
    let bytes: Option<Vec<u8>> = (0..text.len()).step_by(2).map(digits).collect();
    String::from_utf8(bytes?).ok()
}

/// A mode as one word.
pub(super) fn mode_word(mode: Mode) -> String {
    match mode {
        Mode::Permits { count, limit } => format!("permits:{count}:{limit}"),
        mode => mode.as_str().to_owned(),
    }
}

/// What [`mode_word`] wrote.
pub(super) fn mode(word: &str) -> Option<Mode> {
    Some(match word {
        "exclusive" => Mode::Exclusive,
        "shared" => Mode::Shared,
        "upgradable" => Mode::Upgradable,
        permits => {
            let (count, limit) = permits.strip_prefix("permits:")?.split_once(':')?;
            Mode::Permits { count: count.parse().ok()?, limit: limit.parse().ok()? }
        }
    })
}

/// An error as the answer that carries it.
pub(super) fn error_words(error: &Error) -> String {
    format!("error {} {}", error.kind().as_str(), hex(&error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_modes_survive_the_way() {
        for text in ["", "a b", "é\n", "x/../y"] {
            assert_eq!(unhex(&hex(text)).as_deref(), Some(text));
        }
        for m in
            [Mode::Exclusive, Mode::Shared, Mode::Upgradable, Mode::Permits { count: 2, limit: 7 }]
        {
            assert_eq!(mode(&mode_word(m)), Some(m));
        }
        assert_eq!((unhex("0"), unhex("zz"), mode("permits:1")), (None, None, None));
    }
}
