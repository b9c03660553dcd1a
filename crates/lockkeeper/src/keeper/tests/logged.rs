//! What is logged, and with which fields.

use std::sync::Once;

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::Interest;
use tracing::{Level, Metadata, Subscriber};

use super::*;
use crate::engine::Lease;

/// Keeps what is logged, a line each: a level and the fields of an event, the name and the fields
/// of a span, or what it learns later.
#[derive(Clone)]
pub(super) struct Log(Level, Arc<Mutex<Vec<String>>>);

impl Log {
    pub(super) fn from(level: Level) -> Self {
        Self(level, Arc::default())
    }

    fn add(&self, line: String, fields: impl FnOnce(&mut dyn Visit)) {
        let mut line = Line(line);
        fields(&mut line);
        of(&self.1).push(line.0);
    }

    pub(super) fn take(&self) -> Vec<String> {
        std::mem::take(&mut of(&self.1))
    }
}

struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        self.0 += &format!(" {}={value:?}", field.name());
    }
}

impl Subscriber for Log {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= self.0 && metadata.target().starts_with("lockkeeper")
    }
    fn new_span(&self, span: &Attributes<'_>) -> Id {
        self.add(format!("span {}", span.metadata().name()), |line| span.record(line));
        Id::from_u64(1)
    }
    fn record(&self, _: &Id, values: &Record<'_>) {
        self.add("learns".to_owned(), |line| values.record(line));
    }
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, event: &tracing::Event<'_>) {
        self.add(event.metadata().level().to_string(), |line| event.record(line));
    }
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

/// Hears nothing, and has every place ask whether somebody does.
struct Asked;

impl Subscriber for Asked {
    fn register_callsite(&self, _: &'static Metadata<'static>) -> Interest {
        Interest::sometimes()
    }
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        false
    }
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, _: &tracing::Event<'_>) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

/// Lets a log hear what this thread does. Without [`Asked`] for all threads whichever comes to a
/// place first, and hears nothing, would decide for all that the place is not logged.
pub(super) fn heard_by(log: &Log) -> tracing::subscriber::DefaultGuard {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| tracing::subscriber::set_global_default(Asked).expect("the only one"));
    tracing::subscriber::set_default(log.clone())
}

#[tokio::test]
async fn r4_only_a_release_of_what_was_thought_ours_is_logged_as_illegal() {
    let stub = Stub::default();
    of(&stub.attempts).push_back(Attempt::InLine(Place::default()));
    of(&stub.ends).extend([End::NotOurs, End::NotOurs]);
    let (locks, stub, _clock) = open(stub).await;
    let errors = Log::from(Level::ERROR);
    let _logged = heard_by(&errors);
    let send = |event| stub.context.get().unwrap().events.send(event);

    // The loss overtakes the grant, and the engine has forgotten the hold by the time it is given
    // back.
    let mut waiting = Box::pin(locks.mutex("void").lock().into_future());
    assert!(futures_poll(waiting.as_mut()).is_none());
    let claim = of(&stub.attempted)[0];
    send(Event::Ended { which: Which::Hold(claim), why: Lost::TakenAway });
    send(Event::Granted { claim, grant: Grant { number: Number::None, lease: None } });
    assert_eq!(*of(&stub.released), [claim]);
    assert_eq!(errors.take(), [""; 0]);
    let guard = soon("it is asked for anew", waiting).await.unwrap();

    assert!(matches!(soon("it is released", guard.release()).await, How::NotOurs));
    let logged = errors.take();
    assert!(logged.len() == 1 && logged[0].contains("illegal release"), "{logged:?}");
}

#[tokio::test]
async fn an_acquisition_is_logged_with_engine_name_token_wait_and_what_woke_it() {
    let stub = Stub::default();
    of(&stub.attempts).push_back(Attempt::InLine(Place { ahead: Some(3), ..Place::default() }));
    let (locks, stub, _clock) = open(stub).await;
    let log = Log::from(Level::DEBUG);
    let _logged = heard_by(&log);
    let mut waiting = Box::pin(locks.mutex("stock").lock().into_future());
    assert!(futures_poll(waiting.as_mut()).is_none());
    let claim = of(&stub.attempted)[0];
    stub.context
        .get()
        .unwrap()
        .events
        .send(Event::Granted { claim, grant: Grant { number: Number::Raw(7), lease: None } });
    drop(soon("it is granted", waiting).await.unwrap());
    let said = log.take();
    let has = |words: &[&str]| said.iter().any(|line| words.iter().all(|word| line.contains(word)));
    for words in [
        &["span acquire", "engine=\"stub\"", "name=\"stock\""][..],
        &["DEBUG", "waiting", "name=stock", "ahead=3"],
        &["DEBUG", "woken", "name=stock", "by=\"a grant\""],
        &["span hold", "name=stock", "token=7"],
        &["DEBUG", "acquired", "name=stock", "token=7"],
        &["learns", "waited_ms=0"],
        &["learns", "token=7"],
        &["span release", "name=stock", "token=7"],
        &["DEBUG", "released", "name=stock"],
    ] {
        assert!(has(words), "{words:?} in {said:#?}");
    }
}

#[tokio::test]
async fn a_lease_that_was_not_renewed_is_logged_with_the_reason() {
    let stub = Stub { leases: true, ..Stub::default() };
    let lease = Lease { id: LeaseId(7), ttl: Duration::from_secs(30), since: None, confirm: false };
    of(&stub.attempts)
        .push_back(Attempt::Granted(Grant { number: Number::None, lease: Some(lease) }));
    let (locks, stub, _clock) = open(stub).await;
    let _guard = locks.mutex("stock").lock().await.unwrap();
    let log = Log::from(Level::WARN);
    let _logged = heard_by(&log);
    // The link is back: everything is renewed, and the answers are lost.
    stub.context.get().unwrap().events.send(Event::Link { up: true });
    let said = log.take();
    assert!(
        said.iter()
            .any(|line| line.contains("was not renewed") && line.contains("the reply was lost")),
        "{said:?}"
    );
}

#[tokio::test]
async fn c31_a_warning_of_the_engine_is_logged_with_the_name_and_told_to_the_observer() {
    #[derive(Default)]
    struct Warned(Mutex<Vec<String>>);
    impl Observer for Warned {
        fn seen(&self, _: Ticks, kind: Kind, name: &Name, what: &Seen) {
            if let Seen::Warned { warning } = what {
                let line = format!("{} {name} {} {}", kind.as_str(), warning.id, warning.text);
                of(&self.0).push(line);
            }
        }
    }
    let (stub, warned) = (Arc::new(Stub::default()), Arc::new(Warned::default()));
    let locks = Locks::builder().observer(warned.clone());
    let _locks = locks.with_engine(Shared(stub.clone())).await.unwrap();
    let log = Log::from(Level::WARN);
    let _logged = heard_by(&log);
    let warning = crate::Warning { id: "other-layout", text: "kazoo's".to_owned() };
    let name = Name::new("stock").unwrap();
    // Also of a name of which no claim is left.
    let event = Event::Warned { kind: Kind::Lock, name, warning };
    stub.context.get().unwrap().events.send(event);
    assert_eq!(*of(&warned.0), ["lock stock other-layout kazoo's"]);
    let said = log.take();
    for word in ["WARN", "name=stock", "id=\"other-layout\"", "message=kazoo's"] {
        assert!(said.len() == 1 && said[0].contains(word), "{word} in {said:?}");
    }
}
