//! Counters and histograms through the `metrics` facade; names in docs/operating.md.

use std::time::Duration;

use crate::observe::Seen;

/// Counts what an observer would see.
pub(crate) fn seen(engine: &'static str, what: &Seen) {
    match what {
        Seen::Waiting { .. } => {
            metrics::gauge!("lockkeeper_waiters", "engine" => engine).increment(1.0)
        }
        Seen::WaitOver { .. } => {
            metrics::gauge!("lockkeeper_waiters", "engine" => engine).decrement(1.0)
        }
        Seen::Got { .. } => metrics::gauge!("lockkeeper_held", "engine" => engine).increment(1.0),
        Seen::Releasing { .. } => {
            metrics::gauge!("lockkeeper_held", "engine" => engine).decrement(1.0)
        }
        Seen::NotObtained { why, .. } => {
            metrics::counter!("lockkeeper_not_obtained_total", "engine" => engine, "why" => *why)
                .increment(1)
        }
        Seen::Lost { why, .. } => {
            metrics::gauge!("lockkeeper_held", "engine" => engine).decrement(1.0);
            metrics::counter!(
                "lockkeeper_lost_total",
                "engine" => engine,
                "reason" => why.as_str()
            )
            .increment(1);
        }
        _ => {}
    }
}

/// From the first poll to the turn.
pub(crate) fn waited(engine: &'static str, time: Duration) {
    metrics::histogram!("lockkeeper_wait_seconds", "engine" => engine).record(time);
}

/// From the turn to its release.
pub(crate) fn held(engine: &'static str, time: Duration) {
    metrics::histogram!("lockkeeper_hold_seconds", "engine" => engine).record(time);
}

/// From sending a renewal to its answer.
pub(crate) fn renewed(engine: &'static str, time: Duration) {
    metrics::histogram!("lockkeeper_renew_seconds", "engine" => engine).record(time);
}
