//! Several names in one message.

use super::*;

#[tokio::test]
async fn a_turn_of_several_is_what_was_asked_of_its_own_name_also_after_one_that_was_not_granted() {
    let (stub, told) = (Arc::new(Stub::default()), Arc::new(Told::default()));
    *of(&stub.together) = Some(vec![Attempt::Unknown(lost_reply()), granted()]);
    let locks =
        Locks::builder().observer(told.clone()).with_engine(Shared(stub.clone())).await.unwrap();
    let long = Duration::from_secs(3_600);
    let both = locks
        .all([locks.mutex("first").lock().hold_at_most(long), locks.rwlock("second").read()])
        .await
        .unwrap();
    let modes = |name: &str| -> Vec<Mode> {
        let told = of(&told.0);
        let got = told.iter().filter(|(of, _)| of == name);
        got.filter_map(
            |(_, what)| if let Seen::Got { mode, .. } = what { Some(*mode) } else { None },
        )
        .collect()
    };
    assert_eq!(modes("first"), [Mode::Exclusive]);
    assert_eq!(
        modes("second"),
        [Mode::Shared; 2],
        "granted, given back because the first was not, and granted again"
    );
    assert_eq!(
        both.guards().iter().map(|g| g.cell().mode()).collect::<Vec<_>>(),
        [Mode::Exclusive, Mode::Shared]
    );
    assert!(both.release().await.iter().all(How::is_clean));
    until("nothing is left", || crate::test_util::residue(&locks).names == 0).await;
}

#[tokio::test]
async fn the_engine_is_told_how_long_several_are_wanted() {
    let stub = Stub::default();
    *of(&stub.together) = Some(vec![granted(), granted()]);
    let (locks, stub, clock) = open(stub).await;
    let until = clock.now().plus(Duration::from_secs(5));
    let both = locks
        .all([locks.mutex("a").lock(), locks.mutex("b").lock()])
        .timeout(Duration::from_secs(5))
        .await
        .unwrap();
    assert_eq!(*of(&stub.together_until), Some(until));
    drop(both);
}

#[tokio::test]
async fn an_engine_that_does_not_answer_for_each_of_several_leaves_no_name_waiting() {
    let stub = Stub::default();
    *of(&stub.together) = Some(vec![granted()]);
    let (locks, stub, _clock) = open(stub).await;
    let both = soon(
        "they are asked for one after the other",
        locks.all([locks.mutex("a").lock(), locks.mutex("b").lock()]).into_future(),
    );
    assert_eq!(both.await.unwrap().guards().len(), 2);
    assert_eq!(of(&stub.withdrawn).len(), 1, "the claim that was not answered is taken back");
}

#[tokio::test]
async fn r5_several_whose_future_is_not_polled_keep_nobody_who_tries_from_its_answer() {
    for answer in [Attempt::Busy(None), granted()] {
        let stub = Stub::default();
        let (answers, told) = oneshot::channel();
        (*of(&stub.together), *of(&stub.together_later)) = (Some(Vec::new()), Some(told));
        let (locks, stub, clock) = open(stub).await;
        let mut several =
            Box::pin(locks.all([locks.mutex("a").lock(), locks.mutex("b").lock()]).into_future());
        assert!(futures_poll(several.as_mut()).is_none());
        let mut tries = Box::pin(locks.mutex("a").try_lock().into_future());
        assert!(
            futures_poll(tries.as_mut()).is_none(),
            "it is not known whether the first one gets it"
        );
        let was_granted = matches!(answer, Attempt::Granted(_));
        answers.send(vec![answer.clone(), answer]).unwrap();
        let tried = soon("the first one is not polled, and answered", tries).await.unwrap();
        assert_eq!(tried.is_none(), was_granted);
        drop(tried);
        // An offer that nobody takes goes back.
        let free = || {
            clock.advance(Duration::from_secs(1));
            of(&stub.released).len() == if was_granted { 2 } else { 1 }
        };
        until("both are free", free).await;
        drop(several);
    }
}

