//! A keeper's stand-in: a runtime, a sink that remembers, and claims made short.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use lockkeeper_testkit::servers::certificates;

use super::super::options::{Address, RedisOptions};
use super::asker::Asker;
use super::server::RedisServer;
use crate::engine::{
    Answer, Attempt, Change, Common, Context, End, Engine, Event, EventSink, Grant, Line, Number,
    Query, Registration, Released, Renewal, Spawner, Value,
};
use crate::open::url::EngineUrl;
use crate::words::claim::{Claim, Entry, Identity, Mode};
use crate::words::clock::{Clock, Ticks};
use crate::words::error::Error;
use crate::words::id::{ClaimId, HoldId};
use crate::words::name::{Kind, Name};

/// No test waits longer than this for anything that should happen.
pub(in crate::engine) const PATIENCE: Duration = Duration::from_secs(120);

/// One process, as far as the engine can tell.
pub(in crate::engine) struct Process {
    pub(in crate::engine) engine: Arc<dyn Engine>,
    runtime: Option<tokio::runtime::Runtime>,
    events: Mutex<Receiver<Event>>,
    seen: Mutex<Vec<Event>>,
    asker: Arc<Asker>,
    pub(in crate::engine) clock: Clock,
    pub(in crate::engine) who: Arc<Identity>,
}

impl Process {
    /// A process that uses the server, and waits for its answers however late they are.
    pub(in crate::engine) fn of(server: &RedisServer) -> Self {
        Self::with(patient(options(server.port())))
    }

    /// A process with options of its own.
    pub(in crate::engine) fn with(options: RedisOptions) -> Self {
        Self::try_with(options).expect("the server can be used")
    }

    pub(in crate::engine) fn try_with(options: RedisOptions) -> Result<Self, Error> {
        Self::around(super::super::connect(options, None).into())
    }

    /// A process with an engine of the test's own making.
    pub(in crate::engine) fn around(engine: Arc<dyn Engine>) -> Result<Self, Error> {
        Self::at(engine, Clock::real())
    }

