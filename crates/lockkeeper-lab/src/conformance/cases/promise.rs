//! R14: each engine says what it promises, and keeps to it.

use std::sync::Arc;
use std::time::Duration;

use lockkeeper::{Class, ErrorKind, Require};

use crate::conformance::awaited::Awaited;
use crate::conformance::grip::Way;
use crate::conformance::trial::{HANGS, Timer, Trial, within};

pub(super) async fn r14_it_says_what_it_promises(t: Arc<Trial>) {
    let locks = t.open().await;
    let about = locks.describe();
    assert!(
        !about.engine.is_empty() && !about.layout.is_empty() && !about.server.is_empty(),
        "{about:?}"
    );
    assert!(!about.breaks.is_empty(), "something can break every promise");
    assert!(
        about
            .breaks
            .iter()
            .chain(about.warnings.iter().map(|w| &w.text))
            .all(|text| text.len() > 10),
        "{about:?}"
    );
    for (require, met) in [
        (Require::Hosts, about.hosts),
        (Require::Timed, about.class != Class::Efficiency),
        (Require::Fenced, about.fenced),
    ] {
        let answer = locks.require(require).map_err(|e| e.kind());
        assert_eq!(answer, if met { Ok(()) } else { Err(ErrorKind::NotMet) }, "{require:?}");
    }
    assert!(
        about.recovery_stopped.is_none_or(|stopped| stopped >= about.recovery),
        "who is stopped is noticed no sooner than who is dead"
    );
    assert!(!about.expiry.is_timed() || about.recovery > Duration::ZERO, "a lease has to run out");
    let guard = locks.mutex(t.name("a")).lock().await.expect("it is free");
    assert_eq!(
        guard.remaining().is_some(),
        about.expiry.is_timed(),
        "what time ends has a deadline"
    );
    if about.fenced {
        guard.token().expect("a fenced engine gives tokens");
    }
}

pub(super) async fn r14_a_stopped_holder_is_passed_when_it_says_so(t: Arc<Trial>) {
    let locks = t.open().await;
    let held = Awaited::of(&t, Way::Mutex, &locks).await;
    let Awaited { there, turn, about, next, .. } = held;
    let timer = Timer::start();
    there.stop();
    match about.recovery_stopped {
        Some(promised) => {
            let got = within(promised + HANGS, "a stopped holder is passed", next)
                .await
                .expect("no panic")
                .expect("it is granted");
            timer.keeps(promised);
            there.go_on();
            let state = there.check(turn).await.expect("it runs again");
            assert!(
                state.starts_with("lost"),
                "the first thing it does is to read the clocks: {state}"
            );
            got.check().expect("the newer grant stands");
            let released = there.release(turn).await.expect("it runs again");
            assert!(released.starts_with("already-lost"), "{released}");
            assert!(got.release().await.is_clean());
        }
        None => {
            tokio::time::sleep(Duration::from_millis(700)).await;
            assert!(!next.is_finished(), "nothing bounds it, and it says so");
            there.go_on();
            assert_eq!(there.check(turn).await.as_deref(), Ok("ok"));
            assert_eq!(there.release(turn).await.as_deref(), Ok("clean"));
            drop(
                within(HANGS, "it is given back", next)
                    .await
                    .expect("no panic")
                    .expect("it is granted"),
            );
        }
    }
}

pub(super) async fn r14_a_holder_that_leaves_without_closing_frees_the_lock_in_time(t: Arc<Trial>) {
    let locks = t.open().await;
    let held = Awaited::of(&t, Way::Mutex, &locks).await;
    let promised = held.about.recovery;
    let timer = Timer::start();
    held.there.leave().await;
    let got = within(promised + HANGS, "it is freed", held.next)
        .await
        .expect("no panic")
        .expect("it is granted");
    timer.keeps(promised);
    assert!(got.release().await.is_clean());
}
