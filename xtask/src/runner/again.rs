//! Tests that failed run again, alone, once everything else has ended: one that was only late, or
//! that something beside it disturbed, passes then.

use super::{Again, Done, Job, Over, Tests, Verdict, copy, one};
use crate::Outcome;
use crate::closing::sum;
use crate::sandbox::Sandbox;

/// How many failed tests of a program run again by their names; more have one cause, such as a
/// server that did not start.
const BY_NAME: usize = 10;
/// How many programs run again as a whole; more are no accident.
const WHOLE: usize = 3;

/// What a program that failed came to in the end.
pub struct Judged {
    /// Whether something failed each time, or may not run again.
    pub outcome: Outcome,
    /// The closing lines that count.
    pub closing: Vec<String>,
    /// What there is to say of each failure, of the first one too.
    pub why: Vec<String>,
    /// How many tests failed in these closing lines, and passed later.
    pub rescued: u64,
    /// What passed at its second try.
    pub flaky: Vec<String>,
    /// What passed with no other test in its process.
    pub alone: Vec<String>,
}

/// Runs again what may, of these programs that failed, and tells of each run.
pub fn run(
    failed: Vec<Done>,
    sandbox: &Sandbox,
    over: Over<'_>,
    mut tell: impl FnMut(&Done),
) -> Vec<Judged> {
    let too_many = failed.iter().filter(|done| runs_whole(done)).count() > WHOLE;
    let mut again = |job: Job| {
        let done = one(job, 0, sandbox, over);
        tell(&done);
        done.verdict
    };
    let mut judged = Vec::new();
    for done in failed {
        let whole = runs_whole(&done);
        let Done { job, verdict, .. } = done;
        judged.push(match verdict.again.clone() {
            Again::Nothing => Judged::at_once(verdict),
            _ if whole && too_many => Judged::at_once(verdict),
            Again::Tests(names) if !whole => by_name(&job, &names, verdict, &mut again),
            _ => all(job, verdict, &mut again),
        });
    }
    judged
}

fn runs_whole(done: &Done) -> bool {
    match &done.verdict.again {
        Again::Nothing => false,
        Again::Tests(names) => names.len() > BY_NAME || done.job.tests == Tests::All,
        Again::All => true,
    }
}

impl Judged {
    fn at_once(verdict: Verdict) -> Self {
        let Verdict { outcome, closing, why, .. } = verdict;
        Self { outcome, closing, why, rescued: 0, flaky: Vec::new(), alone: Vec::new() }
    }
}

fn all(mut job: Job, first: Verdict, again: &mut impl FnMut(Job) -> Verdict) -> Judged {
    let name = match &first.again {
        Again::Tests(names) => format!("{} ({} tests)", job.name, names.len()),
        _ => format!("{} (it hung)", job.name),
    };
    job.name = format!("again:{}", job.name);
    let second = again(job);
    let why = [first.why, second.why.clone()].concat();
    let flaky = second.outcome.is_ok().then_some(name).into_iter().collect();
    Judged { why, flaky, ..Judged::at_once(second) }
}

fn by_name(
    job: &Job,
    names: &[String],
    first: Verdict,
    again: &mut impl FnMut(Job) -> Verdict,
) -> Judged {
    let mut judged = Judged::at_once(first);
    let mut fail_again = |names: &[String]| {
        let verdict = again(job.chosen(names));
        judged.why.extend(verdict.why.iter().cloned());
        still_failing(names.len(), verdict)
    };
    let mut red = Vec::new();
    let (mut flaky, mut alone) = (Vec::new(), Vec::new());
    match fail_again(names) {
        Err(why) => red.push(why),
        Ok(still) => {
            for name in names {
                let into = if !still.contains(name) {
                    &mut flaky
                } else if fail_again(std::slice::from_ref(name)) == Ok(Vec::new()) {
                    &mut alone
                } else {
                    &mut red
                };
                into.push(name.clone());
            }
        }
    }
    judged.rescued = (flaky.len() + alone.len()) as u64;
    let full = |names: Vec<String>| {
        names.into_iter().map(|name| format!("{}: {name}", job.name)).collect::<Vec<_>>()
    };
    (judged.flaky, judged.alone) = (full(flaky), full(alone));
    judged.outcome = if red.is_empty() {
        Ok(())
    } else {
        judged.outcome.map_err(|text| format!("{text}; again: {}", red.join(", ")))
    };
    judged
}

