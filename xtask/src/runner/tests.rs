use super::*;
use std::fs;
use std::path::{Path, PathBuf};

/// What ran, and in which order it ended.
struct Run {
    done: Vec<Done>,
    sandbox: Sandbox,
}

impl Run {
    fn of(jobs: Vec<Job>, seats: usize, over: Over<'_>) -> Self {
        let (sandbox, mut done) = (Sandbox::new().unwrap(), Vec::new());
        run(jobs, seats, &sandbox, over, |one| done.push(one));
        Self { done, sandbox }
    }

    fn one(&self, name: &str) -> &Done {
        self.done.iter().find(|done| done.job.name == name).unwrap()
    }

    fn outcome(&self, name: &str) -> Result<(), &str> {
        self.one(name).verdict.outcome.as_ref().copied().map_err(String::as_str)
    }

    fn printed(&self, name: &str) -> String {
        let mut out = Vec::new();
        self.one(name).print(&mut out).unwrap();
        String::from_utf8(out).unwrap()
    }
}

fn job(name: &str, seconds: f64, script: &str) -> Job {
    let mut command = Command::new("sh");
    command.args(["-c", script]);
    Job { seconds, ..Job::new(name, command) }
}

/// A directory in which scripts meet.
struct Place(PathBuf);

impl Place {
    fn new(name: &str) -> Self {
        let place =
            std::env::temp_dir().join(format!("xtask-runner-{name}-{}", std::process::id()));
        fs::create_dir_all(&place).unwrap();
        Self(place)
    }

    fn shell(&self) -> String {
        format!("cd '{}' || exit 70; ", self.0.display())
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.0.join(name)).unwrap_or_default()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        _ = fs::remove_dir_all(&self.0);
    }
}

/// Until the time of a test is up, which no test of this file reaches.
fn patience() -> impl Fn() -> bool + Sync {
    let until = Instant::now() + Duration::from_secs(600);
    move || Instant::now() > until
}

/// Waits in a script until a file is there.
fn until(file: &str) -> String {
    format!("until [ -e {file} ]; do sleep 0.01; done; ")
}

#[test]
fn programs_run_side_by_side_and_none_is_interrupted_by_what_another_prints() {
    let place = Place::new("meet");
    // Each prints, waits for the other, and prints again: one after the other they would wait for
    // ever.
    let script = |own: &str, other: &str| {
        format!(
            "{}echo {own} begins; touch {own}; {}echo {own} 'to the log' >&2; echo {own} ends",
            place.shell(),
            until(other)
        )
    };
    let jobs = vec![job("one", 1.0, &script("one", "two")), job("two", 1.0, &script("two", "one"))];
    let ran = Run::of(jobs, 2, &patience());
    for name in ["one", "two"] {
        assert_eq!(ran.outcome(name), Ok(()));
        let printed = ran.printed(name);
        let (head, output) = printed.trim_start().split_once('\n').unwrap();
        assert!(head.contains(&format!("{name}: ok after")), "{head}");
        assert_eq!(output, format!("{name} begins\n{name} to the log\n{name} ends\n"));
    }
}

#[test]
fn no_more_run_than_there_are_seats_and_the_longest_are_first() {
    let place = Place::new("order");
    let script = |name: &str| {
        format!(
            "{}echo {name} >> order; [ ! -e here ] || exit 7; touch here; sleep 0.05; rm here",
            place.shell()
        )
    };
    let names = [("short", 1.0), ("longest", 9.0), ("long", 5.0)];
    let ran = Run::of(
        names.map(|(name, seconds)| job(name, seconds, &script(name))).into(),
        1,
        &patience(),
    );
    assert_eq!(place.read("order"), "longest\nlong\nshort\n");
    let heads: Vec<_> = ran.done.iter().map(|done| ran.printed(&done.job.name)).collect();
    assert!(
        heads[0].contains("--- 1/3 longest: ok") && heads[2].contains("--- 3/3 short: ok"),
        "{heads:?}"
    );
}

#[test]
fn what_measures_runs_after_the_others_and_alone() {
    let place = Place::new("alone");
    let beside =
        |name: &str| format!("{}touch beside-{name}; sleep 0.1; rm beside-{name}", place.shell());
    let alone = |name: &str| {
        let script =
            format!("{}! ls beside-* alone 2>&-; touch alone; sleep 0.1; rm alone", place.shell());
        Job { alone: true, ..job(name, 100.0, &format!("set -e; {script}")) }
    };
    let jobs = vec![
        alone("first"),
        job("a", 1.0, &beside("a")),
        alone("second"),
        job("b", 1.0, &beside("b")),
    ];
    let ran = Run::of(jobs, 4, &patience());
    let last: Vec<&str> = ran.done[2..].iter().map(|done| done.job.name.as_str()).collect();
    assert_eq!(last, ["first", "second"]);
    assert!(
        ran.done.iter().all(|done| done.verdict.outcome.is_ok()),
        "{}{}",
        ran.printed("first"),
        ran.printed("second")
    );
}

