//! What the scripts answer, parsed.

use std::time::Duration;

use super::resp::Value;

/// Numbers are the server's clock in units of 16 µs since 2026 (R7).
const TICK_US: u64 = 16;
const EPOCH_US: u64 = 1_767_225_600_000_000;

/// The server's time that a number stands for.
pub(in crate::engine) fn time_of_number(number: u64) -> u64 {
    number.saturating_mul(TICK_US).saturating_add(EPOCH_US)
}

/// The last number whose time is over at this one.
pub(in crate::engine) fn number_until(us: u64) -> u64 {
    (us.saturating_sub(EPOCH_US).saturating_add(1) / TICK_US).saturating_sub(1)
}

/// The answer of a script that asks for a lock.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(in crate::engine) enum Reply {
    /// Granted on the short way, with a number that is the server's time.
    Taken {
        number: u64,
    },
    /// Something is in the way of the short one, and nothing was done.
    InTheWay {
        now_us: u64,
    },
    Granted {
        now_us: u64,
        number: u64,
        ttl: Duration,
        /// Others hold it as well, wait or watch.
        beside: bool,
    },
    InLine {
        now_us: u64,
        ahead: u32,
        rest: Duration,
        holder: String,
        /// How many claim leases after `rest` its process asks again; `None`: the net is enough.
        turn: Option<u32>,
    },
    Busy {
        now_us: u64,
        rest: Duration,
        holder: String,
    },
    /// Refused on arrival: it came after its caller had left.
    Late {
        now_us: u64,
    },
    OtherLimit {
        now_us: u64,
        stored: u64,
    },
    Full {
        now_us: u64,
    },
    /// What was asked about is not ours any more.
    Gone {
        now_us: u64,
    },
    NotUpgradable {
        now_us: u64,
    },
}

impl Reply {
    /// Reads one; `None` is nothing that a script says.
    pub(in crate::engine) fn parse(value: &Value) -> Option<Self> {
        let items = value.items();
        let number = |at: usize| items.get(at).and_then(Value::unsigned);
        let text = |at: usize| items.get(at).and_then(Value::text).map(str::to_owned);
        let time = |at: usize| number(at).map(Duration::from_millis);
        if let Some(number) = value.unsigned() {
            return Some(Self::Taken { number });
        }
        let now_us = number(1)?;
        Some(match items.first()?.text()? {
            "G" => {
                let beside = items.len() > 4;
                Self::Granted { now_us, number: number(2)?, ttl: time(3)?, beside }
            }
            "L" => {
                let turn = items.get(5).and_then(Value::text)?.parse().ok();
                Self::InLine {
                    now_us,
                    ahead: u32::try_from(number(2)?).ok()?,
                    rest: time(3)?,
                    holder: text(4)?,
                    turn,
                }
            }
            "B" => Self::Busy { now_us, rest: time(2)?, holder: text(3)? },
            "T" => Self::Late { now_us },
            "W" => Self::InTheWay { now_us },
            "M" => Self::OtherLimit { now_us, stored: number(2)? },
            "F" => Self::Full { now_us },
            "X" => Self::Gone { now_us },
            "E" => Self::NotUpgradable { now_us },
            _ => return None,
        })
    }

    /// Whether its name is in use, so that the short way would lead nowhere; `None`: it does not
    /// say.
    pub(in crate::engine) fn is_busy(&self) -> Option<bool> {
        match self {
            Self::Granted { beside, .. } => Some(*beside),
            Self::InTheWay { .. } | Self::InLine { .. } | Self::Busy { .. } => Some(true),
            _ => None,
        }
    }

    /// The server's time in it; at the latest, where it is told by a number (R1).
    pub(in crate::engine) fn now_us(&self) -> u64 {
        match self {
            Self::Taken { number } => time_of_number(number.saturating_add(1)),
            Self::InTheWay { now_us }
            | Self::Granted { now_us, .. }
            | Self::InLine { now_us, .. }
            | Self::Busy { now_us, .. }
            | Self::Late { now_us }
            | Self::OtherLimit { now_us, .. }
            | Self::Full { now_us }
            | Self::Gone { now_us }
            | Self::NotUpgradable { now_us } => *now_us,
        }
    }
}

/// What a process is told unasked.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(in crate::engine) enum Push {
    /// A claim that stood in line was granted, with a short lease.
    Granted { claim: u128, number: u64, now_us: u64, lease: Duration },
    /// A claim is the first in line now, behind a lease that lasts this long at most.
    First { claim: u128, rest: Duration },
    /// A claim in line is asked for a sign of life: the lock goes past it if it gives none.
    Alive { claim: u128 },
    /// A hold was taken away by force.
    Taken { claim: u128 },
}

impl Push {
    /// Reads one; `None` is nothing that a script publishes.
    pub(in crate::engine) fn parse(payload: &str) -> Option<Self> {
        let words: Vec<&str> = payload.split(' ').collect();
        let claim = |text: &str| crate::words::id::ClaimId::parse(text).map(|id| id.0);
        match words.as_slice() {
            ["granted", id, number, now_us, lease_ms] => Some(Self::Granted {
                claim: claim(id)?,
                number: number.parse().ok()?,
                now_us: now_us.parse().ok()?,
                lease: Duration::from_millis(lease_ms.parse().ok()?),
            }),
            ["first", id, rest_ms] => Some(Self::First {
                claim: claim(id)?,
                rest: Duration::from_millis(rest_ms.parse().ok()?),
            }),
            ["alive", id] => Some(Self::Alive { claim: claim(id)? }),
            ["taken", id] => Some(Self::Taken { claim: claim(id)? }),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_a_time_of_the_server_and_is_over_before_the_next_one() {
        for (us, number) in [(EPOCH_US + 31, 1), (EPOCH_US + 30, 0), (EPOCH_US + 47, 2), (0, 0)] {
            assert_eq!(number_until(us), number, "{us}");
        }
        // A request that is in time is so for no longer than its claim is refused.
        let until = EPOCH_US + 1_000_000_007;
        assert!(time_of_number(number_until(until) + 1) <= until + 1);
        let taken = Reply::parse(&Value::Text(b"5".to_vec()));
        assert_eq!(taken, Some(Reply::Taken { number: 5 }));
        assert_eq!(taken.map(|reply| reply.now_us()), Some(time_of_number(6)), "at the latest");
    }
}
