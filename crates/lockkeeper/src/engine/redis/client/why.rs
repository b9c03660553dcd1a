//! What happened to a request that was not answered, in words, and whom it is about.

use std::fmt;
use std::ops::Deref;

use tokio::sync::oneshot;

use super::super::options::Address;
use super::pipe::{Broken, Outcome};
use super::resp::Value;
#[cfg(feature = "cluster")]
use crate::words::error::Error;
use crate::words::error::ErrorKind;

/// What happened, in words for the one who reads an error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::engine) struct Why {
    text: String,
    /// The node of a cluster that it is about; without, the server of the URL.
    pub(in crate::engine) at: Option<Address>,
    /// The words are a whole message, of an error of this kind, which is waited out or not.
    pub(in crate::engine) message_of: Option<(ErrorKind, bool)>,
}

impl<T: Into<String>> From<T> for Why {
    fn from(text: T) -> Self {
        Self { text: text.into(), at: None, message_of: None }
    }
}

impl Why {
    /// As a connection says that could not be made.
    #[cfg(feature = "cluster")]
    pub(super) fn message(error: &Error) -> Self {
        Self { message_of: Some((error.kind(), error.is_outage())), ..Self::from(error.message()) }
    }
}

impl Deref for Why {
    type Target = str;

    fn deref(&self) -> &str {
        &self.text
    }
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// What a command comes to. A driver says of each why it was not answered.
pub(super) async fn outcome(answer: oneshot::Receiver<Outcome>) -> Outcome {
    answer.await.unwrap_or_else(|_| Err(Broken::Unknown("the connection ended".into())))
}

/// A value that comes, or why it does not.
pub(in crate::engine) async fn value(answer: oneshot::Receiver<Outcome>) -> Result<Value, Why> {
    outcome(answer).await.map(|(_, value)| value).map_err(Broken::why)
}

impl Broken {
    /// What happened, whatever became of the request.
    pub(in crate::engine) fn why(self) -> Why {
        let (Self::NotSent(why) | Self::Unknown(why) | Self::Unacknowledged(why)) = self;
        why
    }

    /// The same, about the node at this address.
    #[cfg(feature = "cluster")]
    pub(super) fn of(mut self, at: Address) -> Self {
        let (Self::NotSent(why) | Self::Unknown(why) | Self::Unacknowledged(why)) = &mut self;
        why.at = Some(at);
        self
    }
}
