//! Act 5: the server that granted the lock dies before another one knows of it, and one piece has
//! two customers; where others had to know of it first, or were asked as well, it has one.
//!
//! It is played on servers of its own, whatever the URL names: nobody's master is killed.

use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

use lockkeeper::engine::Registration;
use lockkeeper::{Error, ErrorKind, Result};
use nix::sys::signal::Signal;

use super::progress::Progress;
use super::show::Shown;
use super::stock::Record;
use super::worker::{Part, Told};
use super::{Guarding, HELPER, Outcome};
use crate::engines;
use crate::helper::{Crew, Program, Said};
use crate::scratch::Scratch;

/// What people read before the rows of the act.
pub(super) const INTRODUCTION: &str = "
Act 5, on servers that are started for it: the server that granted the lock dies before another one
knows of it.
";

/// How long anything may take that has to happen.
const PATIENCE: Duration = Duration::from_secs(60);
/// For how long nothing happens that must not.
const SILENCE: Duration = Duration::from_secs(3);

/// Servers of one run, of which one dies.
pub(crate) trait Falls {
    /// How customers reach them.
    fn url(&self) -> String;
    /// From now on nobody but the server that grants hears of a grant.
    ///
    /// # Errors
    /// When a server does not do as it is told.
    fn prepare(&mut self) -> Result<(), String>;
    /// It dies; when this returns, what is there in its place serves.
    ///
    /// # Errors
    /// When nothing takes its place.
    fn fall(&mut self) -> Result<(), String>;
}

/// How a run of the act ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ends {
    /// The second customer gets the lock while the lease of the first one lasts: two are sold.
    TwoSold,
    /// Nobody gets it before another server knows of it: one is sold.
    GrantedLater,
    /// The first customer keeps it, for the other servers have it: one is sold.
    Kept,
}

/// A run of the act.
pub(crate) struct Scene {
    /// The engine that it is about.
    pub(crate) engine: &'static str,
    pub(crate) guarding: Guarding,
    pub(crate) ends: Ends,
    /// The lease.
    pub(crate) ttl: Duration,
    /// Starts its servers, with their files in this directory. The number is the exit code.
    pub(crate) start: Start,
}

/// Starts servers in a directory, or says why not.
type Start = fn(&Path) -> Result<Box<dyn Falls>, (u8, String)>;

/// The runs for an engine: all that this build can play, where the engine has one of its own. Those
/// that go wrong come first.
pub(super) fn scenes(engine: &str) -> Vec<&'static Scene> {
    if !engines::all().any(|lab| lab.engine() == engine && !lab.scenes().is_empty()) {
        return Vec::new();
    }
    let is_built = |lab: &&dyn engines::LabEngine| {
        lab.auto().is_some_and(|scheme| Registration::of(scheme).is_ok())
    };
    let mut all: Vec<_> = engines::all().filter(is_built).flat_map(|lab| lab.scenes()).collect();
    all.sort_by_key(|scene| scene.ends as u8);
    all
}

impl Scene {
    /// Plays it.
    ///
    /// # Errors
    /// What the engine or the system says; `Closed` when the user ended it.
    fn play(&self, program: &Program, name: &str) -> Result<Outcome> {
        let refused = |text: String| Error::new(ErrorKind::Refused, text);
        let dir = Scratch::new("lockkeeper-auto-");
        let dir = dir.map_err(|e| refused(format!("no directory for act 5: {e}")))?;
        let mut servers = (self.start)(dir.path()).map_err(|(_, text)| refused(text))?;
        let url = servers.url();
        let record = Record::make(&url, name, None)?;
        record.fill(1)?;
        let mut crew = Crew::new();
        let told = Told {
            url: url.clone(),
            name: name.to_owned(),
            place: record.place().clone(),
            guarding: self.guarding,
            part: Part::Customer { ttl_ms: u64::try_from(self.ttl.as_millis()).unwrap_or(0) },
        };
        let first = crew.start(program, HELPER, &told)?;
        let second = crew.start(program, HELPER, &told)?;
        crew.hear_from_all("ready", PATIENCE)?;
        servers.prepare().map_err(refused)?;
        let began = Instant::now();
        crew.tell(first, "go")?;
        // Under a lease it has read the stock, and is busy with the payment.
        let wait = if self.ends == Ends::GrantedLater { SILENCE } else { PATIENCE };
        let held = heard(&mut crew, first, "read", wait)?;
        if self.ends == Ends::TwoSold {
            crew.signal(first, Signal::SIGSTOP);
        }
        servers.fall().map_err(refused)?;
        let left = self.ttl.saturating_sub(began.elapsed());
        if self.ends == Ends::TwoSold && left < self.ttl / 2 {
            let text = "the failover of act 5 took half a lease: the machine is overloaded";
            return Err(refused(text.to_owned()));
        }
        crew.tell(second, "go")?;
        crew.tell(second, "on")?;
        let mut sold = 0;
        if held {
            // Whoever gets it only because a lease is over is told about in act 4. That it is over,
            // the server says later than this one began to count: the first goes on before.
            let before = left.saturating_sub(self.ttl / 10);
            let wait = if self.ends == Ends::TwoSold { before } else { SILENCE };
            sold += u64::from(heard(&mut crew, second, "sold", wait)?);
        }
        crew.tell(first, "on")?;
        crew.signal(first, Signal::SIGCONT);
        let mut done = 0;
        while done < 2 {
            match crew.hear(PATIENCE)?.line.as_str() {
                "sold" => sold += 1,
                "done" => done += 1,
                _ => {}
            }
        }
        Ok(Outcome {
            act: 5,
            guarding: self.guarding,
            engine: self.engine,
            processes: 2,
            orders: 2,
            stock: 1,
            sold,
            left: record.left()?,
            accepted: 0,
            rejected: 0,
            repeats: 0,
            seconds: began.elapsed().as_secs_f64(),
        })
    }

