//! Who holds one lock now: the inner intervals that cover this moment.
//!
//! Holds are judged between two moments and never at one, so that a hold that ends in the
//! nanosecond in which another begins is no overlap.

use std::collections::{BTreeSet, HashMap};

use super::claims::{ClaimNo, Claims};
use crate::history::HoldMode;

/// The four lists of active holds.
const LISTS: usize = 4;

fn list_of(mode: HoldMode) -> usize {
    match mode {
        HoldMode::None | HoldMode::Exclusive => 0,
        HoldMode::Upgradable => 1,
        HoldMode::Shared => 2,
        HoldMode::Permits => 3,
    }
}

/// The lists whose holds exclude a hold of this mode.
fn excluded_by(mode: HoldMode) -> &'static [usize] {
    match mode {
        HoldMode::None | HoldMode::Exclusive => &[0, 1, 2],
        HoldMode::Upgradable => &[0, 1],
        HoldMode::Shared => &[0],
        HoldMode::Permits => &[],
    }
}

/// The active holds of one lock.
#[derive(Default)]
pub(super) struct Occupancy {
    lists: [Vec<ClaimNo>; LISTS],
    permits: u64,
    /// The active holds of each explicit owner: those do not exclude each other.
    owned: HashMap<u64, Vec<ClaimNo>>,
    /// When active holds end by themselves.
    deadlines: BTreeSet<(u64, ClaimNo)>,
    /// Holds that began at `fresh_at` and were not judged yet.
    pub fresh: Vec<ClaimNo>,
    pub fresh_at: u64,
}

impl Occupancy {
    /// Counts a hold from `now` on; it is judged when time moves on. One of which nothing is
    /// certain is not counted.
    pub fn enter(&mut self, no: ClaimNo, now: u64, claims: &mut Claims) {
        let claim = &mut claims[no];
        if claim.blurred {
            return;
        }
        let list = list_of(claim.mode);
        claim.active = true;
        claim.seat = self.lists[list].len() as u32;
        self.lists[list].push(no);
        if list == 3 {
            self.permits += u64::from(claim.weight);
        }
        if claim.owner != 0 {
            self.owned.entry(claim.owner).or_default().push(no);
        }
        if claim.deadline != u64::MAX {
            self.deadlines.insert((claim.deadline, no));
        }
        self.fresh.push(no);
        self.fresh_at = now;
    }

    /// Counts a hold no longer.
    pub fn leave(&mut self, no: ClaimNo, claims: &mut Claims) {
        let claim = &mut claims[no];
        let list = list_of(claim.mode);
        claim.active = false;
        let seat = claim.seat as usize;
        self.lists[list].swap_remove(seat);
        if list == 3 {
            self.permits -= u64::from(claim.weight);
        }
        if claim.owner != 0
            && let Some(members) = self.owned.get_mut(&claim.owner)
        {
            members.retain(|member| *member != no);
            if members.is_empty() {
                self.owned.remove(&claim.owner);
            }
        }
        if claim.deadline != u64::MAX {
            self.deadlines.remove(&(claim.deadline, no));
        }
        if let Some(moved) = self.lists[list].get(seat) {
            claims[*moved].seat = seat as u32;
        }
    }

    /// Gives an active hold another deadline.
    pub fn extend(&mut self, no: ClaimNo, deadline: u64, claims: &mut Claims) {
        let claim = &mut claims[no];
        self.deadlines.remove(&(claim.deadline, no));
        claim.deadline = deadline;
        if deadline != u64::MAX {
            self.deadlines.insert((deadline, no));
        }
    }

    /// The hold that ends by itself first, if that is at `by` or before.
    pub fn due(&self, by: u64) -> Option<(u64, ClaimNo)> {
        self.deadlines.first().copied().filter(|(at, _)| *at <= by)
    }

    /// An active hold that was granted before a moment, and must not be there together with this
    /// one; of several the one that the engine confirmed last, which is the hardest to explain.
    pub fn rival(&self, no: ClaimNo, before: u64, claims: &Claims) -> Option<ClaimNo> {
        let claim = &claims[no];
        // Most often there is nobody but its own.
        let others = excluded_by(claim.mode).iter().filter(|list| {
            let mine = match self.members(claim.owner) {
                Some(members) => {
                    members.iter().filter(|member| list_of(claims[**member].mode) == **list).count()
                }
                None => usize::from(claim.active && list_of(claim.mode) == **list),
            };
            self.lists[**list].len() > mine
        });
        let is_rival = |other: &ClaimNo| {
            let theirs = &claims[*other];
            *other != no
                && (claim.owner == 0 || theirs.owner != claim.owner)
                && theirs.granted.time < before
        };
        others
            .flat_map(|list| &self.lists[*list])
            .copied()
            .filter(is_rival)
            .max_by_key(|other| claims[*other].confirmed)
    }

    /// An active hold that must not be there together with this one, and has the same token.
    pub fn twin(&self, no: ClaimNo, claims: &Claims) -> Option<ClaimNo> {
        let claim = &claims[no];
        let is_twin = |other: &&ClaimNo| {
            let other_claim = &claims[**other];
            **other != no
                && other_claim.token == claim.token
                && (claim.owner == 0 || other_claim.owner != claim.owner)
        };
        let mut rivals = excluded_by(claim.mode).iter().flat_map(|list| &self.lists[*list]);
        rivals.find(is_twin).copied().filter(|_| claim.token != 0)
    }

    /// How many permits are held.
    pub fn permits(&self) -> u64 {
        self.permits
    }

    /// Other active holds of permits, at most `most`.
    pub fn other_permits(&self, no: ClaimNo, most: usize) -> Vec<ClaimNo> {
        self.lists[3].iter().copied().filter(|other| *other != no).take(most).collect()
    }

    /// Of the fewest holds of permits that are more than the limit, those that the engine confirmed
    /// last: when it confirmed the first of them.
    pub fn confirmed_beyond(&self, limit: u64, claims: &Claims) -> Option<u64> {
        let mut holds: Vec<_> = self.lists[3]
            .iter()
            .map(|no| (claims[*no].confirmed, u64::from(claims[*no].weight)))
            .collect();
        holds.sort_unstable_by(|one, other| other.cmp(one));
        let mut sum = 0;
        let mut counted = holds.into_iter().skip_while(|(_, weight)| {
            sum += weight;
            sum <= limit
        });
        counted.next().map(|(confirmed, _)| confirmed)
    }

    /// Another active hold of the same owner in the same mode.
    pub fn fellow(&self, no: ClaimNo, claims: &Claims) -> Option<ClaimNo> {
        let claim = &claims[no];
        self.members(claim.owner)?
            .iter()
            .copied()
            .find(|other| *other != no && claims[*other].mode == claim.mode)
    }

    /// Whether this owner holds it already.
    pub fn owns(&self, owner: u64) -> bool {
        self.members(owner).is_some()
    }

    fn members(&self, owner: u64) -> Option<&Vec<ClaimNo>> {
        self.owned.get(&owner).filter(|_| owner != 0)
    }

    /// Whether nobody holds it.
    pub fn is_empty(&self) -> bool {
        self.lists.iter().all(Vec::is_empty)
    }
}