#[tokio::test]
async fn several_with_no_time_at_all_are_asked_for_once_and_granted_where_they_are_free() {
    let stub = Stub::default();
    *of(&stub.together) = Some(vec![granted(), granted()]);
    let (locks, stub, _clock) = open(stub).await;
    let both = locks
        .all([locks.mutex("a").lock(), locks.mutex("b").lock()])
        .timeout(Duration::ZERO)
        .await
        .unwrap();
    assert_eq!(
        (both.guards().len(), *of(&stub.together_until)),
        (2, None),
        "the engine is not told that nobody waits any more"
    );
    *of(&stub.together) = None;
    let more = locks
        .all([locks.mutex("c").lock(), locks.mutex("d").lock()])
        .timeout(Duration::ZERO)
        .await
        .unwrap();
    assert_eq!(more.guards().len(), 2, "one after the other, too");
}

fn away() -> Attempt {
    Attempt::Failed(Error::new(ErrorKind::Unreachable, "the server is away"))
}

#[tokio::test]
async fn several_with_a_timeout_wait_for_a_server_that_is_away_for_less() {
    let stub = Stub::default();
    *of(&stub.together) = Some(vec![away(), away()]);
    of(&stub.attempts).extend([away(), away()]);
    let (locks, _stub, clock) = open(stub).await;
    let several = locks
        .all([locks.mutex("a").lock(), locks.mutex("b").lock()])
        .timeout(Duration::from_secs(10));
    let both = as_time_goes_by(&clock, Box::pin(several.into_future())).await.unwrap();
    assert_eq!(both.guards().len(), 2);
}

#[tokio::test]
async fn several_that_nobody_answers_for_end_as_unreachable() {
    for timeout in [Some(Duration::from_secs(3)), Some(Duration::ZERO), None] {
        let stub = Stub::default();
        *of(&stub.together) = Some(vec![away(), away()]);
        of(&stub.attempts).extend((0..1_000).map(|_| away()));
        let (locks, _stub, clock) = open(stub).await;
        let mut several = locks.all([locks.mutex("a").lock(), locks.mutex("b").lock()]);
        if let Some(timeout) = timeout {
            several = several.timeout(timeout);
        }
        let error =
            as_time_goes_by(&clock, Box::pin(several.into_future())).await.map(drop).unwrap_err();
        assert_eq!(
            (error.kind(), error.message()),
            (ErrorKind::Unreachable, "the server is away"),
            "{timeout:?}"
        );
    }
}

#[tokio::test]
async fn several_that_are_not_answered_in_time_count_as_not_obtained_each() {
    let (clock, told) = (Clock::virtual_at(Duration::from_secs(1)), Arc::new(Told::default()));
    let stub = Arc::new(Stub::default());
    let (_answers, later) = oneshot::channel();
    (*of(&stub.together), *of(&stub.together_later)) = (Some(Vec::new()), Some(later));
    let builder = Locks::builder().clock(clock.clone()).observer(told.clone());
    let locks = builder.with_engine(Shared(stub.clone())).await.unwrap();
    let all = locks.all([locks.mutex("a").lock(), locks.mutex("b").lock()]);
    let mut several = Box::pin(all.timeout(Duration::from_secs(3)).into_future());
    assert!(futures_poll(several.as_mut()).is_none());
    clock.advance(Duration::from_secs(4));
    drop(soon("its time is over", several).await.unwrap_err());
    let told = of(&told.0);
    let not: Vec<&str> = told
        .iter()
        .filter(|(_, what)| matches!(what, Seen::NotObtained { why: "timed-out", .. }))
        .map(|(name, _)| name.as_str())
        .collect();
    assert_eq!(not, ["a", "b"]);
}

#[tokio::test]
async fn what_is_refused_for_all_of_several_names_none_of_them() {
    let refused = |text| Attempt::Failed(Error::new(ErrorKind::Refused, text));
    let rows = ["somebody stands on a row"; 2];
    for (texts, named) in [(rows, None), (["no such right", "no such place"], Some("b"))] {
        let stub = Stub::default();
        *of(&stub.together) = Some(texts.map(refused).to_vec());
        let (locks, _stub, _clock) = open(stub).await;
        let both = locks.all([locks.mutex("a").lock(), locks.mutex("b").lock()]);
        let error = both.await.map(drop).unwrap_err();
        assert_eq!(error.lock_name().map(Name::as_str), named, "{error}");
    }
}
