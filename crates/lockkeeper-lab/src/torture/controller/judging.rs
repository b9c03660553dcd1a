//! What the histories of a run say: a verdict, its picture, and why nothing could be learnt.

use std::time::{Duration, Instant};

use super::Run;
use crate::check;
use crate::history::Writer;
use crate::judge::chances::{Chances, Tally};
use crate::judge::cost::{Cost, Spans};
use crate::judge::liveness::{LIVENESS, SLACK};
use crate::judge::starvation::{Fair, Judged};
use crate::torture::crew::CRASH;
use crate::torture::fault::CROWD;
use crate::torture::verdict::{Outcome, Verdict, shown, unseen};
use crate::torture::waiting::{self, Waited};
use crate::torture::{Subject, ns, picture};

/// How many descriptions of a class are kept, so that each can be held against the faults of its
/// moment.
const DETAILS: usize = 5_000;
/// How long one who gave up may take to withdraw its place, a request that goes unanswered
/// included, where no fault is in its way.
const WITHDRAW: Duration = Duration::from_secs(3);

/// Nobody in line looks more seldom (R10).
const NET_EVERY: Duration = Duration::from_secs(5);

/// What the histories say.
struct Findings {
    report: check::Report,
    waited: Waited,
    chances: Chances,
    cost: Option<Cost>,
}

impl Run {
    /// Whether a broken client has shown already what is wrong with it; then there is no more to
    /// wait for.
    pub(super) fn is_convicted(&mut self) -> bool {
        self.looked = Instant::now();
        let Some(broken) = self.broken else { return false };
        // The files are read one after the other: what happened meanwhile is in one of them and not
        // yet in another.
        let begun = Writer::now();
        // Histories that cannot be read now are read at the end, where it is an error.
        let Ok(Findings { report, waited, .. }) = self.findings() else { return false };
        // One that is excused convicts nobody: what is wrong goes on, and is seen again.
        shown(broken, &report, &waited.convictions, self.harm.excuses())
            .any(|shown| !shown.is_excused && shown.at < begun)
    }

    /// What the histories say, as far as they are written.
    fn findings(&self) -> Result<Findings, check::CheckError> {
        let (recovery, ours) =
            (self.stage.arena.about().recovery, self.options.client == Subject::Shipped);
        let longest = self.harm.longest();
        let options = check::Options {
            recovery: Some(recovery),
            recovery_slack: SLACK,
            late: self.pulse.late_of_waits(),
            linger: self.stage.arena.linger() + longest,
            withdraw: longest + WITHDRAW,
            allow: self.harm.excuses().always(),
            lease: recovery,
            // Which tokens a lock has that is not ours nobody said.
            fenced: ours && self.stage.arena.about().fenced,
            details: DETAILS,
            ..check::Options::default()
        };
        let dir = self.scratch.path();
        let report = check::check_files(&[dir], options)?;
        let mut tally = Tally::new(recovery, self.harm.excuses().of_holds());
        // What other faults cost is not known.
        let alone = self.harm.happened().keys().all(|fault| *fault == CROWD);
        let none = Spans::default();
        let mut count = if alone { self.stage.spans() } else { &none }
            .count(ours)
            .looking_every(self.looks_every().filter(|_| ours));
        let late = [self.pulse.late_of_waits(), self.pulse.late()];
        let mut waited = waiting::judge(recovery, self.fair(), late, dir, &mut tally, &mut count)?;
        let cost = count.finish();
        waited.convictions.extend(cost.and_then(|cost| cost.conviction()));
        waited.convictions.extend_from_slice(self.stage.crashes());
        // What a busy machine is forgiven is not asked here: it makes a run no weaker than the
        // schedule was.
        let judges = self.harm.excuses().judges_waits();
        let chances = tally.finish(|since, until| {
            Duration::from_nanos(until.saturating_sub(since)) > recovery + SLACK && judges(until)
        });
        Ok(Findings { report, waited, chances, cost })
    }

    /// How often whoever stands in line looks at its place, where grants are pushed.
    fn looks_every(&self) -> Option<Duration> {
        let about = self.stage.arena.about();
        let lease = about.expiry.claim_lease()?.min(about.recovery / 3);
        Some(NET_EVERY.min(2 * lease)).filter(|every| !every.is_zero())
    }

    /// How many may pass one who waits, where a line keeps the order.
    fn fair(&self) -> Fair {
        let (about, ours) = (self.stage.arena.about(), self.options.client == Subject::Shipped);
        Fair::among(self.size.clients, self.size.tasks, ours, [about.fair, about.fair_permits])
    }

