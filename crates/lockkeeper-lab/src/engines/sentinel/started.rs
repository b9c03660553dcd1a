//! What `redis+sentinel:auto` starts.

use std::path::Path;
use std::time::Duration;

use lockkeeper_testkit::sentinel::server::{Deployment, QUICK, Setup};

use crate::torture::arena::{has, take};

/// Replicas at most.
const REPLICAS_MAX: usize = 5;

/// What the options of `redis+sentinel:auto` say of the servers, and what is left of them.
pub(crate) struct Wanted {
    pub(crate) replicas: usize,
    /// How many replicas must have a grant before it counts.
    pub(crate) wait: usize,
    /// The engine's own.
    pub(crate) options: String,
}

impl Wanted {
    /// As many replicas as `wait_replicas` asks for, one at least, unless `replicas=` says it. The
    /// number is the exit code.
    pub(crate) fn take(options: &str) -> Result<Self, (u8, String)> {
        let (replicas, mut options) = take(options, "replicas");
        let (wait, _) = take(&options, "wait_replicas");
        // What cannot be right is refused by the engine.
        let wait = wait.and_then(|wait| wait.parse().ok()).unwrap_or(0);
        let replicas = match replicas.map(str::parse) {
            None => wait.clamp(1, REPLICAS_MAX),
            Some(Ok(n)) if (1..=REPLICAS_MAX).contains(&n) => n,
            Some(_) => {
                let given = replicas.unwrap_or_default();
                let text = format!("replicas={given}: give a number from 1 to {REPLICAS_MAX}");
                return Err((64, format!("redis+sentinel:auto: {text}")));
            }
        };
        if !has(&options, "ttl") {
            options = format!("{options}{}ttl=2s", if options.is_empty() { "" } else { "&" });
        }
        Ok(Self { replicas, wait, options })
    }
}

/// Starts it for the demo and the bench, in this directory. The number is the exit code.
pub(crate) fn start(options: &str, dir: &Path) -> Result<(Deployment, String), (u8, String)> {
    let wanted = Wanted::take(options)?;
    let setup = Setup { replicas: wanted.replicas, down_after: QUICK, ..Setup::default() };
    let deployment = Deployment::try_start_below(dir, setup).map_err(|text| (69, text))?;
    let url = format!("{}?{}", deployment.url(), wanted.options);
    Ok((deployment, url))
}

/// For how long a master that is tortured is silent before it counts as down: longer than a busy
/// machine keeps one from running.
pub(crate) const DOWN_AFTER: Duration = Duration::from_secs(3);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_as_many_replicas_as_have_to_acknowledge_and_the_options_of_the_engine_stay() {
        let taken = |options| {
            Wanted::take(options).map(|wanted| (wanted.replicas, wanted.wait, wanted.options))
        };
        let ok = |replicas, wait, options: &str| Ok((replicas, wait, options.to_owned()));
        assert_eq!(taken(""), ok(1, 0, "ttl=2s"));
        assert_eq!(taken("wait_replicas=2"), ok(2, 2, "wait_replicas=2&ttl=2s"));
        assert_eq!(taken("replicas=3&ttl=5s&wait_replicas=1"), ok(3, 1, "ttl=5s&wait_replicas=1"));
        for wrong in ["replicas=0", "replicas=6", "replicas=two"] {
            let (code, text) = taken(wrong).unwrap_err();
            assert!(code == 64 && text.contains("from 1 to 5"), "{text}");
        }
    }
}
