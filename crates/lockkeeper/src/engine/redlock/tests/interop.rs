//! Locks of several layouts on the same members.

use super::support::{Quorum, claim, open};
use crate::engine::End;
use crate::engine::redis::tests::support::{Process, granted, until};
use crate::words::claim::{Claim, Mode};
use crate::words::error::ErrorKind;
use crate::words::name::Name;

fn told(process: &Process, name: &str) -> Vec<String> {
    let name = Name::new(name).expect("a good name");
    let told = process.wait(process.engine.other_layouts(&name)).expect("they answer");
    assert!(told.iter().all(|warning| warning.id == "other-layout"), "{told:?}");
    told.into_iter().map(|warning| warning.text).collect()
}

#[test]
fn c31_a_lock_of_another_layout_on_a_quorum_is_told_of_in_each_layout() {
    let quorum = Quorum::of(3);
    let process = |layout: &str| {
        open(&format!("{}&layout={layout}", quorum.url())).expect("the members can be used")
    };
    let layouts = ["native", "plain", "redisson"];
    let processes = layouts.map(process);
    for (holder, theirs) in processes.iter().zip(layouts) {
        let held = claim(holder, "a");
        granted(holder.attempt(&held));
        for (process, ours) in processes.iter().zip(layouts) {
            let told = told(process, "a");
            if ours == theirs {
                assert!(told.is_empty(), "{told:?}");
                continue;
            }
            let [text] = &told[..] else { panic!("{ours} beside {theirs}: {told:?}") };
            let key = if theirs == "native" { "lockkeeper:{redlock:a}" } else { "a" };
            assert!(text.starts_with(&format!("the key {key} looks like a lock of ")), "{text}");
            assert!(text.ends_with(&format!("name layout={theirs}")), "{text}");
            let two = ours == "native" || theirs == "native";
            assert_eq!(text.contains("so there can be two holders"), two, "{text}");
        }
        assert!(matches!(holder.release(held.id), End::Freed));
        until("nobody is told", || processes.iter().all(|one| told(one, "a").is_empty()));
    }
    // Readers keep the others out as a holder alone does.
    let [native, plain, _] = &processes;
    let reads = Claim { ttl: super::support::TTL, ..native.claim("b", Mode::Shared) };
    granted(native.attempt(&reads));
    assert_eq!(told(plain, "b").len(), 1);
}

#[test]
fn c31_what_a_minority_has_is_no_lock_and_what_is_not_to_be_seen_is_no_error() {
    let mut quorum = Quorum::of(3);
    let process = quorum.process();
    let set = ["SET", "a", "0123456789abcdef0123456789abcdef", "PX", "60000"];
    quorum.0[0].command(&set);
    // As soon as all answer in time: one that does not may have it, too.
    until("a minority has it", || told(&process, "a").is_empty());
    quorum.0[1].command(&set);
    assert_eq!(told(&process, "a").len(), 1, "a majority has it");
    for server in &quorum.0 {
        server.command(&["ACL", "SETUSER", "shop", "on", ">pw", "~lockkeeper:*", "&*", "+@all"]);
    }
    let url = quorum.url().replace("://", "://shop:pw@");
    let narrow = open(&url).expect("the members can be used");
    // None of them tells anything.
    assert!(told(&narrow, "a").is_empty());
    granted(narrow.attempt(&claim(&narrow, "a")));
    // One that is away may have it, too.
    quorum.0[1].kill();
    until("it is known to be away", || told(&process, "a").len() == 1);
    quorum.0[2].kill();
    let name = Name::new("a").expect("a good name");
    let asked = process.wait(process.engine.other_layouts(&name));
    assert_eq!(asked.expect_err("there is no majority").kind(), ErrorKind::Unreachable);
}
