//! All cases on one subject.

use std::fmt;

use super::case::{Case, Outcome, cases, run};
use super::subject::Subject;

/// What came of all cases on one subject.
#[derive(Debug)]
pub struct Report {
    /// The subject's name.
    pub subject: String,
    /// Each case with its outcome, in order.
    pub outcomes: Vec<(&'static Case, Outcome)>,
}

/// Runs every case, each on a fresh subject.
pub fn run_all(subject: fn() -> Subject) -> Report {
    let name = subject().name().to_owned();
    Report {
        subject: name,
        outcomes: cases().iter().map(|case| (case, run(case, subject))).collect(),
    }
}

impl Report {
    /// The cases whose rule is broken.
    pub fn broken(&self) -> impl Iterator<Item = (&'static Case, &str)> + '_ {
        self.outcomes.iter().filter_map(|(case, outcome)| {
            if let Outcome::Broken(why) = outcome { Some((*case, why.as_str())) } else { None }
        })
    }

    /// How many rules hold.
    pub fn held(&self) -> usize {
        self.outcomes.iter().filter(|(_, outcome)| *outcome == Outcome::Holds).count()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (case, outcome) in &self.outcomes {
            match outcome {
                Outcome::Holds => writeln!(f, "holds        {}", case.name)?,
                Outcome::NotCapable(need) => {
                    writeln!(f, "not capable  {} ({})", case.name, need.as_str())?
                }
                Outcome::Broken(why) => writeln!(f, "BROKEN       {}: {why}", case.name)?,
            }
        }
        let (held, broken) = (self.held(), self.broken().count());
        let not_capable = self.outcomes.len() - held - broken;
        writeln!(f, "{}: {held} hold, {not_capable} not capable, {broken} broken", self.subject)
    }
}
