//! R7: every exclusive turn carries a token greater than every earlier one of its name.

use std::sync::Arc;

use lockkeeper::{ErrorKind, Guard, Locks, Mode, Token};

use crate::conformance::trial::{HANGS, Trial, within};

/// The greatest token so far.
#[derive(Default)]
struct Rising(Option<Token>);

impl Rising {
    fn next(&mut self, token: Token) {
        assert!(
            self.0.is_none_or(|last| last < token),
            "BROKEN LOCK: a token went back: {token} follows {:?}",
            self.0
        );
        assert!(token.get() < 1 << 63);
        self.0 = Some(token);
    }

    async fn turn(&mut self, locks: &Locks, name: &str) {
        let guard = locks.mutex(name).lock().timeout(HANGS).await.expect("it is free");
        self.next(token_of(&guard));
        assert!(guard.release().await.is_clean());
    }
}

fn token_of(guard: &Guard) -> Token {
    guard.token().expect("a fenced engine gives tokens")
}

pub(super) async fn r7_tokens_rise_over_tasks_and_clients(t: Arc<Trial>) {
    let name = t.name("a");
    let clients = [t.open().await, t.open().await, t.open().await];
    let mut rising = Rising::default();
    for _ in 0..t.times(10) {
        for locks in &clients {
            rising.turn(locks, &name).await;
            rising.turn(locks, &name).await;
        }
    }
}

pub(super) async fn r7_tokens_rise_over_reopening(t: Arc<Trial>) {
    let name = t.name("a");
    let mut rising = Rising::default();
    for _ in 0..5 {
        let locks = t.open().await;
        rising.turn(&locks, &name).await;
        drop(locks.close().await);
    }
}

pub(super) async fn r7_tokens_rise_over_processes(t: Arc<Trial>) {
    let name = t.name("a");
    let (locks, there) = (t.open().await, t.helper().await);
    let mut rising = Rising::default();
    for _ in 0..t.times(10) {
        rising.turn(&locks, &name).await;
        let turn = there.lock(Mode::Exclusive, &name, HANGS).await.expect("it is free");
        rising.next(turn.token.expect("a fenced engine gives tokens"));
        assert_eq!(there.release(turn).await.as_deref(), Ok("clean"));
    }
    let (dies, about) = t.brief_helper().await;
    dies.lock(Mode::Exclusive, &name, HANGS).await.expect("it is free");
    dies.kill();
    let after =
        within(about.recovery + HANGS, "it is freed", locks.mutex(&name).lock().into_future())
            .await
            .expect("it is freed");
    rising.next(token_of(&after));
}

pub(super) async fn r7_tokens_rise_over_a_wiped_store(t: Arc<Trial>) {
    let name = t.name("a");
    let mut rising = Rising::default();
    for _ in 0..3 {
        let locks = t.open().await;
        for _ in 0..5 {
            rising.turn(&locks, &name).await;
        }
        drop(locks.close().await);
        t.wipe().await;
    }
}

pub(super) async fn r7_tokens_rise_over_a_restarted_server(t: Arc<Trial>) {
    let name = t.name("a");
    let locks = t.open().await;
    let mut rising = Rising::default();
    for _ in 0..3 {
        for _ in 0..5 {
            rising.turn(&locks, &name).await;
        }
        t.restart().await;
    }
    rising.turn(&locks, &name).await;
}

pub(super) async fn r7_an_upgrade_and_a_downgrade_give_new_tokens(t: Arc<Trial>) {
    let name = t.name("a");
    let locks = t.open().await;
    let up = locks.rwlock(&name).upgradable().await.expect("it is free");
    let before = token_of(&up);
    let read = within(HANGS, "it downgrades", up.downgrade()).await.expect("it is held");
    assert!(
        token_of(&read) > before,
        "without a writing in between: {} follows {before}",
        token_of(&read)
    );
    assert!(read.release().await.is_clean());
    let mut rising = Rising::default();
    let mut up = locks.rwlock(&name).upgradable().await.expect("it is free");
    rising.next(token_of(&up));
    for _ in 0..3 {
        let writing =
            within(HANGS, "it upgrades", up.upgrade().into_future()).await.expect("nobody reads");
        rising.next(token_of(&writing));
        drop(writing);
    }
    let read = within(HANGS, "it downgrades", up.downgrade()).await.expect("it is held");
    rising.next(token_of(&read));
    assert!(read.release().await.is_clean());
    let write = locks.rwlock(&name).write().timeout(HANGS).await.expect("it is free");
    rising.next(token_of(&write));
    let read = write.downgrade().await.expect("it is held");
    rising.next(token_of(&read));
    drop(read);
    rising.turn(&locks, &name).await;
}

pub(super) async fn r7_shared_tokens_lie_between_exclusive_ones(t: Arc<Trial>) {
    let name = t.name("a");
    let (one, two) = (t.open().await, t.open().await);
    let mut before = Rising::default();
    for _ in 0..3 {
        before.turn(&one, &name).await;
        let readers = [
            one.rwlock(&name).read().timeout(HANGS).await.expect("it is free"),
            two.rwlock(&name).read().timeout(HANGS).await.expect("it is shared"),
            one.rwlock(&name).read().timeout(HANGS).await.expect("it is shared"),
        ];
        let tokens = readers.each_ref().map(token_of);
        let above = tokens.iter().copied().max().expect("three");
        assert!(
            tokens.iter().all(|token| Some(*token) > before.0),
            "above every earlier writer: {tokens:?}, {:?}",
            before.0
        );
        drop(readers);
        let write = one.mutex(&name).lock().timeout(HANGS).await.expect("it is free");
        assert!(token_of(&write) > above, "below every later writer");
        before.next(token_of(&write));
        drop(write);
    }
}

pub(super) async fn r7_permits_carry_no_token(t: Arc<Trial>) {
    let locks = t.open().await;
    let permit = locks.semaphore(t.name("a"), 3).acquire(1).await.expect("it is free");
    assert_eq!(permit.token().map_err(|e| e.kind()), Err(ErrorKind::NoToken));
    assert!(permit.release().await.is_clean());
}
