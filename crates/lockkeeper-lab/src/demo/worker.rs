//! A worker process of the demo: it takes orders and sells, or plays a part of act 4 or 5.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use lockkeeper::{Error, ErrorKind, Locks, Result};
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::sync::{Mutex, watch};

use super::Guarding;
use super::stock::{Place, Stock};
use crate::helper::{hear, orders, say};

/// How long a sale takes between reading the record and writing it.
const PAUSE: Duration = Duration::from_millis(2);

/// What a worker is told.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Told {
    /// The engine's URL.
    pub(super) url: String,
    /// The lock's name.
    pub(super) name: String,
    pub(super) place: Place,
    pub(super) guarding: Guarding,
    pub(super) part: Part,
}

/// Which part a worker plays.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Part {
    /// Sells to `orders` customers with so many `tasks`. The first customer of every process is the
    /// slow one: the sale takes until every other process has one, too, or until `meet_ms` are
    /// over.
    Seller { orders: u32, tasks: u32, meet_ms: u64 },
    /// Act 4: is stopped between reading and writing, and does not know it.
    Late { ttl_ms: u64 },
    /// Act 4: sells while the other is stopped.
    Next { ttl_ms: u64 },
    /// Act 5: waits for the lock for as long as it takes, reads, is told to go on, and sells.
    Customer { ttl_ms: u64 },
}

/// The life of a worker.
pub(crate) fn main() -> Result<()> {
    let told: Told = hear()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime
        .map_err(|e| Error::new(ErrorKind::Refused, format!("cannot start a runtime: {e}")))?;
    runtime.block_on(async {
        let mut parent = orders();
        let locks = match told.guarding {
            Guarding::Nothing | Guarding::Process | Guarding::Version => None,
            Guarding::Lockkeeper | Guarding::Token | Guarding::Replicas => {
                Some(Locks::open(&told.url).await?)
            }
        };
        // Connected before the time is taken; those that sell share the connection.
        let stock = match told.part {
            Part::Seller { .. } => Some(told.place.open().await?),
            _ => None,
        };
        say("ready");
        wait_for(&mut parent, "go").await;
        match told.part {
            Part::Seller { orders, tasks, meet_ms } => {
                let till = Till::new(&told, locks.clone(), orders, Duration::from_millis(meet_ms));
                serve(till, tasks, parent).await?;
            }
            Part::Late { ttl_ms } => {
                sell_late(&told, locks.as_ref(), Duration::from_millis(ttl_ms), &mut parent).await?
            }
            Part::Next { ttl_ms } => {
                sell_next(&told, locks.as_ref(), Duration::from_millis(ttl_ms)).await?
            }
            Part::Customer { ttl_ms } => {
                let lock = the_lock(&told, locks.as_ref())?;
                sell_slowly(&told, &lock, Duration::from_millis(ttl_ms), &mut parent).await?;
            }
        }
        drop(stock);
        if let Some(locks) = locks {
            // What stayed unknown ends with its lease; the parent counts what was sold and not how
            // it was locked.
            let _ = locks.close().await;
        }
        say("done");
        Ok(())
    })
}

async fn wait_for(parent: &mut UnboundedReceiver<String>, word: &str) {
    while parent.recv().await.is_some_and(|said| said != word) {}
}

/// What the tasks of one process share.
struct Till {
    place: Place,
    guarding: Guarding,
    /// The lock inside the process, which every other process has, too.
    here: Mutex<()>,
    lock: Option<lockkeeper::Mutex>,
    left_to_serve: AtomicU32,
    first: AtomicBool,
    meet: Duration,
    met: watch::Sender<bool>,
}

impl Till {
    fn new(told: &Told, locks: Option<Locks>, orders: u32, meet: Duration) -> Self {
        Self {
            place: told.place.clone(),
            guarding: told.guarding,
            here: Mutex::new(()),
            lock: locks.map(|locks| locks.mutex(&told.name)),
            left_to_serve: AtomicU32::new(orders),
            first: AtomicBool::new(true),
            meet,
            met: watch::Sender::new(false),
        }
    }

    fn next_order(&self) -> bool {
        self.left_to_serve
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1))
            .is_ok()
    }

    /// The first customer of this process came to an empty shelf: whoever waits for it need not.
    fn meet_nobody(&self) {
        if self.first.swap(false, Ordering::Relaxed) {
            say("meet");
        }
    }

    /// What happens between the read and the write: a payment, a printed label, a slow disk.
    async fn pause(&self) {
        if self.first.swap(false, Ordering::Relaxed) && !self.meet.is_zero() {
            say("meet");
            let mut met = self.met.subscribe();
            // Nobody comes in time, or everybody is there: both end the wait.
            let _ = tokio::time::timeout(self.meet, met.wait_for(|met| *met)).await;
        } else {
            tokio::time::sleep(PAUSE).await;
        }
    }
}

