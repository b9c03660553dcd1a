//! Election: one leader, whom everybody can see.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use lockkeeper::Kind;

use crate::conformance::trial::{HANGS, Trial, until, within};

pub(super) async fn one_leads_and_everybody_sees_who(t: Arc<Trial>) {
    let name = t.name("a");
    let (one, two) = (t.open().await.election(&name), t.open().await.election(&name));
    let mut seen = two.observe().await.expect("it can be observed");
    assert_eq!(within(HANGS, "the state is told", seen.next()).await.expect("it is told"), None);
    let term = one.stand("host-a").await.expect("nobody leads");
    let leader = two.leader().await.expect("it can be read").expect("somebody leads");
    assert_eq!(leader.id, "host-a");
    // In a layout that is shared with others, a candidate's node says its id and nothing else.
    assert!(
        leader.pid == Some(std::process::id()) || (leader.pid.is_none() && t.subject.foreign),
        "{leader:?}"
    );
    assert_eq!(
        within(HANGS, "the change is told", seen.next())
            .await
            .expect("it is told")
            .map(|l| l.id)
            .as_deref(),
        Some("host-a")
    );
    let next = tokio::spawn(two.stand("host-b").into_future());
    tokio::time::sleep(Duration::from_millis(60)).await;
    assert!(!next.is_finished(), "somebody leads");
    assert!(term.release().await.is_clean());
    let next =
        within(HANGS, "the next leads", next).await.expect("no panic").expect("it is elected");
    within(HANGS, "the change is told", async {
        while seen.next().await.expect("it is told").is_none_or(|leader| leader.id != "host-b") {}
    })
    .await;
    drop(next);
    within(HANGS, "the change is told", async {
        while seen.next().await.expect("it is told").is_some() {}
    })
    .await;
}

pub(super) async fn who_lost_its_term_stands_again(t: Arc<Trial>) {
    let name = t.name("a");
    let (one, two) = (t.open().await, t.open().await);
    let terms = Arc::new(AtomicU32::new(0));
    let election = one.election(&name);
    let running = tokio::spawn({
        let terms = terms.clone();
        async move {
            let lead = |term: lockkeeper::Held| {
                let terms = terms.clone();
                async move {
                    if terms.fetch_add(1, Ordering::SeqCst) == 0 {
                        std::future::pending::<()>().await;
                    }
                    term.is_lost()
                }
            };
            election.run("host-a", lead).await
        }
    });
    until("it leads", || async { terms.load(Ordering::SeqCst) == 1 }).await;
    assert!(two.force_release(Kind::Election, &name).await.expect("it can be forced"));
    let lost = within(HANGS, "it stands again, and ends with its work", running)
        .await
        .expect("no panic")
        .expect("it is elected again");
    assert!(!lost);
    assert_eq!(terms.load(Ordering::SeqCst), 2);
    until("nobody leads", || async {
        two.election(&name).leader().await.expect("it can be read").is_none()
    })
    .await;
}

pub(super) async fn the_terms_have_rising_tokens(t: Arc<Trial>) {
    let name = t.name("a");
    let clients = [t.open().await, t.open().await];
    let mut last = None;
    for round in 0..6usize {
        let id = format!("candidate {round}");
        let term = clients[round % 2].election(&name).stand(&id).await.expect("nobody leads");
        let token = term.token().expect("a fenced engine gives tokens");
        assert!(last.is_none_or(|last| last < token), "BROKEN LOCK: {token} follows {last:?}");
        let seen = clients[(round + 1) % 2]
            .election(&name)
            .leader()
            .await
            .expect("it can be read")
            .expect("somebody leads");
        assert_eq!(seen.id, id, "each term shows its own candidate");
        last = Some(token);
        assert!(term.release().await.is_clean());
    }
}
