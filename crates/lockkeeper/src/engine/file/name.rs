//! From a lock's name to its file's name, injective (R12).
//!
//! Letters, digits, `-`, `_` and `.` stand for themselves, everything else is written as `%` and
//! two hexadecimal digits a byte: `stock/sku-42` is `stock%2Fsku-42.lock`. A name that would be too
//! long keeps its beginning, followed by `~` and 128 bits of its SHA-256; the file's header holds
//! the full name, so that even two names with one hash never share a lock silently. The kinds
//! differ in the ending.

use std::ffi::CString;

use sha2::{Digest, Sha256};

use crate::words::name::{Kind, Name};

/// The longest escaped name that is used as it is.
const PLAIN_MAX: usize = 200;
/// How much of a longer one is kept.
const KEPT: usize = 150;

/// The ending of each kind's files.
fn ending(kind: Kind) -> &'static str {
    match kind {
        Kind::Lock => ".lock",
        Kind::Semaphore => ".semaphore",
        Kind::Election => ".election",
        Kind::Latch => ".latch",
    }
}

/// The kind whose files end so.
pub(super) fn kind_of(file_name: &str) -> Option<Kind> {
    Kind::ALL
        .into_iter()
        .find(|kind| file_name.strip_suffix(ending(*kind)).is_some_and(|rest| !rest.is_empty()))
}

/// The name of the file of a lock.
pub(super) fn file_name(kind: Kind, name: &Name) -> CString {
    let mut text = escape(name.as_str());
    if text.len() > PLAIN_MAX {
        text.truncate(KEPT);
        text.push('~');
        for byte in Sha256::digest(name.as_str().as_bytes()).iter().take(16) {
            push_hex(&mut text, *byte);
        }
    }
    text.push_str(ending(kind));
    // No byte of it is zero: names hold no NUL, and escaping adds none.
    CString::new(text).unwrap_or_default()
}

/// The name that a file's own name tells, when its header does not: the name of a lock whose name
/// is hashed is told as far as the file's name goes. `None` for a file name that we do not make.
pub(super) fn name_of(kind: Kind, file_name: &str) -> Option<Name> {
    let text = file_name.strip_suffix(ending(kind))?;
    let bytes = crate::open::url::unescaped(text)?;
    let name = Name::new(String::from_utf8_lossy(&bytes)).ok()?;
    (text.contains('~') || self::file_name(kind, &name).to_bytes() == file_name.as_bytes())
        .then_some(name)
}

/// Whether a file can be one of a name that starts with `prefix`; the header has the last word.
pub(super) fn may_start_with(file_name: &str, prefix: &str) -> bool {
    let wanted = escape(prefix);
    let end = if file_name.contains('~') { wanted.len().min(KEPT) } else { wanted.len() };
    wanted.get(..end).is_some_and(|wanted| file_name.starts_with(wanted))
}

fn escape(name: &str) -> String {
    let mut text = String::with_capacity(name.len() + 16);
    for (at, byte) in name.bytes().enumerate() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' => text.push(char::from(byte)),
            // A leading dot would hide the file, and "." and ".." are no file names at all.
            b'.' if at > 0 => text.push('.'),
            _ => {
                text.push('%');
                push_hex(&mut text, byte);
            }
        }
    }
    text
}

fn push_hex(text: &mut String, byte: u8) {
    for digit in [byte >> 4, byte & 15] {
        text.push(char::from_digit(u32::from(digit), 16).unwrap_or('0').to_ascii_uppercase());
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn file(name: &str) -> String {
        file_name(Kind::Lock, &Name::new(name).unwrap()).into_string().unwrap()
    }

    #[test]
    fn short_safe_names_pass_through() {
        assert_eq!(file("nightly-report_2.x"), "nightly-report_2.x.lock");
        assert_eq!(file("stock/sku-42"), "stock%2Fsku-42.lock");
        assert_eq!(file("."), "%2E.lock");
        assert_eq!(file("100%"), "100%25.lock");
    }

    #[test]
    fn r12_different_names_have_different_files() {
        let long = "n".repeat(1024);
        let names = [
            "a",
            "A",
            "a/b",
            "a%2Fb",
            "a b",
            "a.b",
            ".a",
            "a.",
            "..",
            ".",
            "a\\b",
            "é",
            "e\u{301}",
            "~a",
            "a.lock",
            "a~",
            " a",
            "a ",
            "a\n",
            &long,
            &long[1..],
            &long[824..],
            &long[823..],
        ];
        let files: HashSet<_> = names.iter().map(|name| file(name)).collect();
        assert_eq!(files.len(), names.len());
        for file in files {
            assert!(file.len() <= 255 && !file.contains('/') && !file.starts_with('.'), "{file}");
        }
    }

    #[test]
    fn kinds_have_files_of_their_own_and_are_recognised() {
        let name = Name::new("x.lock").unwrap();
        for kind in Kind::ALL {
            assert_eq!(kind_of(file_name(kind, &name).to_str().unwrap()), Some(kind));
        }
        for other in [".lock", "x.txt", "", "lock", "x.lock~"] {
            assert_eq!(kind_of(other), None, "{other}");
        }
    }

    #[test]
    fn a_files_name_tells_the_name_of_its_lock_as_far_as_it_goes() {
        for name in ["a", "stock/sku-42", ".", "100%", "é", "a~b", "a\nb"] {
            assert_eq!(name_of(Kind::Lock, &file(name)).unwrap().as_str(), name);
        }
        let long = "n".repeat(1024);
        assert!(name_of(Kind::Lock, &file(&long)).unwrap().as_str().starts_with(&long[..KEPT]));
        for other in ["a b.lock", "%zz.lock", "%4.lock", "%41.lock", ".lock", "a.latch"] {
            assert_eq!(name_of(Kind::Lock, other), None, "{other}");
        }
    }

    #[test]
    fn a_prefix_never_rules_out_a_name_that_starts_with_it() {
        for name in ["stock/sku-42", "é", &"/x".repeat(300), &"n".repeat(1024), "a~b"] {
            for end in name.char_indices().map(|(at, _)| at).chain([name.len()]) {
                assert!(may_start_with(&file(name), &name[..end]), "{name} {end}");
            }
        }
        assert!(!may_start_with(&file("stock/sku"), "stock-"));
    }
}
