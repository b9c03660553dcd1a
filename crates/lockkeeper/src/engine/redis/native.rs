//! The native layout while it is open: the recipe says what to send, the links carry it, the keeper
//! is told.

mod acquire;
mod inspect;
mod listing;
mod release;
mod watch;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use super::client::node::Node;
use super::links::Links;
use super::name::Keys;
use super::opened::{Heard, Opened};
use super::options::RedisOptions;
use super::recipe::{CLAIM_LEASE, Recipe, Rules};
use super::reply::Push;
use super::resp::Value;
use super::watches::Watches;
use crate::engine::Context;
use crate::words::guarantee::{Ability, Description, Expiry};
use crate::words::id::ClaimId;
use watch::Tracker;

/// What runs once it is open.
pub(super) struct Native {
    links: Links,
    keys: Keys,
    channel: String,
    recipe: Mutex<Recipe>,
    watches: Watches,
    /// There while somebody watches a beginning of names.
    tracker: Mutex<Option<Tracker>>,
}

impl Native {
    fn recipe(&self) -> MutexGuard<'_, Recipe> {
        self.recipe.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A push, in the order in which it was read.
    fn hear(&self, node: Node, order: u64, items: &[Value]) {
        let [kind, channel, payload] = items else { return };
        if kind.text() != Some("message") {
            return;
        }
        let payload = payload.text().unwrap_or_default();
        if channel.text() != Some(&self.channel) {
            return self.changed(payload);
        }
        let clock = &self.links.context.clock;
        let (now, stepped) = (clock.now(), clock.last_step());
        let push = Push::parse(payload);
        let event = push.as_ref().and_then(|push| {
            let mut recipe = self.recipe();
            recipe.stepped(stepped);
            recipe.pushed(now, node, order, push)
        });
        if let Some(event) = event {
            self.links.context.events.send(event);
        }
    }
}

impl Opened for Native {
    type Setting = ();

    fn new(options: Arc<RedisOptions>, (): &(), context: Context) -> Arc<Self> {
        Arc::new_cyclic(|weak: &Weak<Self>| {
            let keys = Keys::new(&options.namespace, options.db);
            let channel = keys.channel(ClaimId::fresh().0);
            let rules = Rules {
                keys: keys.clone(),
                channel: channel.clone(),
                drift_permille: options.drift_permille,
                request_timeout: options.request_timeout,
                acknowledged: options.wait.is_some(),
                moves: options.moves(),
                scattered: options.scattered(),
            };
            let links = Links::new(options, context, Arc::new(Heard(weak.clone())));
            links.main.subscribe_everywhere(&channel);
            Self {
                links,
                keys,
                channel,
                recipe: Mutex::new(Recipe::new(rules)),
                watches: Watches::default(),
                tracker: Mutex::default(),
            }
        })
    }

    fn links(&self) -> &Links {
        &self.links
    }

    fn pushed(self: &Arc<Self>, node: Node, order: u64, items: &[Value]) {
        self.hear(node, order, items);
    }

    #[cfg(feature = "cluster")]
    fn part(&self, claim: ClaimId) -> u32 {
        self.home_of(claim).unwrap_or_default().0.into()
    }

    #[cfg(feature = "cluster")]
    fn moved(&self, keys: &dyn Fn(&str) -> bool) {
        let watched = self.watches.names();
        if watched.iter().any(|(kind, name)| keys(&self.keys.record(*kind, name))) {
            self.watches.missed();
        }
    }

    #[cfg(feature = "cluster")]
    fn claims_of(&self, keys: &dyn Fn(&str) -> bool) -> Vec<ClaimId> {
        self.recipe().claims_of(keys)
    }

    fn describe((): &(), description: &mut Description) {
        description.can = description.can.with(&[Ability::Together]);
        description.expiry = Expiry::PerHold { claim_lease: Some(CLAIM_LEASE) };
        description
            .breaks
            .push("tokens: data loss together with a server's clock that was set back".into());
    }

    fn closing(&self) {
        self.watches.close();
        self.end_tracking();
    }
}
