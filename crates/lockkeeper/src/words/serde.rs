//! Serde for the words that programs store: each is the text that the command line's JSON prints.

use std::fmt;
use std::marker::PhantomData;

use serde::de::{Error as _, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::{ErrorKind, Lost, Name, Token};

/// A value that is written as one text.
trait Text: Sized {
    /// What a reader should have found.
    const EXPECTED: &'static str;

    fn read(text: &str) -> Option<Self>;
}

struct AsText<T>(PhantomData<T>);

impl<T: Text> Visitor<'_> for AsText<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(T::EXPECTED)
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<T, E> {
        T::read(text).ok_or_else(|| E::invalid_value(serde::de::Unexpected::Str(text), &self))
    }
}

impl Text for Token {
    const EXPECTED: &'static str = "a fencing token: a decimal number below 2^63, as a string";

    fn read(text: &str) -> Option<Self> {
        text.parse().ok()
    }
}

impl Text for ErrorKind {
    const EXPECTED: &'static str = "the word of an error kind";

    fn read(text: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|kind| kind.as_str() == text)
    }
}

impl Text for Lost {
    const EXPECTED: &'static str = "the word of a loss";

    fn read(text: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|why| why.as_str() == text)
    }
}

macro_rules! as_text {
    ($type:ty, $text:expr) => {
        impl Serialize for $type {
            fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
                to.collect_str(&$text(self))
            }
        }
    };
    ($type:ty, $text:expr, read) => {
        as_text!($type, $text);

        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                from.deserialize_str(AsText(PhantomData))
            }
        }
    };
}

as_text!(Token, |token: &Token| *token, read);
as_text!(ErrorKind, |kind: &ErrorKind| kind.as_str(), read);
as_text!(Lost, |why: &Lost| why.as_str(), read);
as_text!(Name, Name::as_str);

impl<'de> Deserialize<'de> for Name {
    /// Refuses what [`Name::new`] refuses, with its reason.
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        Self::new(String::deserialize(from)?).map_err(|error| D::Error::custom(error.message()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn c29_a_token_is_a_decimal_string_in_json_and_never_a_number() {
        let token: Token = "9007199254740993".parse().unwrap();
        assert_eq!(serde_json::to_string(&token).unwrap(), "\"9007199254740993\"");
        assert_eq!(serde_json::from_str::<Token>("\"9007199254740993\"").unwrap(), token);
        for bad in ["9007199254740993", "\"-1\"", "\"01\"", "null", "1.5"] {
            assert!(serde_json::from_str::<Token>(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn c29_names_and_words_read_back_what_they_wrote() {
        let name = Name::new("stock/é").unwrap();
        assert_eq!(
            serde_json::from_str::<Name>(&serde_json::to_string(&name).unwrap()).unwrap(),
            name
        );
        assert!(
            serde_json::from_str::<Name>("\"\"")
                .unwrap_err()
                .to_string()
                .contains("cannot be empty")
        );
        for kind in ErrorKind::ALL {
            assert_eq!(
                serde_json::from_str::<ErrorKind>(&serde_json::to_string(kind).unwrap()).unwrap(),
                *kind
            );
        }
        for why in Lost::ALL {
            assert_eq!(
                serde_json::from_str::<Lost>(&serde_json::to_string(why).unwrap()).unwrap(),
                *why
            );
        }
        assert!(serde_json::from_str::<ErrorKind>("\"busy\"").is_err());
    }
}
