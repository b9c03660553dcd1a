//! What the scripts answer, parsed.

use std::time::Duration;

use super::resp::Value;

/// The answer of a script that asks for a lock.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(in crate::engine) enum Reply {
    Granted {
        now_us: u64,
        number: u64,
        ttl: Duration,
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
        let now_us = number(1)?;
        Some(match items.first()?.text()? {
            "G" => Self::Granted { now_us, number: number(2)?, ttl: time(3)? },
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
            "M" => Self::OtherLimit { now_us, stored: number(2)? },
            "F" => Self::Full { now_us },
            "X" => Self::Gone { now_us },
            "E" => Self::NotUpgradable { now_us },
            _ => return None,
        })
    }

    /// The server's time in it.
    pub(in crate::engine) fn now_us(&self) -> u64 {
        match self {
            Self::Granted { now_us, .. }
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
        let claim = |text: &str| crate::id::ClaimId::parse(text).map(|id| id.0);
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
