//! The world: one server, many clients, and what the network does to their messages.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use std::time::Duration;

use lockkeeper::Ticks;
use lockkeeper::engine::{Context, Event, Grant, Lease, LeaseId, Number};
use lockkeeper_testkit::dice::Dice;

use super::server::{Push, Server};
use super::stage::Stage;

/// How long a request waits for its answer before that is unknown.
pub(super) const REQUEST_TIMEOUT: Duration = Duration::from_secs(2);

/// What goes wrong, in thousandths.
#[derive(Clone, Copy, Debug, Default)]
pub struct Faults {
    /// Requests that never arrive.
    pub request_lost: u64,
    /// Replies that never arrive.
    pub reply_lost: u64,
    /// Requests that arrive a second time, later.
    pub doubled: u64,
    /// Pushes that never arrive.
    pub push_lost: u64,
    /// The longest way of a message, in milliseconds; one in ten takes a hundred times that.
    pub delay_ms: u64,
    /// Pushes do not say when the grant was made.
    pub no_anchor: bool,
}

/// See the module. Clones are the same.
#[derive(Clone)]
pub struct World {
    stage: Stage,
    inner: Arc<Mutex<Inner>>,
}

struct Inner {
    server: Server,
    faults: Faults,
    dice: Dice,
    /// How far the server's clock is ahead of ours.
    ahead: Duration,
    clients: BTreeMap<u64, Seat>,
    next_client: u64,
}

#[derive(Default)]
struct Seat {
    context: Option<Context>,
    cut: bool,
    /// The server's time in the last answer, and our reading before its request.
    anchor: Option<(Ticks, Ticks)>,
}

