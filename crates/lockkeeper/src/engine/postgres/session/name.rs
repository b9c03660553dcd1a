//! Which advisory lock a name is.

use crate::words::error::{Error, ErrorKind};
use crate::words::name::Name;

/// A key, as PostgreSQL's functions take it. The two forms never exclude each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Key {
    One(i64),
    Two(i32, i32),
}

impl Key {
    /// The key that a name says: one way of writing for each key, so that two names are never one
    /// lock (R12).
    pub(super) fn said(name: &str) -> Option<Self> {
        let whole = |text: &str| text.parse::<i64>().ok().filter(|n| n.to_string() == text);
        let half = |text: &str| whole(text).and_then(|n| i32::try_from(n).ok());
        match name.split_once(',') {
            None => whole(name).map(Self::One),
            Some((first, second)) => Some(Self::Two(half(first)?, half(second)?)),
        }
    }

    /// The key of a row of pg_locks.
    pub(super) fn of_row(class: u32, object: u32, form: u16) -> Option<Self> {
        let whole = u64::from(class) << 32 | u64::from(object);
        match form {
            1 => Some(Self::One(whole.cast_signed())),
            2 => Some(Self::Two(class.cast_signed(), object.cast_signed())),
            _ => None,
        }
    }

    /// The same three columns.
    pub(super) fn row(self) -> (u32, u32, u16) {
        match self {
            Self::One(key) => {
                let key = key.cast_unsigned();
                ((key >> 32) as u32, (key & u64::from(u32::MAX)) as u32, 1)
            }
            Self::Two(class, object) => (class.cast_unsigned(), object.cast_unsigned(), 2),
        }
    }

    /// What stands between the parentheses of a function. The smallest numbers are none without
    /// their quotes.
    pub(super) fn arguments(self) -> String {
        match self {
            Self::One(key) => format!("'{key}'::int8"),
            Self::Two(class, object) => format!("'{class}'::int4, '{object}'::int4"),
        }
    }

    /// The name that says it.
    pub(super) fn name(self) -> Option<Name> {
        let text = match self {
            Self::One(key) => key.to_string(),
            Self::Two(class, object) => format!("{class},{object}"),
        };
        Name::new(text).ok()
    }
}

/// What is said of a name that is no key.
pub(super) fn refused(name: &Name) -> Error {
    let text = "the name is no key of an advisory lock: with layout=session it is a whole number \
                such as 42, or two of 32 bits such as 4,2; add names=hash to the URL for other \
                names";
    Error::new(ErrorKind::InvalidName, text).name(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r12_a_key_has_one_name_and_every_other_name_is_refused() {
        for (name, key) in [
            ("0", Key::One(0)),
            ("-1", Key::One(-1)),
            ("9223372036854775807", Key::One(i64::MAX)),
            ("-9223372036854775808", Key::One(i64::MIN)),
            ("4,2", Key::Two(4, 2)),
            ("-2147483648,2147483647", Key::Two(i32::MIN, i32::MAX)),
        ] {
            assert_eq!(Key::said(name), Some(key), "{name}");
            assert_eq!(key.name().unwrap().as_str(), name);
            let (class, object, form) = key.row();
            assert_eq!(Key::of_row(class, object, form), Some(key), "{name}");
        }
        for name in [
            "",
            "a",
            "01",
            "+1",
            "-0",
            " 1",
            "1 ",
            "1.0",
            "1e3",
            "9223372036854775808",
            "4,",
            ",2",
            "4,2,1",
            "4, 2",
            "04,2",
            "2147483648,1",
            "٣",
        ] {
            assert_eq!(Key::said(name), None, "{name}");
        }
    }

    #[test]
    fn pg_locks_shows_the_halves_of_a_whole_number_without_their_signs() {
        assert_eq!(Key::One(-1).row(), (u32::MAX, u32::MAX, 1));
        assert_eq!(Key::One(1 << 32 | 7).row(), (1, 7, 1));
        assert_eq!(Key::Two(-1, 7).row(), (u32::MAX, 7, 2));
        assert_eq!(Key::of_row(1, 7, 3), None);
    }
}