    pub(super) fn judge(&mut self) -> Result<Verdict, String> {
        let about = self.stage.arena.about();
        let Findings {
            report,
            waited: Waited { mut convictions, passed_most, judged },
            chances,
            cost,
        } = self.findings().map_err(|e| {
            self.scratch.disable_cleanup(true);
            format!("{e}; histories kept in {}", self.scratch.path().display())
        })?;
        let gone = self.stage.gone().map(|(at, _)| at);
        let stuck = self.harm.stuck().map(|(at, _)| at);
        if let Some(at) = report.blind_from.into_iter().chain(gone).chain(stuck).min() {
            self.harm.blind_from(at);
            // Who was owed the lock from just before on was not owed it for long enough. A crash is
            // nobody else's doing.
            let bound = ns(about.recovery + SLACK);
            convictions.retain(|c| {
                c.class == CRASH
                    || c.at.saturating_add(if c.class == LIVENESS { bound } else { 0 }) < at
            });
        }
        let outcome = Outcome {
            about,
            seed: self.options.seed,
            replay: self
                .options
                .replay(self.time, [self.size.clients, self.size.tasks, self.size.names]),
            client: self.options.client.clone(),
            broken: self.broken,
            weak: self.weakness(&report, &chances, &judged, cost.as_ref()),
            waits: judged,
            chances,
            cost,
            faults: self.harm.happened().clone(),
            left_out: self.left_out(),
            report,
            convictions,
            passed: (passed_most, self.fair().shown()),
        };
        let verdict = Verdict::new(outcome, self.harm.excuses());
        if !verdict.has_violations() {
            return Ok(verdict);
        }
        self.scratch.disable_cleanup(true);
        Ok(verdict.kept_in(self.scratch.path().to_owned()))
    }

    fn left_out(&self) -> Vec<String> {
        let late = || {
            format!(
                "{} faults at the end of the schedule: what came before took longer than planned",
                self.left_out
            )
        };
        self.stage.arena.left_out().into_iter().chain((self.left_out > 0).then(late)).collect()
    }

    pub(super) fn draw(&self, verdict: &Verdict) -> Result<(), String> {
        let (histories, told) = ([self.scratch.path()], verdict.told(self.harm.excuses()));
        if let Some(path) = &self.options.report {
            (self.options.write)(
                path,
                &picture::page(&histories, &told).map_err(|e| e.to_string())?,
            )?;
        }
        if self.options.ascii {
            eprint!("{}", picture::ascii(&histories, &told, 100).map_err(|e| e.to_string())?);
        }
        Ok(())
    }

    /// Why nothing could be learnt, if so.
    fn weakness(
        &self,
        report: &check::Report,
        chances: &Chances,
        waits: &Judged,
        cost: Option<&Cost>,
    ) -> Option<String> {
        if report.blind_from.is_some() {
            return Some(
                "a history ended early, for want of room; what came after that is not judged"
                    .to_owned(),
            );
        }
        let stuck = self.harm.stuck().map(|(_, why)| why);
        if let Some(why) = self.stage.gone().map(|(_, why)| why.to_owned()).or(stuck) {
            return Some(format!("{why}; what came after that is not judged"));
        }
        let wanted = !self.options.faults.iter().any(|f| f == "none");
        if report.counts.holds == 0 {
            return Some("nothing was held".to_owned());
        }
        if let Some(broken) = self.broken {
            // It is known to be wrong: that nothing was seen says nothing about anybody.
            return Some(unseen(broken));
        }
        if wanted && self.harm.happened().is_empty() {
            return Some("no fault happened".to_owned());
        }
        if self.options.faults == [CROWD] && self.stage.spans().were_measured() && cost.is_none() {
            let why = "too few clients asked, or stood in line without the crowd, to measure the \
                       cost; --names 1 makes one line";
            return Some(why.to_owned());
        }
        let never = |name: &&String| wanted && !self.harm.happened().contains_key(name.as_str());
        if let Some(name) = self.options.faults.iter().find(never) {
            return Some(format!("{name} was requested and never happened"));
        }
        let (about, shipped) = (self.stage.arena.about(), self.options.client == Subject::Shipped);
        // Only our recorder writes down that a lease ended.
        let chances = Chances {
            stops: if about.expiry.is_timed() && shipped { chances.stops } else { 0 },
            ..*chances
        };
        if let Some(why) = chances.missing(
            Duration::from_nanos(report.span.1.saturating_sub(report.span.0)),
            about.recovery,
        ) {
            return Some(why);
        }
        if let Some(why) = waits.missing() {
            return Some(why);
        }
        // Others' locks have no class of ours to show.
        let class = about.class;
        if self.options.client == Subject::Shipped {
            self.harm.excuses().not_shown(class, &report.moments)
        } else {
            None
        }
    }
}
