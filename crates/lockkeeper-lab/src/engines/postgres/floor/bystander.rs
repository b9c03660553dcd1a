//! What a program that has nothing to do with locks loses beside them: pgbench on the same server,
//! while pairs of processes hand locks to each other, and while each takes a lock of its own, which
//! notifies nobody, so that there are as many commits.

use std::io::BufRead as _;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use lockkeeper::url::EngineUrl;
use lockkeeper::{Error, ErrorKind, blocking};
use lockkeeper_testkit::postgres::server::packaged;
use serde::{Deserialize, Serialize};
use tokio_postgres::Client;

use super::bare::connect;
use crate::bench::measure::{Pairs, Row};
use crate::bench::{Subject, text};
use crate::helper::{Crew, Program, hear, say};

/// The kind of helper that is one of a pair.
pub(crate) const HELPER: &str = "bench-postgres";
const PAIRS: u32 = 8;
/// How many clients pgbench has.
const CLIENTS: &str = "4";
/// How long a lock is held: a machine whose processors are full tells nothing about commits.
const WORK: Duration = Duration::from_millis(20);
/// How far the pairs step back behind pgbench and the server.
const NICE: i32 = 19;
const PATIENCE: Duration = Duration::from_secs(60);

/// What one of a pair is told first.
#[derive(Serialize, Deserialize)]
struct Told {
    url: String,
    /// What the pair locks.
    name: String,
    /// What it alone locks.
    own: String,
}

/// See the module.
pub(super) fn bystander(subject: &Subject) -> Result<Row, String> {
    let pgbench = Pgbench::new(&subject.url)?;
    let looks = subject.runtime.block_on(connect(&subject.url))?;
    let mut crew = Crew::new();
    for n in 0..PAIRS * 2 {
        let told = Told {
            url: subject.url.clone(),
            name: subject.name(&format!("pair/{}", n / 2)),
            own: subject.name(&format!("own/{n}")),
        };
        crew.start(&Program::this().map_err(text)?, HELPER, &told).map_err(text)?;
    }
    crew.hear_from_all("ready", PATIENCE).map_err(text)?;
    // Whole seconds, which is what pgbench takes.
    let seconds = (subject.time / 8).as_secs().max(1);
    let (began, mut all) = (Instant::now(), Vec::new());
    while began.elapsed() < subject.time || all.len() < 2 {
        let ran = beside(subject, &looks, &mut crew, "hand", &pgbench, seconds)?;
        // A lock of its own, taken and given back, is two.
        let each = ran.commits / f64::from(PAIRS * 2) / 2.0;
        let alone = beside(subject, &looks, &mut crew, &each.to_string(), &pgbench, seconds)?;
        all.push((1e6 / ran.tps, 1e6 / alone.tps));
    }
    crew.tell_all("end").map_err(text)?;
    let row = subject.row("bystander", PAIRS * 2).rates(&Pairs(all));
    Ok(row.beside("pgbench beside as many commits of locks that nobody waits for", "≥ 0.9"))
}

/// What pgbench reached, and how many commits a second the others made.
struct Ran {
    tps: f64,
    commits: f64,
}

/// Runs pgbench while the pairs do something.
fn beside(
    subject: &Subject,
    looks: &Client,
    crew: &mut Crew,
    word: &str,
    pgbench: &Pgbench,
    seconds: u64,
) -> Result<Ran, String> {
    crew.tell_all(word).map_err(text)?;
    crew.hear_from_all("begun", PATIENCE).map_err(text)?;
    // Every commit that writes takes one number.
    let count = || async {
        let asked = "SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint";
        Ok::<i64, String>(looks.query_one(asked, &[]).await.map_err(text)?.get(0))
    };
    let (began, before) = (Instant::now(), subject.runtime.block_on(count())?);
    let done = pgbench.run(seconds)?;
    let (took, after) = (began.elapsed().as_secs_f64(), subject.runtime.block_on(count())?);
    crew.tell_all("stop").map_err(text)?;
    crew.hear_from_all("stopped", PATIENCE).map_err(text)?;
    Ok(Ran { tps: done.tps, commits: ((after - before) as f64 - done.all).max(0.0) / took })
}

/// pgbench with tables of its own.
struct Pgbench {
    host: String,
    port: String,
    user: String,
    database: String,
}

struct Done {
    tps: f64,
    all: f64,
}

impl Pgbench {
    fn new(url: &str) -> Result<Self, String> {
        let url = EngineUrl::parse(url).map_err(text)?;
        let (host, port) = url.single_host().map_err(text)?;
        let pgbench = Self {
            host,
            port: port.unwrap_or(5432).to_string(),
            user: url.user.clone().unwrap_or_default(),
            database: url.path.trim_start_matches('/').to_owned(),
        };
        pgbench.say(&["-i", "-q"])?;
        Ok(pgbench)
    }

    fn say(&self, words: &[&str]) -> Result<String, String> {
        let program = packaged("pgbench");
        let output = Command::new(&program)
            .args(["-h", &self.host, "-p", &self.port, "-U", &self.user])
            .args(words)
            .arg(&self.database)
            .stdin(Stdio::null())
            .output()
            .map_err(|error| format!("{}: {error}", program.display()))?;
        if !output.status.success() {
            return Err(format!("pgbench: {}", String::from_utf8_lossy(&output.stderr).trim()));
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    fn run(&self, seconds: u64) -> Result<Done, String> {
        let said = self.say(&["-n", "-N", "-c", CLIENTS, "-T", &seconds.to_string()])?;
        let number = |begin: &str| {
            let rest = said.lines().find_map(|line| line.strip_prefix(begin))?;
            rest.split_whitespace().next()?.parse::<f64>().ok()
        };
        match (number("tps = "), number("number of transactions actually processed: ")) {
            (Some(tps), Some(all)) if tps > 0.0 => Ok(Done { tps, all }),
            _ => Err(format!("pgbench said {said:?}")),
        }
    }
}

/// The life of one of a pair.
pub(crate) fn serve() -> Result<(), Error> {
    let failed = |e: String| Error::new(ErrorKind::Refused, e);
    let told: Told = hear()?;
    // Clients are on other machines: what they need of the processors is not pgbench's.
    // SAFETY: it takes a number and changes nothing but this process' priority.
    _ = unsafe { nix::libc::nice(NICE) };
    let locks = blocking::Locks::open(&told.url)?;
    let (mutex, own) = (locks.mutex(&told.name), locks.mutex(&told.own));
    let (tell, orders) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines().map_while(std::io::Result::ok) {
            _ = tell.send(line);
        }
    });
    say("ready");
    while let Ok(word) = orders.recv() {
        if word == "end" {
            break;
        }
        say("begun");
        let stopped = || orders.try_recv().is_ok();
        if word == "hand" {
            while !stopped() {
                let guard = mutex.lock().run()?;
                std::thread::sleep(WORK);
                drop(guard);
            }
        } else {
            let rate: f64 = word.parse().map_err(|e| failed(text(e)))?;
            let pause = Duration::from_secs_f64(1.0 / rate.clamp(0.1, 1e6));
            let mut next = Instant::now();
            while !stopped() {
                // Two commits, and nobody waits. What comes late is made up for.
                _ = own.lock().run()?.release();
                next += pause;
                std::thread::sleep(next.saturating_duration_since(Instant::now()));
            }
        }
        say("stopped");
    }
    Ok(())
}