impl World {
    /// A world without faults; its dice follow from the seed.
    pub fn new(stage: &Stage, seed: u64) -> Self {
        let inner = Inner {
            server: Server::default(),
            faults: Faults { delay_ms: 2, ..Faults::default() },
            dice: Dice::new(seed ^ 0x5eed),
            ahead: Duration::from_secs(77),
            clients: BTreeMap::new(),
            next_client: 0,
        };
        Self { stage: stage.clone(), inner: Arc::new(Mutex::new(inner)) }
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The stage that everything runs on.
    pub fn stage(&self) -> &Stage {
        &self.stage
    }

    /// From now on this goes wrong.
    pub fn set_faults(&self, faults: Faults) {
        self.inner().faults = faults;
    }

    /// Looks at the server.
    pub fn look<T>(&self, look: impl FnOnce(&Server) -> T) -> T {
        look(&self.inner().server)
    }

    /// The server restarts without its data; every link breaks for a moment.
    pub fn forget(&self) {
        let now = self.server_now();
        self.inner().server.forget(now);
        for client in self.clients() {
            self.cut(client, true);
            self.cut(client, false);
        }
    }

    /// Cuts a client off, or lets it come back.
    pub fn cut(&self, client: u64, cut: bool) {
        let context = {
            let mut inner = self.inner();
            let Some(seat) = inner.clients.get_mut(&client) else { return };
            seat.cut = cut;
            seat.context.clone()
        };
        if let Some(context) = context {
            self.stage.spawn(async move { context.events.send(Event::Link { up: !cut }) });
        }
    }

    /// The clients there are.
    pub fn clients(&self) -> Vec<u64> {
        self.inner().clients.keys().copied().collect()
    }

    pub(super) fn join(&self) -> u64 {
        let mut inner = self.inner();
        inner.next_client += 1;
        let client = inner.next_client;
        inner.clients.insert(client, Seat::default());
        client
    }

    pub(super) fn opened(&self, client: u64, context: Context) {
        if let Some(seat) = self.inner().clients.get_mut(&client) {
            seat.context = Some(context);
        }
    }

    pub(super) fn leave(&self, client: u64) {
        self.inner().clients.remove(&client);
    }

    fn server_now(&self) -> Ticks {
        let ahead = self.inner().ahead;
        self.stage.now().plus(ahead)
    }

    /// A server's reading as one of ours; for comparing its history with what guards believed.
    pub fn ours(&self, server: Ticks) -> Ticks {
        server.minus(self.inner().ahead)
    }

    /// Until when a request that is sent now is taken by the server, by the server's clock.
    pub(super) fn not_after(&self, client: u64, give_up: Option<Ticks>) -> Ticks {
        let now = self.stage.now();
        let Some((server, before)) = self.inner().clients.get(&client).and_then(|seat| seat.anchor)
        else {
            return Ticks(u64::MAX);
        };
        let patience = give_up.map_or(REQUEST_TIMEOUT, |at| at.since(now).min(REQUEST_TIMEOUT));
        server.plus(now.since(before)).plus(patience)
    }

    /// One way of one message: how long it takes.
    fn way(&self) -> Duration {
        let mut inner = self.inner();
        let most = inner.faults.delay_ms;
        let slow = inner.dice.chance(100);
        let most = if slow { most * 100 } else { most };
        Duration::from_micros(inner.dice.below(most * 1000 + 1))
    }

    fn goes_wrong(&self, which: impl Fn(&Faults) -> u64, client: u64) -> bool {
        let mut inner = self.inner();
        let (cut, per_mille) =
            (inner.clients.get(&client).is_none_or(|seat| seat.cut), which(&inner.faults));
        inner.dice.chance(per_mille) || cut
    }

    fn apply<T>(&self, act: &(dyn Fn(&mut Server, Ticks) -> T + Send + Sync)) -> (T, Ticks) {
        let now = self.server_now();
        let mut pushes = Vec::new();
        let (answer, next) = {
            let mut inner = self.inner();
            inner.server.settle(now, &mut pushes);
            let answer = act(&mut inner.server, now);
            inner.server.settle(now, &mut pushes);
            (answer, inner.server.next_end())
        };
        self.push(pushes);
        if let Some(at) = next {
            let (world, at) = (self.clone(), self.ours(at));
            self.stage.spawn(async move {
                world.stage.until(at).await;
                let mut pushes = Vec::new();
                let now = world.server_now();
                world.inner().server.settle(now, &mut pushes);
                world.push(pushes);
            });
        }
        (answer, now)
    }

    fn push(&self, pushes: Vec<Push>) {
        for push in pushes {
            if self.goes_wrong(|f| f.push_lost, push.client) {
                continue;
            }
            let (world, way) = (self.clone(), self.way());
            self.stage.spawn(async move {
                world.stage.sleep(way).await;
                let (context, since) = {
                    let inner = world.inner();
                    let Some(seat) = inner.clients.get(&push.client).filter(|seat| !seat.cut)
                    else {
                        return;
                    };
                    // A push that is older than the anchor was made that much before the anchor's
                    // request.
                    let later = |(server, before): (Ticks, Ticks)| {
                        before.plus(push.at.since(server) * 9 / 10).minus(server.since(push.at))
                    };
                    let since = seat.anchor.filter(|_| !inner.faults.no_anchor).map(later);
                    (seat.context.clone(), since.map(|at| at.min(world.stage.now())))
                };
                let lease =
                    Lease { id: LeaseId(push.claim.0), ttl: push.ttl, since, confirm: true };
                let grant = Grant { number: Number::Ours(push.number), lease: Some(lease) };
                if let Some(context) = context {
                    context.events.send(Event::Granted { claim: push.claim, grant });
                }
            });
        }
    }

    /// Sends a request and waits for its answer; `None` when it is not known what became of it.
    pub(super) async fn call<T: Send + 'static>(
        self,
        client: u64,
        act: impl Fn(&mut Server, Ticks) -> T + Send + Sync + 'static,
    ) -> Option<T> {
        let before = self.stage.now();
        let give_up = self.stage.sleep(REQUEST_TIMEOUT);
        let world = self.clone();
        let act = Arc::new(act);
        let exchange = async move {
            if world.goes_wrong(|f| f.request_lost, client) {
                return None;
            }
            let way = world.way();
            if world.goes_wrong(|f| f.doubled, client) {
                let (late, act, world) = (world.way() * 20, act.clone(), world.clone());
                world.stage.clone().spawn(async move {
                    world.stage.sleep(way + late).await;
                    world.apply(&*act);
                });
            }
            // The request is in the network: it arrives whatever becomes of the caller.
            let arrived = Arc::new(Mutex::new(None));
            let (there, back) = (arrived.clone(), world.way());
            let on_its_way = world.clone();
            world.stage.spawn(async move {
                on_its_way.stage.sleep(way).await;
                let answer = on_its_way.apply(&*act);
                *there.lock().unwrap_or_else(PoisonError::into_inner) = Some(answer);
            });
            let lost = world.goes_wrong(|f| f.reply_lost, client);
            world.stage.sleep(way + back).await;
            world.stage.sleep(Duration::from_nanos(1)).await;
            if lost || world.goes_wrong(|_| 0, client) {
                return None;
            }
            let (answer, server) = arrived.lock().unwrap_or_else(PoisonError::into_inner).take()?;
            if let Some(seat) = world.inner().clients.get_mut(&client) {
                seat.anchor = Some((server, before));
            }
            Some(answer)
        };
        let (mut exchange, mut give_up) = (Box::pin(exchange), Box::pin(give_up));
        let mut silent = false;
        std::future::poll_fn(move |context| {
            if !silent {
                match exchange.as_mut().poll(context) {
                    Poll::Ready(Some(answer)) => return Poll::Ready(Some(answer)),
                    Poll::Ready(None) => silent = true,
                    Poll::Pending => {}
                }
            }
            give_up.as_mut().poll(context).map(|()| None)
        })
        .await
    }
}

impl std::fmt::Debug for World {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("World").field("server", &self.inner().server).finish_non_exhaustive()
    }
}
