//! `lockkeeper demo oversell`: the overselling story, with real processes. `contenders` is the
//! other demo.
//!
//! `mod` tells the story, `act` plays acts 1 to 3 and 6, `late` act 4 and `failover` act 5,
//! `worker` is what each process does, `stock` is the record that they sell from, `show` is what
//! people and programs see of it.

mod act;
pub mod contenders;
pub(crate) mod failover;
mod late;
mod progress;
mod show;
pub(crate) mod stock;
pub(crate) mod worker;

use std::io::Write;

use lockkeeper::engine::{ClaimId, Keep};
use lockkeeper::url::EngineUrl;
use lockkeeper::{Description, Error, ErrorKind, Locks, Result};
use serde::{Deserialize, Serialize};

use crate::engines;
use crate::engines::own::Own;
use crate::helper::Program;
use crate::interrupt;
use act::Act;
use late::Late;
use progress::Progress;
use stock::{Record, block_on};

/// The kind of helper that this module starts.
pub(crate) const HELPER: &str = "demo";

const STOCK_MAX: u64 = 100_000;
const WORKERS_MAX: u32 = 64;
const ORDERS_MAX: u32 = 100_000;
/// How many sell in act 6: few, some and many at once.
const SIZES: [u32; 3] = [2, 8, 32];

/// What to play.
#[derive(Clone, Debug)]
pub struct Options {
    /// The engine's URL.
    pub url: String,
    /// How many pieces there are.
    pub stock: u64,
    /// The URL of the database that the stock is in; `None`: where the lock is, or in a file.
    pub store: Option<String>,
    /// How many processes sell them.
    pub workers: u32,
    /// How many customers want one.
    pub orders: u32,
    /// One JSON object a run instead of the table.
    pub json: bool,
    /// How the program starts itself; `None` as [`Program::this`] says.
    pub program: Option<Program>,
}

impl Options {
    /// The story as it is told when nothing else is asked for.
    pub fn new(url: impl Into<String>) -> Self {
        let (stock, workers, orders) = (50, 8, 400);
        Self { url: url.into(), stock, store: None, workers, orders, json: false, program: None }
    }

    fn check(&self) -> Result<()> {
        let wrong = |text: String| Err(Error::new(ErrorKind::InvalidArgument, text));
        let (stock, workers, orders) = (self.stock, self.workers, self.orders);
        if !(1..=STOCK_MAX).contains(&stock) {
            return wrong(format!("--stock {stock} is not between 1 and {STOCK_MAX}"));
        }
        if !(1..=WORKERS_MAX).contains(&workers) {
            return wrong(format!("--workers {workers} is not between 1 and {WORKERS_MAX}"));
        }
        if !(1..=ORDERS_MAX).contains(&orders) {
            return wrong(format!("--orders {orders} is not between 1 and {ORDERS_MAX}"));
        }
        if let Some(store) = &self.store {
            let registered = engines::registration(store)?;
            registered.check(&EngineUrl::parse(store)?)?;
            let engine = registered.engine;
            let is_built = engines::all().any(|lab| lab.engine() == engine);
            if !is_built || !engines::of(store).shelf().has_versions() {
                return wrong(format!(
                    "--stock takes how many pieces there are, or the URL of a database that they \
                     are kept in, and {engine} is none"
                ));
            }
            if engines::of(store).shelf().place(store, "any").is_none() {
                return wrong(
                    "--stock: the demo's own connection speaks no TLS: name a server of this \
                     machine, or add sslmode=disable where the network is trusted"
                        .to_owned(),
                );
            }
        }
        let registered = engines::registration(&self.url)?;
        if registered.keep == Keep::Process {
            return wrong(format!(
                "the engine {}: is private to one process, and this story is about several: choose \
                 another engine",
                registered.engine
            ));
        }
        Ok(())
    }
}

/// What guards a sale.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Guarding {
    #[serde(rename = "none")]
    Nothing,
    #[serde(rename = "process")]
    Process,
    #[serde(rename = "lockkeeper")]
    Lockkeeper,
    #[serde(rename = "lockkeeper+token")]
    Token,
    #[serde(rename = "lockkeeper+wait_replicas")]
    Replicas,
    #[serde(rename = "version")]
    Version,
}

/// What came of one run of an act.
#[derive(Clone, Debug)]
struct Outcome {
    act: u8,
    guarding: Guarding,
    engine: &'static str,
    processes: u32,
    orders: u32,
    stock: u64,
    sold: u64,
    /// What the record says afterwards.
    left: u64,
    accepted: u64,
    rejected: u64,
    /// Act 6: sales that were done again, because another one was written meanwhile.
    repeats: u64,
    seconds: f64,
}

impl Outcome {
    fn oversold(&self) -> u64 {
        self.sold.saturating_sub(self.stock)
    }

    /// Every piece went to one customer, and the record knows.
    fn is_exact(&self) -> bool {
        self.sold == self.stock.min(u64::from(self.orders))
            && self.left == self.stock.saturating_sub(self.sold)
    }

    /// Whether lockkeeper kept what it promises; the other guards promise nothing.
    fn is_as_promised(&self) -> bool {
        match (self.act, self.guarding) {
            (3 | 6, _) => self.is_exact(),
            (4, Guarding::Token) => self.accepted == 0 && self.rejected > 0 && self.is_exact(),
            _ => true,
        }
    }
}

