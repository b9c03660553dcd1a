//! What an engine answers twice.

use super::*;
use crate::observe::{Observer, Seen};

/// Which releases an observer is told of, and how they ended.
#[derive(Clone, Default)]
struct Releases(Arc<Mutex<Vec<&'static str>>>);

impl Observer for Releases {
    fn seen(&self, _: Ticks, _: Kind, _: &Name, what: &Seen) {
        match what {
            Seen::GivingBack { .. } => of(&self.0).push("giving back"),
            Seen::Released { end, .. } => of(&self.0).push(end),
            _ => {}
        }
    }
}

#[tokio::test]
async fn r4_a_grant_that_is_answered_once_more_while_its_hold_is_given_back_says_nothing_of_how_that_ended() {
    let (clock, ends) = (Clock::virtual_at(Duration::from_secs(1)), Releases::default());
    let stub = Arc::new(Stub { slow: true, slow_rechecks: true, ..Stub::default() });
    of(&stub.attempts).push_back(Attempt::InLine(Place::default()));
    let locks = Locks::builder().clock(clock.clone()).observer(Arc::new(ends.clone())).with_engine(Shared(stub.clone())).await.unwrap();
    let mut waiting = Box::pin(locks.mutex("name").lock().into_future());
    assert!(futures_poll(waiting.as_mut()).is_none());
    clock.advance(Duration::from_secs(5));
    until("the place is re-checked", || of(&stub.rechecking).len() == 1).await;
    let claim = of(&stub.attempted)[0];
    stub.context.get().unwrap().events.send(Event::Granted { claim, grant: Grant { number: Number::None, lease: None } });
    let guard = soon("it is granted", waiting).await.unwrap();
    let released = tokio::spawn(guard.release());
    until("the release is under way", || of(&stub.releasing).len() == 1).await;

    // The re-check found the grant that is being given back. It may have been made anew, so it is given back once more, for nobody.
    of(&stub.rechecking).remove(0).send(vec![granted()]).unwrap();
    until("it is given back once more", || of(&stub.releasing).len() == 2).await;
    of(&stub.releasing).remove(1).1.send(End::NotOurs).unwrap();
    of(&stub.releasing).remove(0).1.send(End::Freed).unwrap();
    assert!(soon("it is released", released).await.unwrap().is_clean());
    assert!(locks.close().await.unknown.is_empty());
    assert_eq!(*of(&ends.0), ["giving back", "freed"], "the second one is sent for nobody");
}
