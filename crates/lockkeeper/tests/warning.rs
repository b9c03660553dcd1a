//! What is logged when a task waits for a guard of its own process (R8). A program of its own:
//! where warnings go is one thing for a whole process.
#![cfg(feature = "test-util")]

use std::future::IntoFuture;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lockkeeper::test_util::Bench;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

/// Keeps the warnings, a line each.
#[derive(Clone, Default)]
struct Warnings(Arc<Mutex<Vec<String>>>);

struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        self.0 += &format!("{}={value:?} ", field.name());
    }
}

impl Subscriber for Warnings {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() == Level::WARN
    }
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, event: &Event<'_>) {
        let mut line = Line(String::new());
        event.record(&mut line);
        self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push(line.0);
    }
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

#[tokio::test]
async fn r8_after_five_seconds_a_warning_names_the_guard_of_this_process_that_is_waited_for() {
    let warnings = Warnings::default();
    // The keeper's thread says it, so it is everybody's subscriber; this program has no other test.
    tracing::subscriber::set_global_default(warnings.clone()).unwrap();
    let bench = Bench::open().await.unwrap();
    let stock = bench.locks().mutex("stock/sku-42");
    let line = line!() + 1;
    let guard = stock.lock().await.unwrap();
    let waiting = tokio::spawn(stock.lock().into_future());
    while lockkeeper::test_util::residue(bench.locks()).timers == 0 {
        tokio::task::yield_now().await;
    }
    bench.advance(Duration::from_millis(4_999));
    tokio::time::sleep(Duration::from_millis(20)).await;
    assert_eq!(*warnings.0.lock().unwrap(), [""; 0], "not before");
    bench.advance(Duration::from_millis(1));
    tokio::time::timeout(Duration::from_secs(120), async {
        while warnings.0.lock().unwrap().is_empty() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    })
    .await
    .expect("a warning");
    let said = warnings.0.lock().unwrap().join("\n");
    assert!(
        said.contains(&format!("warning.rs:{line}:")) && said.contains("stock/sku-42"),
        "{said}"
    );
    assert_eq!(said.lines().count(), 1, "{said}");
    drop(guard);
    drop(waiting.await.unwrap().unwrap());
}