#[test]
fn a_program_that_fails_is_named_with_its_failures_and_the_others_go_on() {
    let failure = "echo failures:; echo '---- a::b stdout ----'; echo 'left: 1'; \
                   echo 'test result: FAILED. 2 passed; 1 failed; 0 ignored'";
    let jobs = vec![
        job("bad", 9.0, &format!("{failure}; exit 101")),
        job("good", 1.0, "echo 'test result: ok. 3 passed; 0 failed; 0 ignored'"),
        Job { command: Command::new("/nonexistent/program"), ..job("missing", 5.0, "") },
    ];
    let ran = Run::of(jobs, 2, &patience());
    assert!(
        ran.outcome("bad")
            .is_err_and(|text| text.starts_with("bad (sh -c") && text.contains("101")),
        "{:?}",
        ran.outcome("bad")
    );
    assert!(ran.printed("bad").contains("bad: FAILED after"), "{}", ran.printed("bad"));
    assert_eq!(ran.outcome("good"), Ok(()));
    assert!(
        ran.outcome("missing").is_err_and(|text| text.contains("program")),
        "{:?}",
        ran.outcome("missing")
    );
    let why = &ran.one("bad").verdict.why;
    assert!(
        why[0].starts_with("--- bad ")
            && why[1..3] == ["---- a::b stdout ----", "left: 1"]
            && why[3].starts_with("the machine meanwhile: load ")
            && why.len() == 4,
        "{why:?}"
    );
    assert!(ran.one("good").verdict.why.is_empty());
    let closing: Vec<String> =
        ran.done.iter().flat_map(|done| done.verdict.closing.clone()).collect();
    assert!(
        closing.contains(&"test result: ok. 3 passed; 0 failed; 0 ignored".to_owned()),
        "{closing:?}"
    );
    assert_eq!(closing::sum(&closing), closing::Sum { passed: 5, failed: 1, ..Default::default() });
}

#[test]
fn a_job_that_names_no_test_is_red_and_does_not_run_whatever_its_program_has() {
    let place = Place::new("none");
    let script = format!("{}touch began; exit 0", place.shell());
    let none = Job { tests: Tests::Named(Vec::new()), ..job("empty", 1.0, &script) };
    let ran = Run::of(vec![none, job("all", 1.0, "exit 0")], 1, &patience());
    assert_eq!(ran.outcome("empty"), Err("empty has no test to run"));
    assert!(!place.0.join("began").exists(), "it would have run all of it");
    assert_eq!(ran.outcome("all"), Ok(()));
}

#[test]
fn at_the_limit_all_are_ended_and_the_one_that_hangs_is_named_with_what_it_said() {
    let place = Place::new("limit");
    let long = "has been running for over 60 seconds";
    let script = |name: &str| {
        let said = format!(
            "echo 'test {name}::c {long}'; echo 'test {name}::d {long}'; \
             echo 'test {name}::c ... ok'"
        );
        format!("{}{said}; touch {name}; sleep 606 & exec sleep 607", place.shell())
    };
    let jobs = vec![
        job("one", 9.0, &script("one")),
        job("two", 9.0, &script("two")),
        job("late", 1.0, "exit 0"),
    ];
    let began = |name: &str| place.0.join(name).exists();
    let ran = Run::of(jobs, 2, &|| began("one") && began("two"));
    for name in ["one", "two"] {
        let hangs = format!("did not end ({name}::d): {name} (sh -c");
        assert!(
            ran.outcome(name).is_err_and(|text| text.starts_with(&hangs)),
            "{:?}",
            ran.outcome(name)
        );
        assert!(
            ran.printed(name).contains(&format!("test {name}::c ... ok\n")),
            "{}",
            ran.printed(name)
        );
    }
    assert_eq!(ran.outcome("late"), Err("not run: late"));
    assert!(ran.sandbox.strays(|| false).is_empty(), "what they had started is gone, too");
}

#[test]
fn what_a_program_leaves_behind_is_told_of_it_and_not_of_its_neighbours() {
    let place = Place::new("stray");
    // Until it is what it is to be: in between it shows nothing of what it is.
    let sleeps = "sleep 608 > /dev/null 2>&1 & until grep -qa ^sleep /proc/$!/cmdline; do :; done";
    let litters = format!("{}{sleeps}; echo $! > pid; {}", place.shell(), until("looked"));
    let tidy = format!(
        "{}{}cat /proc/$(cat pid)/cmdline > looked.new; mv looked.new looked; sleep 0.3",
        place.shell(),
        until("pid")
    );
    let ran = Run::of(vec![job("litters", 1.0, &litters), job("tidy", 1.0, &tidy)], 2, &patience());
    assert!(place.read("looked").contains("sleep"), "they ran side by side");
    let left = ran.outcome("litters").unwrap_err();
    assert!(left.contains("left processes behind") && left.contains("sleep 608"), "{left}");
    assert_eq!(ran.outcome("tidy"), Ok(()));
    assert!(ran.sandbox.strays(|| false).is_empty());
}

#[test]
fn each_program_has_a_home_and_temporary_files_of_its_own_which_go_with_it() {
    let place = Place::new("homes");
    let script = |name: &str| {
        format!(
            "cd && pwd > '{}/{name}'; [ -z \"$(ls -A \"$TMPDIR\")\" ] && touch \"$TMPDIR/x\"",
            place.0.display()
        )
    };
    let ran = Run::of(
        vec![job("one", 1.0, &script("one")), job("two", 1.0, &script("two"))],
        1,
        &patience(),
    );
    assert_eq!((ran.outcome("one"), ran.outcome("two")), (Ok(()), Ok(())));
    let homes = [place.read("one"), place.read("two")];
    assert_ne!(homes[0], homes[1]);
    assert!(homes.iter().all(|home| !Path::new(home.trim()).exists()), "{homes:?}");
}
