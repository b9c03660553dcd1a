//! The schedule as it is carried out: who starts a server late makes everything after it later by
//! as much, and nothing shorter; nor does a step that takes long make a breath shorter in which
//! those who wait are judged.

use std::collections::VecDeque;
use std::time::Duration;

use super::nemesis::Planned;

/// What every step may be late without moving those after it.
const TOLERANCE: Duration = Duration::from_millis(20);

/// What is to be done at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    Begin(Planned),
    End(Planned),
}

/// See the module.
pub(super) struct Timetable {
    steps: VecDeque<(Duration, Step)>,
    end: Duration,
    /// From how long on a time without a step is a breath.
    breath: Duration,
    /// When the step that was taken last was planned, and whether it was a fault's beginning.
    last: Duration,
    began: bool,
    /// How many faults are under way.
    open: u32,
    late: Duration,
    left_out: usize,
}

impl Timetable {
    pub(super) fn new(plan: Vec<Planned>, end: Duration, breath: Duration) -> Self {
        let mut steps: Vec<(Duration, Step)> = Vec::new();
        for planned in plan {
            steps.push((planned.from, Step::Begin(planned)));
            steps.push((planned.to, Step::End(planned)));
        }
        steps.sort_by_key(|(at, _)| *at);
        Self {
            steps: steps.into(),
            end,
            breath,
            last: Duration::ZERO,
            began: false,
            open: 0,
            late: Duration::ZERO,
            left_out: 0,
        }
    }

    /// When the next step is due.
    pub(super) fn due(&mut self) -> Option<Duration> {
        while let Some((_, Step::Begin(planned))) = self.steps.front().copied()
            && planned.to + self.late > self.end
        {
            // It would not last its time, or the run would not end at its own.
            self.steps.retain(
                |(_, step)| !matches!(step, Step::Begin(p) | Step::End(p) if *p == planned),
            );
            self.left_out += 1;
        }
        self.steps.front().map(|(at, _)| *at + self.late)
    }

    /// Takes that step, `now`.
    pub(super) fn take(&mut self, now: Duration) -> Option<Step> {
        let late = now.saturating_sub(self.due()?);
        if late > TOLERANCE {
            self.late += late;
        }
        let (planned, step) = self.steps.pop_front()?;
        self.last = planned;
        self.began = matches!(step, Step::Begin(_));
        self.open = if self.began { self.open + 1 } else { self.open.saturating_sub(1) };
        Some(step)
    }

    /// The step that was taken last took so long: a breath begins when it is over, and so does a
    /// fault that is alone and lasts as long.
    pub(super) fn took(&mut self, time: Duration) {
        let alone = self.open == u32::from(self.began);
        if alone && self.steps.front().is_some_and(|(next, _)| *next - self.last >= self.breath) {
            self.late += time;
        }
    }

    /// How many faults of the schedule found no time any more.
    pub(super) fn left_out(&self) -> usize {
        self.left_out
    }
}

#[cfg(test)]
mod tests {
    use super::super::fault::{Fault, Hits};
    use super::*;

    const fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn planned(client: u32, from: u64, to: u64) -> Planned {
        let fault = Fault { name: "x", hits: Hits::Client, excuses: &[], what: "" };
        Planned { fault, client, from: ms(from), to: ms(to) }
    }

    /// Carries it out; ending the fault of client 0 takes so long.
    fn carried_out(plan: Vec<Planned>, restart: Duration) -> (Vec<(Step, Duration)>, usize) {
        let mut table = Timetable::new(plan, ms(3_000), ms(700));
        let (mut now, mut done) = (Duration::ZERO, Vec::new());
        while let Some(due) = table.due() {
            now = now.max(due);
            let Some(step) = table.take(now) else { break };
            done.push((step, now));
            if matches!(step, Step::End(planned) if planned.client == 0) {
                now += restart;
                table.took(restart);
            }
        }
        (done, table.left_out())
    }

    #[test]
    fn a_restart_that_takes_long_moves_what_comes_after_it_and_makes_no_fault_shorter() {
        let plan = vec![
            planned(0, 100, 500),
            planned(1, 400, 900),
            planned(2, 1_000, 1_100),
            planned(3, 1_200, 1_900),
        ];
        let (in_time, left_out) = carried_out(plan.clone(), ms(5));
        assert_eq!(left_out, 0);
        for (step, at) in &in_time {
            let (Step::Begin(p) | Step::End(p)) = step;
            assert_eq!(*at, if matches!(step, Step::Begin(_)) { p.from } else { p.to });
        }
        let (late, left_out) = carried_out(plan.clone(), ms(1_000));
        let order =
            |done: &[(Step, Duration)]| done.iter().map(|(step, _)| *step).collect::<Vec<_>>();
        assert_eq!(
            (order(&late), left_out),
            (order(&in_time), 0),
            "the same faults, composed in the same way"
        );
        for one in &plan {
            let at = |wanted: Step| {
                late.iter().find(|(step, _)| *step == wanted).map(|(_, at)| *at).unwrap_or_default()
            };
            let lasted = at(Step::End(*one)) - at(Step::Begin(*one));
            assert!(lasted >= one.to - one.from, "{one:?} lasted {lasted:?}");
        }
        let (later, left_out) = carried_out(plan, ms(2_450));
        assert_eq!((later.len(), left_out), (4, 2), "what would not end in time is not begun");
    }

    #[test]
    fn a_breath_begins_when_what_was_done_before_it_is_over() {
        let (long, brief) = (planned(1, 1_200, 1_300), planned(1, 1_199, 1_300));
        for (next, begins) in [(long, 1_600), (brief, 1_199)] {
            let (done, _) = carried_out(vec![planned(0, 100, 500), next], ms(400));
            assert_eq!(done[2], (Step::Begin(next), ms(begins)));
        }
        let beside = planned(1, 200, 1_500);
        let (done, _) = carried_out(vec![planned(0, 100, 500), beside], ms(400));
        assert_eq!(done[3], (Step::End(beside), ms(1_500)), "who is still hit has no breath");
    }
}
