//! The claims of a history as the checker knows them: the open ones, and the last that ended. Why
//! they are not the lives of a `replay` is said there.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};

use crate::history::{Flags, HoldMode, Record};

/// A claim's place in the table.
pub(super) type ClaimNo = u32;

/// A moment, and the record in the claim's own file that tells of it. Time 0 is never.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct At {
    pub time: u64,
    pub record: u64,
}

impl At {
    pub fn never(self) -> bool {
        self.time == 0
    }
}

/// How far a claim is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Phase {
    /// Called, not answered.
    #[default]
    Asked,
    /// A guard was returned.
    Held,
    /// Nothing more is expected from it.
    Over,
}

/// One claim: what its records said so far.
#[derive(Clone, Debug, Default)]
pub(super) struct Claim {
    pub id: u64,
    pub client: u32,
    pub lock: u32,
    pub owner: u64,
    pub mode: HoldMode,
    pub weight: u16,
    /// The semaphore's limit as its caller believes it.
    pub limit: u16,
    pub trying: bool,
    pub handed: bool,
    pub phase: Phase,
    /// Whether it counts among the holds of its lock now.
    pub active: bool,
    /// Whether the engine may still have it.
    pub present: bool,
    /// Of clocks that differ: nothing is certain of it any more.
    pub blurred: bool,
    /// Of clocks that differ: it is converted, and nobody knows in which mode it is.
    pub tangled: bool,
    /// For a try under way: somebody was there, so that busy would be right.
    pub excused: bool,
    /// For a try: somebody waited in line while it was under way.
    pub met_line: bool,
    /// When its release was first answered with success.
    pub released: At,
    /// Whether it was over before its release was called.
    pub stale: bool,
    /// Whether it was found that its holder was told too late.
    pub told_late: bool,
    pub asked: At,
    /// When it began to hold in its present mode.
    pub granted: At,
    pub release_called: At,
    /// When its release was answered.
    pub release_done: At,
    pub lost: At,
    /// Since when a renewal is under way, and how many are.
    pub renewing: At,
    pub renewals: u16,
    /// When the first of those releases was called that are not answered, and how many there are.
    pub freeing: At,
    pub releases: u16,
    /// The other mode that it may be in while it is converted, and whether its own is the weaker,
    /// new one already.
    pub converting: HoldMode,
    pub weakened: bool,
    pub token: u64,
    /// `u64::MAX` for none.
    pub deadline: u64,
    /// The latest moment of which it is known that the engine did not confirm this hold before it
    /// for the last time.
    pub confirmed: u64,
    /// Its place in the list of active holds, and in the list of acquires under way.
    pub seat: u32,
    pub bench: u32,
    /// Its number in the engine's line; 0 for none.
    pub ticket: u64,
    /// Answers that only a renewal under way could justify.
    pub doubts: Vec<super::lease::Doubt>,
}

impl Claim {
    fn new(client: u32, lock: u32, index: u64, record: &Record) -> Self {
        let at = At { time: record.at, record: index };
        Self {
            id: record.claim,
            client,
            lock,
            owner: record.owner,
            mode: if record.mode == HoldMode::None { HoldMode::Exclusive } else { record.mode },
            weight: record.weight,
            limit: u16::try_from(record.number).unwrap_or(u16::MAX),
            trying: record.flags.has(Flags::TRY),
            asked: at,
            deadline: u64::MAX,
            ..Self::default()
        }
    }

    /// The engine confirmed this hold, which lasts until its deadline now: a lease lasts no longer
    /// from the request on.
    pub fn confirm(&mut self, lease_ns: u64) {
        if self.deadline != u64::MAX && lease_ns > 0 {
            self.confirmed = self.confirmed.max(self.deadline.saturating_sub(lease_ns));
        }
    }

    /// A renewal is about to be sent.
    pub fn renewal_called(&mut self, at: At) {
        self.renewals = self.renewals.saturating_add(1);
        if self.renewals == 1 {
            self.renewing = at;
        }
    }

