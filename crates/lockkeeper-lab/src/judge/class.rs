//! What can be wrong with a history.

use std::fmt;

/// Whose fault a violation is, as far as a history can tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// Engine or library broke what they promise.
    Broken,
    /// A client or a resource acted on a hold that was over: what fencing tokens are for.
    Late,
    /// Nothing bad happened, and something good did not, in time or in order.
    Progress,
}

impl Verdict {
    /// The word in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Broken => "broken",
            Self::Late => "late",
            Self::Progress => "progress",
        }
    }
}

macro_rules! classes {
    ($($variant:ident $word:literal $verdict:ident $doc:literal;)*) => {
        /// A class of violations. The words are stable.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Class {
            $(#[doc = $doc] $variant,)*
        }

        impl Class {
            /// Every class, in the order of reports.
            pub const ALL: &'static [Self] = &[$(Self::$variant),*];

            /// The stable word.
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $word,)* }
            }

            /// Whose fault it is.
            pub fn verdict(self) -> Verdict {
                match self { $(Self::$variant => Verdict::$verdict,)* }
            }

            /// What it means, in one sentence.
            pub fn meaning(self) -> &'static str {
                match self { $(Self::$variant => $doc,)* }
            }

            /// The class of that word.
            pub fn from_word(word: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|class| class.as_str() == word)
            }
        }
    };
}

classes! {
    Overlap "overlap" Broken "Two exclusive (or two upgradable) holds of one name at one moment.";
    ReadersWithWriter "readers-with-writer" Broken "An exclusive hold beside a shared or \
                                                    upgradable one.";
    PermitsExceeded "permits-exceeded" Broken "More permits of a semaphore held at one moment than \
                                               its limit.";
    TokenOrder "token-order" Broken "A fencing token smaller than one of an earlier hold.";
    TokenRepeated "token-repeated" Broken "A fencing token that an earlier hold had already, or \
                                           one beside it that excludes it.";
    TokenMissing "token-missing" Broken "A hold without a fencing token, of an engine that gives \
                                         one to each.";
    ReentryToken "reentry-token" Broken "A re-entrant acquisition with another token than the hold \
                                         it entered.";
    ReentryAfterLoss "reentry-after-loss" Broken "A re-entrant acquisition of a hold that had been \
                                                  lost.";
    WrongBusy "wrong-busy" Broken "A try was refused while the lock was free and had no waiter.";
    ForeignRelease "foreign-release" Broken "The release of an ended hold took effect while \
                                             another client held the lock.";
    DoubleRelease "double-release" Broken "One hold was released twice with success.";
    HoldVanished "hold-vanished" Broken "A hold within its deadline was refused at its release: it \
                                         had been taken away unannounced.";
    HeldAfterDeadline "held-after-deadline" Broken "A guard said that it holds after its deadline.";
    HeldAfterEnd "held-after-end" Broken "A guard said that it holds after it was lost or \
                                          released.";
    RenewedAfterEnd "renewed-after-end" Broken "A hold was renewed after it had been lost or \
                                                released.";
    StaleWriteAccepted "stale-write-accepted" Broken "A resource that checks tokens accepted one \
                                                      older than it had seen.";
    LostUpdateFenced "lost-update-fenced" Broken "A resource that checks tokens accepted a write \
                                                  that was made from a version another write had \
                                                  replaced.";
    StaleWriteUnfenced "stale-write-unfenced" Late "A resource that checks no tokens accepted an \
                                                    operation of an older holder after one of a \
                                                    newer.";
    LostUpdate "lost-update" Late "A write was accepted that was made from a version another write \
                                   had replaced.";
    LateEffect "late-effect" Late "An operation was accepted from a client whose hold had ended, \
                                   where no token was checked.";
    FifoInversion "fifo-inversion" Progress "A claim was granted before others that stood in line \
                                             before it was made.";
    SlowRecovery "slow-recovery" Progress "After a death or a fault the lock stayed out of reach \
                                           for longer than promised.";
    LateLoss "late-loss" Progress "A running holder did not learn at its deadline that its hold \
                                   had ended.";
}

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_distinct_and_read_back() {
        for class in Class::ALL {
            assert_eq!(Class::from_word(class.as_str()), Some(*class));
            assert_eq!(class.to_string(), class.as_str());
            assert!(class.meaning().ends_with('.'));
            assert!(["broken", "late", "progress"].contains(&class.verdict().as_str()));
        }
        assert_eq!(Class::from_word("no such"), None);
    }
}