    /// The same by a clock of the test's own making.
    pub(in crate::engine) fn at(engine: Arc<dyn Engine>, clock: Clock) -> Result<Self, Error> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .expect("a runtime");
        let (sender, events) = channel();
        let asker = Asker::new(clock.clone(), sender);
        let hears = asker.clone();
        let sink = EventSink::new(move |event| hears.hear(event));
        runtime.spawn(asker.clone().run(Arc::downgrade(&engine)));
        let handle = runtime.handle().clone();
        let spawner = Spawner::new(move |task| drop(handle.spawn(task)));
        let who = Identity::of_test("host");
        let context = Context { clock: clock.clone(), events: sink, spawner, who: who.clone() };
        let process = Self {
            engine,
            runtime: Some(runtime),
            events: Mutex::new(events),
            seen: Mutex::default(),
            asker,
            clock,
            who,
        };
        process.wait(process.engine.open(context))?;
        Ok(process)
    }

    /// From now on whoever waits here is woken by words alone, and by no time that has gone by.
    pub(in crate::engine) fn by_word_alone(&self) {
        self.asker.by_word_alone();
    }

    pub(in crate::engine) fn wait<T>(&self, answer: Answer<T>) -> T {
        match answer {
            Answer::Now(value) => value,
            Answer::Later(future) => {
                let runtime = self.runtime.as_ref().expect("it runs");
                runtime.block_on(async {
                    tokio::time::timeout(PATIENCE, future).await.expect("an answer in time")
                })
            }
        }
    }

    pub(in crate::engine) fn claim(&self, name: &str, mode: Mode) -> Claim {
        Claim::of_test(name, mode, self.who.clone())
    }

    pub(in crate::engine) fn exclusive(&self, name: &str) -> Claim {
        self.claim(name, Mode::Exclusive)
    }

    pub(in crate::engine) fn attempt(&self, claim: &Claim) -> Attempt {
        self.attempted(claim, self.engine.attempt(claim, Line::Join))
    }

    /// Waits for the answer to an attempt; a place asks again at its time.
    pub(in crate::engine) fn attempted(&self, claim: &Claim, answer: Answer<Attempt>) -> Attempt {
        let attempt = self.wait(answer);
        self.asker.answered(claim.id, &attempt);
        attempt
    }

    pub(in crate::engine) fn attempt_try(&self, claim: &Claim) -> Attempt {
        self.wait(self.engine.attempt(claim, Line::Try))
    }

    /// Asks on each wake-up, as the keeper does, until the lock is granted.
    pub(in crate::engine) fn attempt_until(&self, claim: &Claim) -> Attempt {
        loop {
            match self.attempt(claim) {
                Attempt::InLine(_) => self.event("a wake-up", |e| {
                    let (Event::Wake { claim: id } | Event::Granted { claim: id, .. }) = e else {
                        return None;
                    };
                    (*id == claim.id).then_some(())
                }),
                Attempt::Granted(grant) => return Attempt::Granted(grant),
                done => {
                    // It may have crossed a word that grants it.
                    let granted = |event: &Event| match event {
                        Event::Granted { claim: id, grant } if *id == claim.id => {
                            Some(grant.clone())
                        }
                        _ => None,
                    };
                    let granted = self.event_within(Duration::from_millis(100), &mut { granted });
                    return granted.map_or(done, Attempt::Granted);
                }
            }
        }
    }

    /// The grant of a claim, however late the answers come: what is unknown is asked for again
    /// under its own id (R4).
    pub(in crate::engine) fn granted_at_last(&self, claim: &Claim) -> Grant {
        let began = std::time::Instant::now();
        loop {
            match self.attempt_until(claim) {
                Attempt::Unknown(why) if began.elapsed() < PATIENCE => drop(why),
                done => return granted(done),
            }
        }
    }

    /// Takes a lock that is free.
    pub(in crate::engine) fn take(&self, name: &str, mode: Mode) -> (Claim, Grant) {
        let claim = self.claim(name, mode);
        let grant = granted(self.attempt(&claim));
        (claim, grant)
    }

    /// Stands in line.
    pub(in crate::engine) fn queue(&self, name: &str, mode: Mode) -> Claim {
        let claim = self.claim(name, mode);
        self.queue_claim(&claim);
        claim
    }

    /// So many claims stand in line, one behind the other, as soon as can be.
    pub(in crate::engine) fn queue_all(&self, name: &str, count: usize) -> Vec<ClaimId> {
        let claims: Vec<Claim> = (0..count).map(|_| self.exclusive(name)).collect();
        self.asker.casts_net(claims.iter().map(|claim| claim.id));
        let asked: Vec<_> =
            claims.iter().map(|claim| self.engine.attempt(claim, Line::Join)).collect();
        for (claim, asked) in claims.iter().zip(asked) {
            let attempt = self.attempted(claim, asked);
            assert!(matches!(attempt, Attempt::InLine(_)), "not in line but {attempt:?}");
        }
        claims.into_iter().map(|claim| claim.id).collect()
    }

    pub(in crate::engine) fn queue_claim(&self, claim: &Claim) {
        let attempt = self.attempt(claim);
        assert!(matches!(attempt, Attempt::InLine(_)), "not in line but {attempt:?}");
    }

    pub(in crate::engine) fn release(&self, hold: HoldId) -> End {
        self.wait(self.engine.release(&[hold], None)).ends.remove(0)
    }

    pub(in crate::engine) fn release_again(&self, hold: HoldId, again: &Claim) -> Released {
        let released = self.wait(self.engine.release(&[hold], Some(again)));
        if let Some(attempt) = &released.again {
            self.asker.answered(again.id, attempt);
        }
        released
    }

    pub(in crate::engine) fn renew(&self, hold: HoldId) -> Renewal {
        self.wait(self.engine.renew(&[hold.into()])).remove(0)
    }

    pub(in crate::engine) fn withdraw(&self, claim: ClaimId) -> End {
        self.asker.forget(claim);
        self.wait(self.engine.withdraw(claim))
    }

    pub(in crate::engine) fn look(&self, kind: Kind, name: &str) -> Entry {
        let query = Query::One(kind, Name::new(name).expect("a good name"));
        self.wait(self.engine.read(&query)).expect("the server tells").remove(0)
    }

    pub(in crate::engine) fn list(&self, prefix: &str) -> Vec<Entry> {
        self.wait(self.engine.read(&Query::Prefix(prefix.into()))).expect("the server tells")
    }

    pub(in crate::engine) fn change(&self, change: &Change) -> bool {
        self.wait(self.engine.write(change)).expect("the server does it")
    }

    /// Waits for the first event that `pick` takes; others are kept for later.
    pub(in crate::engine) fn event<T>(
        &self,
        what: &str,
        mut pick: impl FnMut(&Event) -> Option<T>,
    ) -> T {
        self.event_within(PATIENCE, &mut pick).unwrap_or_else(|| {
            panic!("waited in vain for {what}; seen: {:?}", self.seen.lock().unwrap())
        })
    }

    pub(in crate::engine) fn event_within<T>(
        &self,
        within: Duration,
        pick: &mut impl FnMut(&Event) -> Option<T>,
    ) -> Option<T> {
        let until = Instant::now() + within;
        let mut seen = self.seen.lock().unwrap();
        if let Some(at) = seen.iter().position(|e| pick(e).is_some()) {
            return pick(&seen.remove(at));
        }
        loop {
            let event = self
                .events
                .lock()
                .unwrap()
                .recv_timeout(until.saturating_duration_since(Instant::now()))
                .ok()?;
            match pick(&event) {
                Some(picked) => return Some(picked),
                None => seen.push(event),
            }
        }
    }

    /// Waits until a claim in line is granted.
    pub(in crate::engine) fn granted(&self, id: ClaimId) -> Grant {
        self.event("a grant", |event| match event {
            Event::Granted { claim, grant } if *claim == id => Some(grant.clone()),
            _ => None,
        })
    }

    pub(in crate::engine) fn link(&self, state: bool) {
        self.event("the link", |event| {
            matches!(event, Event::Link { up } if *up == state).then_some(())
        });
    }

    pub(in crate::engine) fn now(&self) -> Ticks {
        self.clock.now()
    }

    /// Its thread does nothing until what is answered is dropped.
    pub(in crate::engine) fn stall(&self) -> std::sync::mpsc::Sender<()> {
        let ((stalled, began), (sender, receiver)) = (channel(), channel());
        self.runtime.as_ref().expect("it runs").spawn(async move {
            stalled.send(()).expect("somebody waits");
            // Nothing is ever sent.
            let _: Result<(), _> = receiver.recv();
        });
        began.recv().expect("it runs");
        sender
    }

    /// The process dies: nothing of it is told to the server.
    pub(in crate::engine) fn die(mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            if let Answer::Later(closing) = self.engine.close() {
                runtime.block_on(closing);
            }
            runtime.shutdown_timeout(Duration::from_secs(1));
        }
    }
}

