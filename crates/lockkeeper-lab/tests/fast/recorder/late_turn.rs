//! A turn that is recorded after its lease was renewed.

use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use lockkeeper::observe::{Observer, Seen};
use lockkeeper::{Kind, Locks, Name, Ticks};
use lockkeeper_lab::history::{Recorder, What, Writer, WriterOptions};

use super::{judge, records};

/// Hears of a turn only after its lease was renewed, as on a machine whose processors are taken.
struct Slow {
    recorder: Recorder,
    renewed: Mutex<bool>,
    changed: Condvar,
}

impl Observer for Slow {
    fn seen(&self, at: Ticks, kind: Kind, name: &Name, what: &Seen) {
        if matches!(what, Seen::Got { .. }) {
            *self.renewed.lock().unwrap() = false;
            let renewed = self.renewed.lock().unwrap();
            // The name is locked meanwhile, and after a second the keeper wants it.
            drop(
                self.changed
                    .wait_timeout_while(renewed, Duration::from_millis(900), |renewed| !*renewed)
                    .unwrap(),
            );
        }
        self.recorder.seen(at, kind, name, what);
        if matches!(what, Seen::Renewed { .. }) {
            *self.renewed.lock().unwrap() = true;
            self.changed.notify_all();
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_renewal_that_is_answered_before_its_turn_is_recorded_is_recorded_after_it() {
    let server = lockkeeper_testkit::redis::server::RedisServer::start();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.lkh");
    let writer = Writer::create(&path, WriterOptions::default()).unwrap();
    let slow = Arc::new(Slow {
        recorder: Recorder::new(writer.clone()),
        renewed: Mutex::new(false),
        changed: Condvar::new(),
    });
    let locks = Locks::builder().observer(slow.clone()).open(&server.url()).await.unwrap();
    for round in 0.. {
        assert!(round < 20, "no renewal came in time, again and again");
        let guard = locks
            .mutex(format!("a/{round}"))
            .lock()
            .ttl(Duration::from_millis(1_200))
            .await
            .unwrap();
        let in_time = *slow.renewed.lock().unwrap();
        let so_far = records(&path);
        let _ = guard.release().await;
        if in_time {
            let at = so_far.iter().rposition(|r| r.what == What::Acquired).unwrap();
            let renewed = so_far
                .get(at + 1)
                .filter(|r| r.what == What::Renewed && r.claim == so_far[at].claim);
            assert!(renewed.is_some_and(|r| r.deadline > so_far[at].deadline), "{so_far:#?}");
            break;
        }
    }
    let _ = locks.close().await;
    writer.finish().unwrap();
    judge(&path);
}
