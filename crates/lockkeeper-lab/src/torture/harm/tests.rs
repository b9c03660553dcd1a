use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

use super::super::Subject;
use super::super::arena::{About, Arena};
use super::super::excuse::Excuses;
use super::super::fault::{FORGOTTEN, Fault, Hits};
use super::super::pulse::Processes;
use super::super::stage::{Size, Stage};
use super::*;
use crate::check::{Class, Late, Moment};
use crate::history::{Reader, Role, WriterOptions};

/// Answers what it is told to, and notes what is asked of it.
#[derive(Default)]
struct Script {
    strikes: VecDeque<Result<(), Failed>>,
    mends: VecDeque<Result<Mended, String>>,
    asked: Vec<&'static str>,
}

struct Fake(Rc<RefCell<Script>>);

impl Arena for Fake {
    fn url(&mut self, _: u32) -> Result<String, String> {
        Err("nobody comes".to_owned())
    }
    fn about(&self) -> About {
        let class = lockkeeper::Class::Efficiency;
        let expiry = lockkeeper::Expiry::PerHold { claim_lease: None };
        let (engine, recovery) = ("fake", Duration::from_secs(1));
        About { engine, class, expiry, recovery, fair: false, fair_permits: false, fenced: true }
    }
    fn strike(&mut self, _: &'static str, _: u32) -> Result<(), Failed> {
        let mut script = self.0.borrow_mut();
        script.asked.push("strike");
        script.strikes.pop_front().unwrap_or(Ok(()))
    }
    fn mend(&mut self, _: &'static str, _: u32) -> Result<Mended, String> {
        let mut script = self.0.borrow_mut();
        script.asked.push("mend");
        script.mends.pop_front().unwrap_or(Ok(Mended::Ended))
    }
}

struct Run {
    harm: Harm,
    stage: Stage,
    script: Rc<RefCell<Script>>,
    log: Writer,
    dir: tempfile::TempDir,
}

impl Run {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let options = WriterOptions { role: Role::Nemesis, ..WriterOptions::default() };
        let log = Writer::create(dir.path().join("nemesis.lkh"), options).unwrap();
        let script = Rc::new(RefCell::new(Script::default()));
        let size = Size { clients: 1, tasks: 1, names: 1 };
        let arena = Box::new(Fake(script.clone()));
        let (told, home) = ((log.clone(), Processes::default()), dir.path().to_owned());
        let stage = Stage::new(Subject::Shipped, 1, size, home, arena, told);
        let harm = Harm::new(log.clone(), Excuses::new(false, Duration::ZERO, Late::never()));
        Self { harm, stage, script, log, dir }
    }

    fn answers(&self, strikes: &[Result<(), Failed>], mends: &[Result<Mended, String>]) {
        let mut script = self.script.borrow_mut();
        (script.strikes, script.mends) =
            (strikes.iter().cloned().collect(), mends.iter().cloned().collect());
    }

    fn begin(&mut self) {
        self.harm.begin(FLUSH, &mut self.stage);
    }

    fn end(&mut self) {
        self.harm.end(&FLUSH, &mut self.stage);
    }

    fn asked(&self) -> Vec<&'static str> {
        std::mem::take(&mut self.script.borrow_mut().asked)
    }

    /// Whether two holders that are seen now, of whom one was confirmed so long ago, would be
    /// excused.
    fn excuses_now(&self) -> bool {
        let now = Writer::now();
        self.harm.excuses().expects_at(Class::Overlap, Moment::at(now).since(now))
    }

    /// What is written down.
    fn told(&self) -> Vec<What> {
        self.log.finish().unwrap();
        let mut reader = Reader::open(self.dir.path().join("nemesis.lkh")).unwrap();
        let all = std::iter::from_fn(move || reader.next().unwrap()).map(|(_, record)| record.what);
        all.filter(|what| *what != What::Name).collect()
    }
}

const FLUSH: Planned = Planned {
    fault: Fault { name: "flush", hits: Hits::Server, excuses: FORGOTTEN, what: "" },
    client: 0,
    from: Duration::ZERO,
    to: Duration::from_secs(1),
};

fn undone() -> Result<(), Failed> {
    Err(Failed::Undone("it did not".to_owned()))
}

fn not_yet() -> Result<Mended, String> {
    Err("not yet".to_owned())
}