    /// One of those under way was answered; answers since when the first of them was under way.
    pub fn renewal_answered(&mut self) -> At {
        self.renewals = self.renewals.saturating_sub(1);
        if self.renewals > 0 { self.renewing } else { std::mem::take(&mut self.renewing) }
    }

    /// Its release is called; `again`: the one before was not answered, and will not be.
    pub fn release_called(&mut self, at: At, again: bool) {
        self.releases = if again { self.releases.max(1) } else { self.releases.saturating_add(1) };
        if again || self.releases == 1 {
            self.freeing = at;
        }
    }

    /// One of them was answered; answers when the first of them was called.
    pub fn release_answered(&mut self) -> At {
        self.releases = self.releases.saturating_sub(1);
        if self.releases > 0 { self.freeing } else { std::mem::take(&mut self.freeing) }
    }

    /// When it certainly was over for its holder, and had to know it: lost, or its release
    /// answered.
    pub fn ended(&self) -> At {
        match (self.lost.never(), self.release_done.never()) {
            (false, _) => self.lost,
            (true, _) => self.release_done,
        }
    }
}

/// How many ended claims are remembered, to recognise what comes after the end.
const REMEMBERED: usize = 1 << 16;

/// The table.
#[derive(Default)]
pub(super) struct Claims {
    rows: Vec<Claim>,
    free: Vec<ClaimNo>,
    by_id: HashMap<u64, ClaimNo, BuildHasherDefault<Mixed>>,
    over: VecDeque<ClaimNo>,
    /// How many turns each explicit owner has of a lock that are not over.
    owned: HashMap<(u64, u32), u32>,
}

impl Claims {
    /// Every claim in the table.
    pub fn all(&self) -> std::ops::Range<ClaimNo> {
        0..self.rows.len() as ClaimNo
    }

    /// The place of a claim that is open or remembered.
    pub fn find(&self, id: u64) -> Option<ClaimNo> {
        self.by_id.get(&id).copied()
    }

    /// Adds a claim; its id is not in the table.
    pub fn add(&mut self, client: u32, lock: u32, index: u64, record: &Record) -> ClaimNo {
        let claim = Claim::new(client, lock, index, record);
        let no = match self.free.pop() {
            Some(no) => {
                self.rows[no as usize] = claim;
                no
            }
            None => {
                self.rows.push(claim);
                (self.rows.len() - 1) as ClaimNo
            }
        };
        self.by_id.insert(record.claim, no);
        no
    }

    /// A claim holds from now on.
    pub fn hold(&mut self, no: ClaimNo) {
        let claim = &mut self.rows[no as usize];
        claim.phase = Phase::Held;
        if claim.owner != 0 {
            *self.owned.entry((claim.owner, claim.lock)).or_insert(0) += 1;
        }
    }

    /// Whether the owner of a claim has another turn of its lock that is not over.
    pub fn entered(&self, no: ClaimNo) -> bool {
        let claim = &self[no];
        self.owned.get(&(claim.owner, claim.lock)).is_some_and(|count| *count > 1)
    }

    /// Marks a claim as ended and forgets the oldest ended one beyond the limit.
    pub fn close(&mut self, no: ClaimNo) {
        let claim = &mut self.rows[no as usize];
        if claim.phase == Phase::Over {
            return;
        }
        if claim.owner != 0
            && claim.phase == Phase::Held
            && let Some(count) = self.owned.get_mut(&(claim.owner, claim.lock))
        {
            *count -= 1;
            if *count == 0 {
                self.owned.remove(&(claim.owner, claim.lock));
            }
        }
        claim.phase = Phase::Over;
        self.over.push_back(no);
        if self.over.len() > REMEMBERED
            && let Some(old) = self.over.pop_front()
        {
            self.by_id.remove(&self.rows[old as usize].id);
            self.free.push(old);
        }
    }