pub(in crate::engine) fn options(port: u16) -> RedisOptions {
    RedisOptions::new(Address::Tcp("127.0.0.1".into(), port))
}

/// No answer is late because a driver or the server stands still.
pub(in crate::engine) fn patient(options: RedisOptions) -> RedisOptions {
    RedisOptions { request_timeout: PATIENCE, ..options }
}

pub(in crate::engine) fn granted(attempt: Attempt) -> Grant {
    match attempt {
        Attempt::Granted(grant) => grant,
        other => panic!("not granted but {other:?}"),
    }
}

pub(in crate::engine) fn number(grant: &Grant) -> u64 {
    match grant.number {
        Number::Ours(number) => number,
        other => panic!("no number of ours but {other:?}"),
    }
}

/// Waits until something is so.
pub(in crate::engine) fn until(what: &str, mut so: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !so() {
        assert!(Instant::now() < end, "waited in vain until {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A URL that waits for servers for longer than they are late, but where it says for how long.
pub(in crate::engine) fn patient_url(url: &str) -> String {
    let names = ["connect_timeout", "request_timeout"];
    names.iter().filter(|name| !url.contains(**name)).fold(url.to_owned(), |url, name| {
        let sign = if url.contains('?') { '&' } else { '?' };
        format!("{url}{sign}{name}=2m")
    })
}

/// A process with a short time for its first connection, opened again until that was enough.
pub(in crate::engine) fn opened(open: impl Fn() -> Result<Process, Error>) -> Process {
    let mut opened = None;
    until("it can be opened", || {
        match open() {
            Ok(process) => opened = Some(process),
            Err(error) => println!("{error}"),
        }
        opened.is_some()
    });
    opened.expect("it is open")
}

/// The engine of a URL, with this lease unless the URL names one.
pub(in crate::engine) fn engine_of(url: &str, ttl: Duration) -> Result<Box<dyn Engine>, Error> {
    let registration = Registration::of(&EngineUrl::parse(url)?.scheme)?;
    read(&registration, url, ttl, registration.open)
}

/// The options of a URL, as its engine takes them.
pub(in crate::engine) fn read_options<T>(
    registration: &Registration,
    url: &str,
    take: impl FnOnce(&mut EngineUrl, &Common) -> Result<T, Error>,
) -> Result<T, Error> {
    read(registration, url, Duration::from_secs(30), take)
}

fn read<T>(
    registration: &Registration,
    url: &str,
    ttl: Duration,
    take: impl FnOnce(&mut EngineUrl, &Common) -> Result<T, Error>,
) -> Result<T, Error> {
    let mut url = EngineUrl::parse(url)?;
    registration.check(&url)?;
    let ttl = url.take_duration("ttl")?.unwrap_or(ttl);
    let taken = take(&mut url, &Common::new(ttl, 100))?;
    url.finish()?;
    Ok(taken)
}

/// Every option that is registered is read behind this URL; its default is what it says, and each
/// of its words is one.
pub(in crate::engine) fn assert_options_are_read<T: std::fmt::Debug>(
    registration: &Registration,
    url: &str,
    parse: impl Fn(&str) -> Result<T, Error>,
) {
    for option in &registration.options {
        let needs =
            option.needs.map(|(name, value)| format!("&{name}={value}")).unwrap_or_default();
        let tls = if option.name.starts_with("tls_") { "&tls=true" } else { "" };
        let without = format!("{url}?{}{tls}", needs.trim_start_matches('&'));
        let value = if option.default.is_empty() { "/no/such" } else { option.default };
        let given = parse(&format!("{without}&{}={value}", option.name));
        if option.default.is_empty() {
            let named = |e: Error| e.message().contains(option.name);
            assert!(given.err().is_none_or(named), "{}", option.name);
            continue;
        }
        let plain = format!("{:?}", parse(&without).unwrap());
        assert_eq!(format!("{:?}", given.unwrap()), plain, "{}", option.name);
        for word in if let Value::OneOf(words) = option.value { words } else { &[] } {
            parse(&format!("{without}&{}={word}", option.name)).unwrap();
        }
    }
}

/// It takes every call and says nothing: nobody need accept one for that.
pub(in crate::engine) fn silent() -> TcpListener {
    TcpListener::bind("127.0.0.1:0").expect("a free port")
}

/// It takes no call any more: as many wait there as may.
pub(in crate::engine) fn deaf() -> (TcpListener, Vec<TcpStream>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build();
    let runtime = runtime.expect("a runtime");
    let _inside = runtime.enter();
    let socket = tokio::net::TcpSocket::new_v4().expect("a socket");
    socket.bind(([127, 0, 0, 1], 0).into()).expect("a free port");
    let listener =
        socket.listen(1).and_then(tokio::net::TcpListener::into_std).expect("it listens");
    let at = listener.local_addr().expect("it is bound");
    let call = || TcpStream::connect_timeout(&at, Duration::from_secs(1)).ok();
    let callers = std::iter::from_fn(call).collect();
    (listener, callers)
}

/// Silence in TLS is told with the port to give, never with leaving out TLS, and nothing is said of
/// TLS where nobody took the call. `refused` asks `scheme://HOST:PORT` and what follows, `path` at
/// first.
pub(in crate::engine) fn silence_is_no_reason_to_leave_out_tls(
    scheme: &str,
    path: &str,
    says: &str,
    refused: impl Fn(&str) -> Error,
) {
    let home = tempfile::tempdir().expect("a directory");
    let ca = certificates::make(home.path()).join("ca.pem");
    let said = |at: &TcpListener| {
        let at = at.local_addr().expect("it is bound");
        let options = format!("connect_timeout=1s&tls=true&tls_ca={}", ca.display());
        refused(&format!("{scheme}://{at}{path}?{options}")).message().to_owned()
    };
    let silent = silent();
    until("it is named, also by a machine that is busy", || {
        let text = said(&silent);
        assert!(!text.contains("leave out"), "{text}");
        text.contains(says)
    });
    let (deaf, _callers) = deaf();
    let text = said(&deaf);
    assert!(text.contains("cannot be reached") && !text.contains("TLS"), "{text}");
}

/// Takes every place for clients of a server, for as long as the connections live.
pub(in crate::engine) fn fill(port: u16) -> Vec<TcpStream> {
    let mut held = Vec::new();
    until("it is full", || {
        let mut client = TcpStream::connect(("127.0.0.1", port)).expect("it runs");
        let mut said = [0; 5];
        // One that is full says so unasked, and may have closed the connection already.
        let asked = client.write_all(b"PING\r\n").and_then(|()| client.read_exact(&mut said));
        if asked.is_ok() && said == *b"+PONG" {
            held.push(client);
            return false;
        }
        !held.is_empty() && said == *b"-ERR "
    });
    held
}