/// Plays the story and answers the exit code: 0 when lockkeeper sold exactly what there was, and,
/// on an engine with leases, the stock rejected the late write that carried a token; else 1, and
/// 128 + N after signal N.
///
/// # Errors
/// `InvalidArgument` for numbers out of range and for engines that only one process sees; what the
/// engine says.
pub fn run(options: &Options, out: &mut dyn Write) -> Result<u8> {
    options.check()?;
    let own = started(&options.url, !options.json)?;
    let url = own.as_ref().map_or(options.url.as_str(), Own::url).to_owned();
    let store = options.store.as_deref().map(|url| started(url, !options.json)).transpose()?;
    let store = match (&store, &options.store) {
        (Some(Some(own)), _) => Some(own.url().to_owned()),
        (_, named) => named.clone(),
    };
    let options = Options { url, store, ..options.clone() };
    interruptible(|| play(&options, out))
}

/// What a URL has us start, with a word on the terminal meanwhile.
fn started(url: &str, wanted: bool) -> Result<Option<Own>> {
    let mut progress = Progress::new(wanted);
    progress.say("starting the engine");
    let own = Own::start(url);
    progress.clear();
    own
}

/// Plays with signals noted; 1 when a promise was not kept.
fn interruptible(play: impl FnOnce() -> Result<bool>) -> Result<u8> {
    let watch = interrupt::Watch::new();
    let played = play();
    let caught = interrupt::caught();
    drop(watch);
    match caught {
        // Whatever failed then failed because of it.
        Some(signal) => Ok(u8::try_from(128 + signal).unwrap_or(1)),
        None => played.map(|promised| u8::from(!promised)),
    }
}

fn play(options: &Options, out: &mut dyn Write) -> Result<bool> {
    let program = options.program.clone().map_or_else(Program::this, Ok)?;
    let shown_as = options;
    let options = &Options { url: short_lived(&options.url)?, ..options.clone() };
    let about = describe(&options.url)?;
    // Nobody else has this name, and nothing under it stays.
    let name = format!("lockkeeper-demo/{}", ClaimId::fresh());
    let record = Record::make(&options.url, &name, options.store.as_deref())?;
    // A store that cannot be reached is told of before anything else is.
    record.fill(options.stock)?;
    let mut shown = show::Shown::new(shown_as, &about, out);
    shown.begin()?;
    let mut progress = Progress::new(!options.json);
    let mut promised = true;
    for (number, guarding, processes) in [
        (1, Guarding::Nothing, options.workers),
        (2, Guarding::Process, 1),
        (2, Guarding::Process, options.workers),
        (3, Guarding::Lockkeeper, options.workers),
    ] {
        let act = Act {
            number,
            guarding,
            processes,
            options,
            program: &program,
            engine: about.engine,
            name: &name,
        };
        let outcome = act.play(&record, &mut progress)?;
        promised &= outcome.is_as_promised();
        shown.outcome(&outcome)?;
    }
    if about.expiry.is_timed() {
        for guarding in [Guarding::Lockkeeper, Guarding::Token] {
            progress.say("act 4: a holder is stopped for longer than its lease lasts");
            let outcome = Late { guarding, options, program: &program, about: &about, name: &name }
                .play(&record);
            progress.clear();
            match outcome {
                Err(error) if error.kind() == ErrorKind::NoToken => {
                    promised = false;
                    shown.note(
                        "This layout has no fencing token, so the stock could not tell the late \
                         write from a good one.\n",
                    )?;
                }
                outcome => {
                    let outcome = outcome?;
                    promised &= outcome.is_as_promised();
                    shown.outcome(&outcome)?;
                }
            }
        }
    }
    let scenes = failover::scenes(about.engine);
    if !scenes.is_empty() {
        shown.note(failover::INTRODUCTION)?;
    }
    promised &= failover::play(&scenes, (&program, &name), &mut shown, &mut progress)?;
    let mut sizes = SIZES.into_iter().filter(|size| *size <= options.orders).peekable();
    if record.has_versions() && sizes.peek().is_some() {
        shown.note(WITHOUT_A_LOCK)?;
        for processes in sizes {
            for guarding in [Guarding::Lockkeeper, Guarding::Version] {
                let (number, program, engine, name) = (6, &program, about.engine, name.as_str());
                let act = Act { number, guarding, processes, options, program, engine, name };
                let outcome = act.play(&record, &mut progress)?;
                promised &= outcome.is_as_promised();
                shown.outcome(&outcome)?;
            }
        }
    }
    shown.end(promised)?;
    Ok(promised)
}

/// What people read before the rows of act 6.
const WITHOUT_A_LOCK: &str = "
Act 6: the same sales without any lock. A sale is written only where the row still has the version
that it read, else it is done again. Beside it the time under the lock, with as many workers.
";

/// Where the lease is a session and the URL does not say how long, it is a short one: act 4 waits
/// for its end.
fn short_lived(url: &str) -> Result<String> {
    let mut parsed = EngineUrl::parse(url)?;
    let Keep::Session { option, .. } = engines::registration(url)?.keep_of(&parsed) else {
        return Ok(url.to_owned());
    };
    if parsed.take(option).is_some() {
        return Ok(url.to_owned());
    }
    Ok(format!("{url}{}{option}=4s", if url.contains('?') { '&' } else { '?' }))
}

/// Reaches the engine before anything else is started.
fn describe(url: &str) -> Result<Description> {
    block_on(async {
        let locks = Locks::open(url).await?;
        let about = locks.describe();
        // Nothing was locked, so nothing can stay unknown.
        let _ = locks.close().await;
        Ok(about)
    })?
}