    /// The open claims of a client.
    pub fn open_of(&self, client: u32) -> Vec<ClaimNo> {
        let open = self
            .rows
            .iter()
            .zip(0..)
            .filter(|(claim, _)| claim.client == client && claim.phase != Phase::Over);
        open.map(|(_, no)| no).collect()
    }
}

/// Places come from `find` and `add` only, so that they are always inside the table.
impl std::ops::Index<ClaimNo> for Claims {
    type Output = Claim;
    fn index(&self, no: ClaimNo) -> &Claim {
        &self.rows[no as usize]
    }
}

impl std::ops::IndexMut<ClaimNo> for Claims {
    fn index_mut(&mut self, no: ClaimNo) -> &mut Claim {
        &mut self.rows[no as usize]
    }
}

/// Ids are random or counted; one multiplication spreads both.
#[derive(Default)]
pub(super) struct Mixed(u64);

impl Hasher for Mixed {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }
    fn write_u64(&mut self, value: u64) {
        let mixed = (self.0 ^ value).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = mixed ^ (mixed >> 32);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::What;

    fn record(claim: u64) -> Record {
        Record { claim, ..Record::new(What::AcquireCalled) }
    }

    #[test]
    fn ended_claims_are_remembered_for_a_while_and_then_make_room() {
        let mut claims = Claims::default();
        let most = REMEMBERED as u64;
        for id in 1..=most + 1 {
            let no = claims.add(0, 0, 0, &record(id));
            assert_eq!(claims.find(id), Some(no));
            claims.close(no);
            claims.close(no);
        }
        assert_eq!(claims.find(1), None, "the oldest is forgotten");
        assert!((2..=most + 1).all(|id| claims.find(id).is_some_and(|no| claims[no].id == id)));
        let no = claims.add(0, 0, 0, &record(most + 2));
        assert_eq!((no, claims.rows.len() as u64), (0, most + 1), "its row is used again");
        assert_eq!(claims.find(most + 2), Some(no));
        assert_eq!(
            claims.find(2).map(|no| claims[no].id),
            Some(2),
            "an open claim makes nobody forgotten"
        );
    }

    #[test]
    fn ids_are_spread_over_all_bits_and_none_meets_another() {
        let of = |write: &dyn Fn(&mut Mixed)| {
            let mut mixed = Mixed::default();
            write(&mut mixed);
            mixed.finish()
        };
        let counted: Vec<u64> = (0..4096).map(|id| of(&|mixed| mixed.write_u64(id))).collect();
        for bits in [0..12, 26..38, 52..64] {
            let mask = (1 << 12) - 1;
            let places: std::collections::HashSet<_> =
                counted.iter().map(|hash| hash >> bits.start & mask).collect();
            // As many as random numbers would hit: 63 of 100.
            assert!(places.len() > 2200, "{bits:?}: {} places of 4096", places.len());
        }
        let twice = |one, two| {
            of(&|mixed| {
                mixed.write_u64(one);
                mixed.write_u64(two);
            })
        };
        assert!(
            twice(1, 2) != twice(2, 1) && twice(1, 2) != twice(1, 3) && twice(1, 2) != twice(3, 2)
        );
        let bit = counted[1] & counted[1].wrapping_neg();
        assert_ne!(twice(1, 0), twice(1, bit), "what is there already is not lost");
        assert_ne!(of(&|mixed| mixed.write(b"ab")), of(&|mixed| mixed.write(b"ac")));
        assert_ne!(of(&|mixed| mixed.write(b"ab")), 0);
    }

    #[test]
    fn open_claims_are_those_of_the_client_that_are_not_over() {
        let mut claims = Claims::default();
        let all: Vec<_> = [(1, 7), (2, 7), (3, 8)]
            .map(|(id, client)| claims.add(client, 0, 0, &record(id)))
            .into();
        claims.close(all[1]);
        assert_eq!(
            (claims.open_of(7), claims.open_of(8), claims.open_of(9)),
            (vec![all[0]], vec![all[2]], vec![])
        );
    }
}