/// Which of so many tests failed once more, if it was they that ran and nothing else went wrong.
fn still_failing(ran: usize, verdict: Verdict) -> Result<Vec<String>, String> {
    let still = match (verdict.outcome, verdict.again) {
        (Ok(()), _) => Vec::new(),
        (Err(_), Again::Tests(still)) => still,
        (Err(text), _) => return Err(text),
    };
    let passed = sum(&verdict.closing).passed;
    if passed + still.len() as u64 == ran as u64 {
        Ok(still)
    } else {
        Err(format!("{passed} of {ran} passed, {} failed", still.len()))
    }
}

impl Job {
    /// The same program with these of its tests, one after the other.
    fn chosen(&self, names: &[String]) -> Self {
        Self {
            name: format!("again:{}", self.name),
            command: copy(&self.command),
            tests: Tests::Named(names.to_vec()),
            threads: Some(1),
            ..*self
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;
    use std::process::Command;
    use std::time::{Duration, Instant};

    use super::*;
    use crate::closing::Sum;

    /// What a test runner in the shell says; `$n` is the number of its call, and `asked` what
    /// stands behind `--exact` there.
    const RUNNER: &str = "echo >> \"$0\"; n=$(wc -l < \"$0\"); asked() { case \"$args\" in \
        *'--exact '\"$1\") ;; *) echo \"not $1: $args\"; exit 3; esac; }; args=\"$*\"; \
        end() { p=$1; shift; echo failures:; printf '\\n---- %s stdout ----\\n' \"$@\"; \
        echo \"$words\"; printf '\\nfailures:\\n'; printf '    %s\\n' \"$@\"; \
        printf '\\ntest result: FAILED. %s passed; %s failed; 0 ignored\\n' $p $#; exit 101; }; \
        good() { echo \"test result: ok. $1 passed; 0 failed; 0 ignored\"; exit 0; }; ";

    struct Tried {
        outcome: Outcome,
        sum: Sum,
        rescued: u64,
        flaky: Vec<String>,
        alone: Vec<String>,
        /// How often each program ran.
        calls: Vec<usize>,
    }

    /// Tests of these programs, by their names.
    fn named(tests: usize) -> Tests {
        Tests::Named((0..tests).map(|test| format!("a::{test}")).collect())
    }

    /// Runs programs that are scripts, with these tests each, side by side first, and what fails
    /// again.
    fn tried(tests: Tests, scripts: &[&str]) -> Tried {
        let sandbox = Sandbox::new().unwrap();
        let place = sandbox.folder("calls").unwrap();
        let counts: Vec<PathBuf> = (0..scripts.len()).map(|n| place.join(n.to_string())).collect();
        let jobs = scripts.iter().zip(&counts).enumerate().map(|(n, (script, count))| {
            let mut command = Command::new("sh");
            command.args(["-c", &format!("{RUNNER}{script}")]).arg(count);
            let tests = tests.clone();
            Job { tests, ..Job::new(&format!("p{n}"), command) }
        });
        let until = Instant::now() + Duration::from_secs(600);
        let over = || Instant::now() > until;
        let (mut closing, mut failed) = (Vec::new(), Vec::new());
        super::super::run(jobs.collect(), 2, &sandbox, &over, |done| {
            if done.verdict.outcome.is_ok() {
                closing.extend(done.verdict.closing);
            } else {
                failed.push(done);
            }
        });
        let mut all = Tried {
            outcome: Ok(()),
            sum: Sum::default(),
            rescued: 0,
            flaky: Vec::new(),
            alone: Vec::new(),
            calls: Vec::new(),
        };
        for judged in run(failed, &sandbox, &over, |_| {}) {
            closing.extend(judged.closing);
            all.outcome = all.outcome.and(judged.outcome);
            all.rescued += judged.rescued;
            all.flaky.extend(judged.flaky);
            all.alone.extend(judged.alone);
        }
        all.sum = sum(&closing);
        let lines = |path| std::fs::read_to_string(path).unwrap_or_default().lines().count();
        all.calls = counts.iter().map(lines).collect();
        all
    }

    #[test]
    fn a_test_that_passes_at_its_second_try_is_flaky_and_one_of_the_third_passed_alone() {
        let script = "case $n in 1) end 5 a::b a::c a::d;; \
                      2) asked 'a::b a::c a::d'; end 1 a::c a::d;; \
                      3) asked a::c; good 1;; 4) asked a::d; good 1;; esac";
        let ran = tried(named(7), &[script, "good 7"]);
        assert_eq!(ran.outcome, Ok(()));
        assert_eq!(
            (ran.flaky, ran.alone),
            (vec!["p0: a::b".into()], vec!["p0: a::c".into(), "p0: a::d".into()])
        );
        assert_eq!((ran.rescued, ran.calls), (3, vec![4, 1]));
        assert_eq!((ran.sum.passed, ran.sum.failed), (12, 3), "what the first tries said");
    }

    #[test]
    fn a_test_that_fails_each_time_is_red_and_so_is_a_call_that_ran_no_test() {
        let ran = tried(
            named(7),
            &["case $n in 1) end 5 a::b a::c;; 2) end 1 a::c;; *) end 0 a::c; esac"],
        );
        assert!(ran.outcome.is_err_and(|text| text.ends_with("; again: a::c")));
        assert_eq!((ran.rescued, ran.calls), (1, vec![3]));
        let ran = tried(named(6), &["case $n in 1) end 5 a::b;; *) good 0; esac"]);
        assert!(ran.outcome.is_err_and(|text| text.ends_with(" ran 0 of 1 tests")));
        assert_eq!(ran.flaky, [""; 0]);
    }

    #[test]
    fn what_no_slow_machine_explains_runs_once() {
        for script in [
            // Each would pass at its second call.
            "[ $n = 1 ] || good 1; words='left: 2: BROKEN LOCK: two holders' end 3 a::b",
            "[ $n = 1 ] || good 1; words='BROKEN LOCK: a token went back' end 3 a::b",
            "[ $n = 1 ] || good 1; kill -ABRT $$",
            "[ $n = 1 ] || good 1; echo no closing line; exit 101",
            "[ $n = 1 ] || good 1; echo 'test result: ok. 1 passed; 0 failed'; exit 1",
            // A name that something else was printed into.
            "[ $n = 1 ] || good 1; echo failures:; echo '    a::b'; echo 'x    c::d'; \
             echo 'test result: FAILED. 1 passed; 2 failed'; exit 101",
            "[ $n = 1 ] || good 1; exit 0",
            // Fewer tests than it was to run.
            "[ $n = 1 ] || good 4; good 3",
        ] {
            let ran = tried(named(4), &[script]);
            assert!(ran.outcome.is_err() && ran.calls == [1], "{script}: {:?}", ran.calls);
        }
        // Nor does it go on once it shows at the second try.
        let script = "case $n in 1) end 3 a::b;; *) words='BROKEN LOCK: lost' end 0 a::b; esac";
        let ran = tried(named(4), &[script]);
        assert!(ran.outcome.is_err_and(|text| text.contains("BROKEN LOCK: lost")));
        assert_eq!(ran.calls, [2]);
    }

    #[test]
    fn what_has_one_cause_runs_again_as_a_whole_and_not_in_too_many_programs() {
        let eleven = "[ $n = 1 ] || good 11; end 0 1 2 3 4 5 6 7 8 9 10 11";
        let ran = tried(named(11), &[eleven, eleven, eleven]);
        assert_eq!((&ran.outcome, &ran.calls), (&Ok(()), &vec![2, 2, 2]));
        assert_eq!(ran.flaky.len(), 3);
        assert!(ran.flaky[0].ends_with(" (11 tests)"), "{:?}", ran.flaky);
        assert_eq!((ran.sum.passed, ran.sum.failed, ran.rescued), (33, 0, 0));
        let ran = tried(named(11), &[eleven; 4]);
        assert!(ran.outcome.is_err() && ran.calls == [1; 4], "{:?}", ran.calls);
        // Of documentation, whose tests have blanks in their names. Cargo says which crate it runs,
        // and the first one is good.
        let script = "echo '    Finished x'; echo 'test result: ok. 0 passed; 0 failed'; \
                      [ $n = 1 ] || good 2; end 1 'src/lib.rs - a (line 3)'";
        let ran = tried(Tests::All, &[script]);
        assert_eq!((ran.outcome, ran.calls), (Ok(()), vec![2]));
        let ran = tried(Tests::All, &["end 1 'src/lib.rs - a (line 3)'"]);
        assert!(ran.outcome.is_err() && ran.calls == [2], "once more, and no more");
    }
}
