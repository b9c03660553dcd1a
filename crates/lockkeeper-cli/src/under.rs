//! What a command runs under, as far as supervision, engine and guardian need to agree on it.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use lockkeeper::Lost;
use serde::{Deserialize, Serialize};

use crate::start::Moment;

/// Something about what the command runs under that people should know.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Caution {
    /// A stable word.
    pub id: String,
    /// What it is, and what to do.
    pub text: String,
}

/// Why the command must not go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", from = "String")]
pub enum Why {
    /// What it runs under is lost.
    Lost(Lost),
    /// What it runs under is about to be lost, and nothing could be done about it.
    RunningOut,
    /// Who keeps what it runs under is gone.
    Alone,
}

impl Why {
    /// A stable word for JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Lost(lost) => lost.as_str(),
            Self::RunningOut => Lost::Expired.as_str(),
            Self::Alone => "guardian-gone",
        }
    }
}

impl std::fmt::Display for Why {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Lost(lost) => lost.fmt(f),
            Self::RunningOut => {
                f.write_str("its lease is about to run out, and it could not be renewed")
            }
            Self::Alone => f.write_str("the guardian that renewed it no longer runs"),
        }
    }
}

impl From<Why> for String {
    fn from(why: Why) -> Self {
        if why == Why::RunningOut { "running-out".to_owned() } else { why.as_str().to_owned() }
    }
}

impl From<String> for Why {
    fn from(word: String) -> Self {
        match word.as_str() {
            "running-out" => Self::RunningOut,
            "guardian-gone" => Self::Alone,
            word => {
                let lost = Lost::ALL.iter().find(|lost| lost.as_str() == word);
                Self::Lost(lost.copied().unwrap_or(Lost::Expired))
            }
        }
    }
}

/// What the command runs under, and may be lost.
pub trait Under {
    /// Whether it is lost; asked often, so it must be cheap.
    fn lost(&self) -> Option<Why>;
    /// Readable when it may be lost.
    fn alarm(&self) -> Option<BorrowedFd<'_>>;
    /// How often to ask without an alarm; `None` when the alarm is enough.
    fn every(&self) -> Option<Duration>;
    /// When to ask at the latest, alarm or not.
    fn next(&self) -> Option<Moment> {
        None
    }
    /// The next thing that is to be told about it.
    fn caution(&self) -> Option<Caution> {
        None
    }
    /// Once it is lost: by when the command must be gone, and whether somebody else asks it to end.
    fn end(&self) -> (Option<Moment>, bool) {
        (None, false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_of_a_loss_arrives_as_it_was_told() {
        let lost = Lost::ALL.iter().map(|lost| Why::Lost(*lost));
        for why in lost.chain([Why::RunningOut, Why::Alone]) {
            assert_eq!(Why::from(String::from(why)), why);
        }
    }
}
