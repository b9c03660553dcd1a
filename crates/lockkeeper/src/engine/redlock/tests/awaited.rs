//! Releases whose callers await the answer.

use super::support::{Quorum, claim};
use crate::engine::End;
use crate::engine::redis::tests::releases::{hear, program, start};
use crate::engine::redis::tests::support::{granted, until};

#[test]
fn the_first_release_that_is_awaited_is_one_message_where_a_member_lacks_the_script() {
    let quorum = Quorum::of(3);
    let process = quorum.process();
    // The member that lost the scripts behind its back says so once.
    for (lost, sent) in
        [(false, [0, 1]), (false, [1, 0]), (true, [1, 1]), (false, [0, 1]), (false, [1, 0])]
    {
        let claim = claim(&process, "a");
        granted(process.attempt_until(&claim));
        until("all have it", || quorum.with_record(&claim) == 3);
        if lost {
            quorum.0.iter().for_each(|server| _ = server.command(&["SCRIPT", "FLUSH"]));
        }
        let calls = || [0, 1, 2].map(|member| quorum.calls(member));
        let before = calls();
        let ends = process.wait(process.engine.release_awaited(&[claim.id], None)).ends;
        assert!(matches!(ends.as_slice(), [End::Freed]), "{ends:?}");
        quorum.until_clean("a");
        for (now, before) in calls().iter().zip(before) {
            assert_eq!(
                [now[0] - before[0], now[1] - before[1]],
                sent,
                "by its name, with its text"
            );
        }
    }
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

#[test]
fn r6_a_process_that_ends_waits_for_the_slowest_member_s_answer_to_an_awaited_release() {
    let quorum = Quorum::of(3);
    let role = "exit while releases are awaited";
    let names: Vec<String> = (0..50).map(|n| format!("n{n}")).collect();
    let mut child = start(role, &quorum.url());
    hear(&mut child, "held");
    quorum.0[2].stop();
    drop(child.stdin.take());
    names.iter().for_each(|name| quorum.until_gone(name, &[0, 1]));
    assert_eq!(child.try_wait().unwrap(), None, "it has ended before the third was told");
    quorum.0[2].go_on();
    names.iter().for_each(|name| quorum.until_clean(name));
    assert!(child.wait().unwrap().success());
    // But not for ever.
    let mut child = program(role, &quorum.url()).spawn().unwrap();
    hear(&mut child, "held");
    quorum.0[2].stop();
    assert!(child.wait().unwrap().success());
    quorum.0[2].go_on();
}
