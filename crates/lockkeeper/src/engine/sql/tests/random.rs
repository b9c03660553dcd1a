//! Clients at random: each reads, and decides and writes later, while others write in between and
//! the server's clock steps.

use std::collections::HashSet;

use super::*;

/// What a client is about.
enum Deed {
    Ask(Asked),
    Convert(Asked),
    Release(ClaimId),
    Renew(ClaimId),
    Withdraw(Box<Place>),
}

impl Deed {
    fn claim(&self) -> ClaimId {
        match self {
            Self::Ask(asked) | Self::Convert(asked) => asked.place.claim,
            Self::Release(claim) | Self::Renew(claim) => *claim,
            Self::Withdraw(place) => place.claim,
        }
    }

    fn decide(&self, work: &mut Work) -> Result<Option<Reply>, Stop> {
        match self {
            Self::Ask(asked) => work.stand(asked).map(Some),
            Self::Convert(asked) => work.convert(asked).map(Some),
            Self::Release(claim) => work.release(*claim, 0, None).map(|_| None),
            Self::Renew(claim) => {
                work.renew(*claim);
                Ok(None)
            }
            Self::Withdraw(place) => work.withdraw(place, 0).map(|_| None),
        }
    }

    /// The hold that a grant is one of: a conversion keeps its own.
    fn hold(&self) -> ClaimId {
        match self {
            Self::Convert(asked) => asked.place.hold.unwrap_or(asked.place.claim),
            _ => self.claim(),
        }
    }
}

/// A process, which is about one thing at a time.
#[derive(Default)]
struct Client {
    claims: Vec<Asked>,
    /// The upgrade that it waits for.
    upgrade: Option<Asked>,
    /// What it is about, what it read, and how many places it reads.
    about: Option<(Deed, Seen, usize)>,
}

/// What came to pass in all runs: what never does is not tried.
#[derive(Default)]
struct Happened {
    conflicts: usize,
    conversions: usize,
    steps_back: usize,
}

struct World<R> {
    store: Store,
    /// Every grant by its hold and number; a renewal and a withdrawn upgrade are none.
    granted: HashSet<(ClaimId, u64)>,
    greatest: u64,
    roll: R,
    seed: u64,
}

impl<R: FnMut(usize) -> usize> World<R> {
    fn pass_time(&mut self, happened: &mut Happened) {
        self.store.now += [0, 1_000, 700_000, 3_000_000, TTL][(self.roll)(5)];
        if (self.roll)(40) == 0 {
            self.store.now -= [1_000_000, 3_600_000_000][(self.roll)(2)];
            happened.steps_back += 1;
        }
    }

    /// What a client does next.
    fn next(&mut self, client: &mut Client) -> Deed {
        let pick = (self.roll)(client.claims.len().max(1));
        match ((self.roll)(8), client.claims.get(pick).cloned()) {
            (0..=2, _) | (_, None) => {
                let mode = [Mode::Exclusive, Mode::Shared, Mode::Upgradable][(self.roll)(3)];
                let line = if (self.roll)(4) == 0 { Line::Try } else { Line::Join };
                let one = asked_as(mode, line);
                client.claims.push(one.clone());
                Deed::Ask(one)
            }
            (3, Some(one)) => Deed::Release(one.place.claim),
            (4, Some(one)) => match client.upgrade.take() {
                Some(upgrade) => Deed::Withdraw(Box::new(upgrade.place)),
                None => Deed::Withdraw(Box::new(one.place)),
            },
            (5, Some(one)) => {
                let held = self.held(client).unwrap_or(one);
                Deed::Convert(self.conversion(client, &held))
            }
            (6, Some(one)) => Deed::Renew(one.place.claim),
            (_, Some(one)) => Deed::Ask(one),
        }
    }

    /// A claim of the client's that holds.
    fn held(&self, client: &Client) -> Option<Asked> {
        let holders = self.store.holders();
        let holds = |one: &&Asked| holders.iter().any(|hold| hold.claim == one.place.claim);
        client.claims.iter().find(holds).cloned()
    }