#[test]
fn a_fault_that_began_is_ended_once_counted_and_excuses_until_then() {
    let mut run = Run::new();
    run.begin();
    assert!(run.harm.is_under_way("flush") && run.excuses_now());
    run.end();
    run.end();
    run.harm.end_all(&mut run.stage);
    assert_eq!(run.asked(), ["strike", "mend"]);
    assert_eq!(run.harm.happened().get("flush"), Some(&1));
    std::thread::sleep(Duration::from_millis(1));
    assert!(!run.excuses_now() && run.harm.longest() > Duration::ZERO);
    assert_eq!(run.told(), [What::FaultBegin, What::FaultEnd]);
}

#[test]
fn a_fault_that_could_not_begin_is_neither_ended_nor_counted_and_excuses_nothing() {
    let mut run = Run::new();
    run.answers(&[undone()], &[]);
    run.begin();
    assert!(!run.harm.is_under_way("flush") && !run.excuses_now());
    run.end();
    run.harm.end_all(&mut run.stage);
    assert_eq!(run.asked(), ["strike"], "what is right would be made wrong by ending it");
    assert!(run.harm.happened().is_empty());
    assert_eq!(
        run.told(),
        [What::FaultBegin, What::FaultEnd],
        "and nobody takes it to be under way"
    );
}

#[test]
fn what_was_begun_by_half_is_ended_at_once_not_counted_and_excuses_what_it_did() {
    let mut run = Run::new();
    run.answers(&[Err(Failed::Half("by half".to_owned()))], &[]);
    let before = Writer::now();
    run.begin();
    assert_eq!(run.asked(), ["strike", "mend"]);
    run.end();
    assert!(run.asked().is_empty() && run.harm.happened().is_empty());
    let moment = Moment::at(Writer::now()).since(before);
    assert!(run.harm.excuses().expects_at(Class::Overlap, moment));
    assert_eq!(run.told(), [What::FaultBegin, What::FaultEnd]);
}

#[test]
fn a_fault_that_hit_nobody_is_not_counted_and_excuses_nothing() {
    let mut run = Run::new();
    run.answers(&[], &[Ok(Mended::HitNobody("nobody was there"))]);
    run.begin();
    run.end();
    assert!(run.harm.happened().is_empty() && !run.excuses_now());
    let all_of_it = Moment::at(Writer::now()).since(0);
    assert!(!run.harm.excuses().expects_at(Class::Overlap, all_of_it));
    assert_eq!(run.told(), [What::FaultBegin, What::FaultEnd]);
}

#[test]
fn what_could_not_be_ended_is_under_way_excuses_and_is_tried_again_until_it_is() {
    let mut run = Run::new();
    run.answers(&[], &[not_yet(), not_yet()]);
    run.begin();
    run.end();
    assert!(run.harm.is_under_way("flush") && run.excuses_now());
    assert!(run.harm.stuck().is_some_and(|(_, why)| why == "flush could not be ended: not yet"));
    run.end();
    // The next fault of that place would be mended in its stead.
    run.begin();
    assert_eq!(run.asked(), ["strike", "mend"], "neither is done meanwhile");
    let begun = Instant::now();
    while run.harm.is_under_way("flush") {
        assert!(begun.elapsed() < Duration::from_secs(120), "it is not tried again");
        run.harm.look(&mut run.stage);
        std::thread::yield_now();
    }
    assert_eq!((run.asked(), run.harm.stuck()), (vec!["mend", "mend"], None));
    assert!(begun.elapsed() >= AGAIN_EVERY && run.harm.happened().get("flush") == Some(&1));
    assert_eq!(run.told(), [What::FaultBegin, What::FaultEnd]);
}

#[test]
fn what_cannot_be_ended_is_said_and_is_under_way_to_the_end() {
    let mut run = Run::new();
    run.begin();
    let before = Writer::now();
    run.answers(&[], &[not_yet(), not_yet(), not_yet()]);
    run.end();
    let first = run.harm.under_way.first_mut().and_then(|u| u.stuck.as_mut()).unwrap();
    // As if it had been tried for so long.
    first.since -= STUCK_MAX;
    assert!(run.harm.is_for_good());
    run.harm.end_all(&mut run.stage);
    let (since, why) = run.harm.stuck().unwrap();
    assert!(since >= before && why.contains("flush could not be ended"), "{why}");
    assert_eq!(run.told(), [What::FaultBegin]);
}

#[test]
fn where_no_client_could_be_started_there_is_nothing_to_wait_for() {
    let mut run = Run::new();
    run.stage.begin(false);
    assert!(!run.stage.is_deserted(true), "one is about to come back");
    assert!(run.stage.is_deserted(false));
    assert!(run.stage.gone().is_some_and(|(_, why)| why == "no client could be started"));
}