    /// Whether it ended as it is told.
    fn is_as_told(&self, outcome: &Outcome) -> bool {
        outcome.sold == if self.ends == Ends::TwoSold { 2 } else { 1 } && outcome.left == 0
    }
}

/// Plays runs of the act, one after the other; answers whether all ended as they are told.
///
/// # Errors
/// What a run ended with.
pub(super) fn play(
    scenes: &[&Scene],
    (program, name): (&Program, &str),
    shown: &mut Shown<'_>,
    progress: &mut Progress<impl Write>,
) -> Result<bool> {
    let mut as_told = true;
    for scene in scenes {
        progress.say("act 5: the server that granted the lock dies");
        let outcome = scene.play(program, name);
        progress.clear();
        let outcome = outcome?;
        as_told &= scene.is_as_told(&outcome);
        shown.outcome(&outcome)?;
    }
    Ok(as_told)
}

/// Whether a helper says this in time; what the others say is passed over.
fn heard(crew: &mut Crew, helper: usize, word: &str, patience: Duration) -> Result<bool> {
    let until = Instant::now() + patience;
    loop {
        match crew.hear(until.saturating_duration_since(Instant::now())) {
            Ok(said) if said == (Said { helper, line: word.to_owned() }) => return Ok(true),
            Ok(_) => {}
            Err(silent) if silent.kind() == ErrorKind::TimedOut => return Ok(false),
            Err(error) => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use lockkeeper_testkit::redis::server::RedisServer;

    use super::super::{Options, describe, interruptible};
    use super::*;
    use crate::helper;

    /// The act on one server, which dies or does not.
    struct One {
        server: RedisServer,
        forgets: bool,
    }

    impl Falls for One {
        fn url(&self) -> String {
            self.server.url()
        }

        fn prepare(&mut self) -> Result<(), String> {
            Ok(())
        }

        fn fall(&mut self) -> Result<(), String> {
            // The stock that is sold from is there as well.
            for key in self.server.command(&["KEYS", "*lock:*"]).iter().filter(|_| self.forgets) {
                self.server.command(&["DEL", key]);
            }
            Ok(())
        }
    }

    fn one(forgets: bool) -> Box<dyn Falls> {
        Box::new(One { server: RedisServer::start(), forgets })
    }

    #[test]
    fn the_demo_ends_with_1_where_act_5_does_not_end_as_it_is_told() {
        let scene = |ends, seconds, start| Scene {
            engine: "redis",
            guarding: Guarding::Lockkeeper,
            ends,
            ttl: Duration::from_secs(seconds),
            start,
        };
        // What takes its place has the key after all; or those who should have kept it forget it.
        let kept: Start = |_| Ok(one(false));
        let forgotten: Start = |_| Ok(one(true));
        for (lies, code, sold) in [
            (scene(Ends::TwoSold, 6, kept), 1, 1),
            (scene(Ends::Kept, 60, forgotten), 1, 2),
            (scene(Ends::Kept, 60, kept), 0, 1),
        ] {
            let this = std::env::current_exe().unwrap().into_os_string();
            let helper = "demo::failover::tests::a_customer_of_these_tests";
            let line = ["LOCKKEEPER_TEST_ROLE=customer".into(), this, "--exact".into()];
            let rest = [helper, "--nocapture", "--test-threads=2"].map(Into::into);
            let arguments = line.into_iter().chain(rest).collect();
            let program = Program { path: "env".into(), arguments };
            let server = RedisServer::start();
            let options = Options { json: true, ..Options::new(server.url()) };
            let (about, mut out) = (describe(&options.url).unwrap(), Vec::new());
            let mut shown = Shown::new(&options, &about, &mut out);
            let mut progress = Progress::new(false);
            let by = (&program, "act 5");
            let ended = interruptible(|| play(&[&lies], by, &mut shown, &mut progress)).unwrap();
            let said = String::from_utf8(out).unwrap();
            assert_eq!(ended, code, "{said}");
            assert!(said.contains(&format!("\"sold\":{sold},")), "{said}");
        }
    }

    #[test]
    fn a_customer_of_these_tests() {
        if std::env::var_os("LOCKKEEPER_TEST_ROLE").is_some() {
            assert_eq!(helper::main(&[HELPER.into()]), 0);
        }
    }

    #[test]
    fn engines_whose_servers_can_take_each_others_place_have_the_act_and_no_others() {
        for engine in ["redis", "file", "zookeeper"] {
            assert!(scenes(engine).is_empty(), "{engine}");
        }
        for engine in ["sentinel", "cluster", "redlock"] {
            let ends: Vec<Ends> = scenes(engine).iter().map(|scene| scene.ends).collect();
            let told = [Ends::TwoSold, Ends::TwoSold, Ends::GrantedLater, Ends::Kept];
            assert_eq!(ends, told, "{engine}");
        }
    }

    #[test]
    fn a_run_that_sold_another_number_did_not_end_as_it_is_told() {
        for scene in scenes("sentinel") {
            for sold in 0..=3 {
                let told = if scene.ends == Ends::TwoSold { 2 } else { 1 };
                let outcome = Outcome {
                    act: 5,
                    guarding: scene.guarding,
                    engine: scene.engine,
                    processes: 2,
                    orders: 2,
                    stock: 1,
                    sold,
                    left: 0,
                    accepted: 0,
                    rejected: 0,
                    repeats: 0,
                    seconds: 1.0,
                };
                assert_eq!(scene.is_as_told(&outcome), sold == told, "{:?} {sold}", scene.ends);
                assert!(!scene.is_as_told(&Outcome { left: 1, ..outcome }));
            }
        }
    }
}