    /// The conversion that the client waits for, or another one.
    fn conversion(&mut self, client: &mut Client, one: &Asked) -> Asked {
        if let Some(upgrade) = &client.upgrade {
            return upgrade.clone();
        }
        let up = (self.roll)(3) > 0;
        let mode =
            if up { Mode::Exclusive } else { [Mode::Shared, Mode::Upgradable][(self.roll)(2)] };
        let mut asked = asked_as(mode, Line::Join);
        (asked.place.hold, asked.place.since) = (Some(one.place.claim), self.store.now);
        client.upgrade = up.then(|| asked.clone());
        asked
    }

    /// Goes on with what a client read before: writes it, or reads again.
    fn go_on(&mut self, client: &mut Client, happened: &mut Happened) {
        let Some((deed, seen, window)) = client.about.take() else {
            let deed = self.next(client);
            let seen = self.store.see(Some(deed.claim()), self.store.window);
            client.about = Some((deed, seen, self.store.window));
            return;
        };
        let id = deed.claim();
        let mut work = Work::on(&seen, Some(id)).unwrap();
        let reply = match deed.decide(&mut work) {
            Ok(reply) => reply,
            Err(Stop::More) => {
                let seen = self.store.see(Some(id), window * 4);
                client.about = Some((deed, seen, window * 4));
                return;
            }
            Err(Stop::Error(error)) => panic!("seed {}: {error}", self.seed),
        };
        let plan = work.plan();
        let writes = plan.is_some();
        if plan.is_some_and(|plan| !self.store.write_read_at(plan, seen.now)) {
            happened.conflicts += 1;
            client.about = Some((deed, self.store.see(Some(id), window), window));
            return;
        }
        self.check();
        match reply {
            Some(Reply::InLine { .. }) => {
                // As the engine does beside the row.
                let mine = self.store.line.values_mut().find(|place| place.claim == id);
                if let Some(mine) = mine {
                    mine.alive = self.store.now + LIVES;
                }
            }
            Some(Reply::Granted { number, .. }) if writes => {
                assert!(self.granted.contains(&(deed.hold(), number)), "seed {}", self.seed);
            }
            _ => {}
        }
        let answered = !matches!(reply, Some(Reply::InLine { .. }));
        if matches!(deed, Deed::Convert(_)) && answered {
            happened.conversions += usize::from(matches!(reply, Some(Reply::Granted { .. })));
            client.upgrade = None;
        }
    }

    /// Nobody holds against another, and each grant's number is above every earlier one.
    fn check(&mut self) {
        let (seed, holders) = (self.seed, self.store.holders());
        let any = |mode: char| holders.iter().filter(|hold| hold.mode == mode).count();
        assert!(any('x') == 0 || holders.len() == 1, "seed {seed}: {holders:?}");
        assert!(any('u') <= 1, "seed {seed}: {holders:?}");
        let holds = self.store.lock().holds.into_iter().map(|hold| (hold.claim, hold.number));
        let mut new: Vec<_> = holds.filter(|grant| self.granted.insert(*grant)).collect();
        new.sort_by_key(|(_, number)| *number);
        for (claim, number) in new {
            let before = self.greatest;
            assert!(number > before, "seed {seed}: {claim} has {number} after {before}");
            self.greatest = number;
        }
    }
}

#[test]
fn random_clients_never_hold_against_each_other_and_tokens_rise() {
    let mut happened = Happened::default();
    for seed in 0..200_u64 {
        let mut dice = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let roll = move |sides: usize| {
            dice ^= dice << 13;
            dice ^= dice >> 7;
            dice ^= dice << 17;
            usize::try_from(dice % sides as u64).unwrap()
        };
        let (store, granted) = (Store::new(), HashSet::new());
        let mut world = World { store, granted, greatest: 0, roll, seed };
        let mut clients = [Client::default(), Client::default(), Client::default()];
        for _ in 0..300 {
            world.pass_time(&mut happened);
            let at = (world.roll)(clients.len());
            world.go_on(&mut clients[at], &mut happened);
        }
    }
    let Happened { conflicts, conversions, steps_back } = happened;
    assert!(
        conflicts > 1_000 && conversions > 100 && steps_back > 100,
        "{conflicts} {conversions}"
    );
}