/// Serves all orders with so many tasks.
async fn serve(till: Till, tasks: u32, mut parent: UnboundedReceiver<String>) -> Result<()> {
    let till = Arc::new(till);
    let of_parent = till.clone();
    tokio::spawn(async move {
        wait_for(&mut parent, "on").await;
        of_parent.met.send_replace(true);
    });
    let mut selling = tokio::task::JoinSet::new();
    for _ in 0..tasks {
        let till = till.clone();
        selling.spawn(async move {
            let mut stock = till.place.open().await?;
            while till.next_order() {
                say(if sell(&till, stock.as_mut()).await? { "sold" } else { "refused" });
            }
            Ok::<(), Error>(())
        });
    }
    while let Some(sold) = selling.join_next().await {
        sold.map_err(|e| {
            Error::new(ErrorKind::Refused, format!("a task of the demo ended early: {e}"))
        })??;
    }
    Ok(())
}

/// One order, guarded as the act says; answers whether the customer got a piece.
async fn sell(till: &Till, stock: &mut dyn Stock) -> Result<bool> {
    match (till.guarding, &till.lock) {
        (Guarding::Process, _) => {
            let _turn = till.here.lock().await;
            read_pause_write(till, stock).await
        }
        (Guarding::Lockkeeper | Guarding::Token | Guarding::Replicas, Some(lock)) => {
            lock.with(|_held| read_pause_write(till, stock)).await
        }
        (Guarding::Version, _) => sell_at_version(till, stock).await,
        _ => read_pause_write(till, stock).await,
    }
}

/// The sale itself, the same in every act.
async fn read_pause_write(till: &Till, stock: &mut dyn Stock) -> Result<bool> {
    let left = stock.read().await?;
    let Some(left) = left.checked_sub(1) else {
        till.meet_nobody();
        return Ok(false);
    };
    till.pause().await;
    stock.write(left).await?;
    Ok(true)
}

/// The sale without any lock: it is written only if nobody wrote since it was read, else all of it
/// is done again, the payment too.
async fn sell_at_version(till: &Till, stock: &mut dyn Stock) -> Result<bool> {
    loop {
        let (left, version) = stock.read_version().await?;
        if left == 0 {
            till.meet_nobody();
            return Ok(false);
        }
        till.pause().await;
        if stock.take_at_version(version).await? {
            return Ok(true);
        }
        say("repeat");
    }
}

fn the_lock(told: &Told, locks: Option<&Locks>) -> Result<lockkeeper::Mutex> {
    let none = || Error::new(ErrorKind::InvalidArgument, "this part needs an engine");
    locks.map(|locks| locks.mutex(&told.name)).ok_or_else(none)
}

/// Reads under the lock, is stopped for longer than the lease lasts, and writes.
async fn sell_late(
    told: &Told,
    locks: Option<&Locks>,
    ttl: Duration,
    parent: &mut UnboundedReceiver<String>,
) -> Result<()> {
    let guard = the_lock(told, locks)?.lock().ttl(ttl).await?;
    let token = guard.token()?;
    let mut stock = told.place.open().await?;
    let left = stock.read().await?;
    say("read");
    wait_for(parent, "on").await;
    // A program that asks here is told that its lock is gone, and one whose work runs under `with`
    // is not polled any more. But between any check and the write that follows it a process can be
    // stopped, and this is that moment.
    let written = match told.guarding {
        Guarding::Token => stock.write_fenced(left.saturating_sub(1), token).await?,
        _ => stock.write(left.saturating_sub(1)).await.map(|()| true)?,
    };
    say(if written { "accepted" } else { "rejected" });
    drop(guard);
    Ok(())
}

/// Waits for the lock of a stopped holder, and sells.
async fn sell_next(told: &Told, locks: Option<&Locks>, ttl: Duration) -> Result<()> {
    let guard = the_lock(told, locks)?.lock().ttl(ttl).await?;
    let mut stock = told.place.open().await?;
    let left = stock.read().await?;
    let written = match (left.checked_sub(1), told.guarding) {
        (None, _) => false,
        (Some(left), Guarding::Token) => stock.write_fenced(left, guard.token()?).await?,
        (Some(left), _) => stock.write(left).await.map(|()| true)?,
    };
    say(if written { "sold" } else { "refused" });
    // Whether it was late itself is seen at the stock; here only the order matters.
    let _ = guard.release().await;
    Ok(())
}

/// For how long a customer of act 5 asks again for a lock whose server is away.
const CUSTOMER_WAITS: Duration = Duration::from_secs(50);

/// Waits for the lock through the death of its server, reads, and writes when it is told to.
async fn sell_slowly(
    told: &Told,
    lock: &lockkeeper::Mutex,
    ttl: Duration,
    parent: &mut UnboundedReceiver<String>,
) -> Result<()> {
    let until = tokio::time::Instant::now() + CUSTOMER_WAITS;
    let guard = loop {
        match lock.lock().ttl(ttl).await {
            Ok(guard) => break guard,
            // Too few replicas have it, or nobody is the master now.
            Err(error) if error.is_temporary() && tokio::time::Instant::now() < until => {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            Err(error) => return Err(error),
        }
    };
    let mut stock = told.place.open().await?;
    let left = stock.read().await?;
    say("read");
    wait_for(parent, "on").await;
    if let Some(left) = left.checked_sub(1) {
        stock.write(left).await?;
        say("sold");
    } else {
        say("refused");
    }
    // Whether it was lost meanwhile is seen at the stock.
    let _ = guard.release().await;
    Ok(())
}
