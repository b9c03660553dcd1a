//! Releases whose callers await the answer: those of a crowd leave together.

use super::support::{Quorum, claim};
use crate::engine::redis::tests::releases::{hear, start};
use crate::engine::redis::tests::support::granted;
use crate::engine::{Answer, End, Released};

/// How often a member read something of its clients.
fn reads(quorum: &Quorum) -> u64 {
    let info = quorum.0[0].command(&["INFO", "stats"]).concat();
    let reads = info.lines().find_map(|line| line.strip_prefix("total_reads_processed:"));
    reads.and_then(|reads| reads.trim().parse().ok()).expect("it counts them")
}

#[test]
fn releases_of_many_callers_that_await_them_reach_a_member_in_few_messages() {
    let quorum = Quorum::of(3);
    let process = quorum.process();
    quorum.warm(&process);
    let holds: Vec<_> = (0..60)
        .map(|n| {
            let claim = claim(&process, &format!("n{n}"));
            granted(process.attempt_until(&claim));
            claim.id
        })
        .collect();
    let (before, stalled) = (reads(&quorum), process.stall());
    let released: Vec<Answer<Released>> =
        holds.iter().map(|hold| process.engine.release_awaited(&[*hold], None)).collect();
    drop(stalled);
    for answer in released {
        let ends = process.wait(answer).ends;
        assert!(matches!(ends.as_slice(), [End::Freed]), "{ends:?}");
    }
    let reads = reads(&quorum) - before;
    assert!(reads < 30, "{reads} messages for 60 releases");
}

#[test]
fn r6_r5_awaited_releases_are_written_though_the_process_ends_or_their_callers_leave() {
    let quorum = Quorum::of(3);
    let until_free = || (0..50).for_each(|n| quorum.until_clean(&format!("n{n}")));
    let mut child = start("exit while releases are awaited", &quorum.url());
    assert!(child.wait().unwrap().success());
    until_free();
    let left = "leave awaited releases while the keeper stands still";
    let mut child = start(left, &quorum.url());
    hear(&mut child, "left");
    until_free();
    child.kill().unwrap();
    child.wait().unwrap();
}
