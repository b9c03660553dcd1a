//! Ids that are drawn fresh for every claim, and the fork generation that voids them.

use std::collections::HashMap;
use std::fmt;
use std::hash::{BuildHasher, BuildHasherDefault, Hash, Hasher};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, Once, PoisonError};

/// The id of one claim: 128 bits, drawn fresh for each request.
///
/// A hold keeps the id of the claim that won it, so that renewal, release and withdrawal all
/// compare the same value.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ClaimId(pub u128);

/// The id of a hold: the id of the claim that won it.
pub type HoldId = ClaimId;

/// The id of a lease: of one hold (then it equals the hold's id), or of a session that carries many
/// holds.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LeaseId(pub u128);

impl From<ClaimId> for LeaseId {
    fn from(id: ClaimId) -> Self {
        Self(id.0)
    }
}

impl ClaimId {
    /// As it is shown. Written for every renewal; the general way costs several times as much.
    pub(crate) fn digits(self) -> [u8; 32] {
        let mut digits = [0; 32];
        for (at, digit) in digits.iter_mut().rev().enumerate() {
            *digit = b"0123456789abcdef"[(self.0 >> (4 * at)) as usize & 15];
        }
        digits
    }
}

impl fmt::Display for ClaimId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(std::str::from_utf8(&self.digits()).unwrap_or_default())
    }
}

impl fmt::Debug for ClaimId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Debug for LeaseId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "lease-{:032x}", self.0)
    }
}

impl ClaimId {
    /// Reads the 32 hexadecimal digits that `Display` writes.
    pub fn parse(text: &str) -> Option<Self> {
        if text.len() != 32 || !text.bytes().all(|b| b.is_ascii_hexdigit()) {
            return None;
        }
        u128::from_str_radix(text, 16).ok().map(Self)
    }

    /// Draws the next id of this process.
    ///
    /// The kernel gives 128 random bits once a process (and once more in a forked child); each id
    /// is a bijection of that seed and a counter, so that ids never repeat inside a process and
    /// collide across processes only when the seeds do.
    pub fn fresh() -> Self {
        #[cfg(feature = "test-util")]
        if let Some(id) = seeded::next() {
            return id;
        }
        SOURCE.next()
    }

    /// Whether this process drew it: an id shows its seed and its count to whoever knows the seed.
    pub(crate) fn is_ours(self) -> bool {
        SOURCE.drew(self)
    }
}

/// Ids that a simulation can draw again.
#[cfg(feature = "test-util")]
pub(crate) mod seeded {
    use std::cell::Cell;

    use super::{ClaimId, mix};

    thread_local! {
        static DRAWN: Cell<Option<(u64, u64)>> = const { Cell::new(None) };
    }

    /// From now on this thread draws its ids from this seed; `None` = fresh ones again.
    pub(crate) fn seed(seed: Option<u64>) {
        DRAWN.set(seed.map(|seed| (seed, 0)));
    }

    pub(super) fn next() -> Option<ClaimId> {
        let (seed, count) = DRAWN.get()?;
        DRAWN.set(Some((seed, count + 1)));
        Some(ClaimId((u128::from(mix(seed ^ mix(count))) << 64) | u128::from(count)))
    }
}

/// A hasher for ids and numbers that nobody outside chooses: a hash that resists attacks costs more
/// than a lookup.
#[derive(Default)]
pub(crate) struct IdHasher(u64);

impl Hasher for IdHasher {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }
    fn write_u64(&mut self, number: u64) {
        self.0 =
            (self.0.rotate_left(5) ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(32);
    }
    fn write_u128(&mut self, number: u128) {
        self.write_u64((number >> 64) as u64 ^ number as u64);
    }
}

/// A map whose keys are ids or numbers of our own.
pub(crate) type ById<K, T> = HashMap<K, T, BuildHasherDefault<IdHasher>>;

/// Gives back the room of a map from which almost everything was removed: it was made for 100 000.
pub(crate) fn shrink<K: Eq + Hash, T, S: BuildHasher>(map: &mut HashMap<K, T, S>) {
    const SMALL: usize = 1024;
    if map.capacity() > SMALL && map.len() < map.capacity() / 8 {
        map.shrink_to(2 * map.len());
    }
}

/// How often this process was forked from the one that loaded the program: 0 in the original, one
/// more in each child.
///
/// Every guard remembers the value at its birth; in a child it differs and the guard is lost.
pub(crate) fn fork_generation() -> u32 {
    WATCH_FORKS.call_once(|| {
        extern "C" fn in_child() {
            FORKS.fetch_add(1, Ordering::Relaxed);
        }
        // SAFETY: the handler only adds to an atomic, which is async-signal-safe, as a child of a
        // threaded process needs.
        let _ = unsafe { nix::libc::pthread_atfork(None, None, Some(in_child)) };
    });
    FORKS.load(Ordering::Relaxed)
}

static WATCH_FORKS: Once = Once::new();
static FORKS: AtomicU32 = AtomicU32::new(0);
static SOURCE: Source = Source {
    seed: Mutex::new(None),
    high: AtomicU64::new(0),
    low: AtomicU64::new(0),
    generation: AtomicU32::new(u32::MAX),
    counter: AtomicU64::new(0),
};

struct Source {
    seed: Mutex<Option<u32>>,
    high: AtomicU64,
    low: AtomicU64,
    generation: AtomicU32,
    counter: AtomicU64,
}

impl Source {
    fn next(&self) -> ClaimId {
        let generation = fork_generation();
        if self.generation.load(Ordering::Acquire) != generation {
            self.reseed(generation);
        }
        let count = self.counter.fetch_add(1, Ordering::Relaxed);
        let high = mix(self.high.load(Ordering::Relaxed) ^ count);
        let low = mix(self.low.load(Ordering::Relaxed).wrapping_add(count));
        ClaimId((u128::from(high) << 64) | u128::from(low))
    }

    fn drew(&self, id: ClaimId) -> bool {
        // Without a draw since the fork there is no seed of this process.
        if self.generation.load(Ordering::Acquire) != fork_generation() {
            return false;
        }
        let count = unmix((id.0 >> 64) as u64) ^ self.high.load(Ordering::Relaxed);
        let seeded = unmix(id.0 as u64) == self.low.load(Ordering::Relaxed).wrapping_add(count);
        seeded && count < self.counter.load(Ordering::Relaxed)
    }

    fn reseed(&self, generation: u32) {
        let mut seeded_for = self.seed.lock().unwrap_or_else(PoisonError::into_inner);
        if *seeded_for == Some(generation) {
            return;
        }
        let mut bytes = [0u8; 16];
        if getrandom::fill(&mut bytes).is_err() {
            // No kernel of the supported range refuses this; time, pid and address still keep
            // processes apart.
            let now = std::time::SystemTime::now()
                .duration_since(std::time::UNIX_EPOCH)
                .map_or(0, |d| d.as_nanos());
            let place = std::ptr::from_ref(self) as usize as u128;
            bytes = (now ^ (u128::from(std::process::id()) << 64) ^ (place << 90)).to_le_bytes();
        }
        let seed = u128::from_le_bytes(bytes);
        self.high.store((seed >> 64) as u64, Ordering::Relaxed);
        self.low.store(seed as u64, Ordering::Relaxed);
        *seeded_for = Some(generation);
        self.generation.store(generation, Ordering::Release);
    }
}

/// A bijection of 64 bits that spreads neighbours (the finaliser of splitmix64).
fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// What [`mix`] was given.
fn unmix(mut x: u64) -> u64 {
    x = (x ^ (x >> 31) ^ (x >> 62)).wrapping_mul(0x3196_42b2_d24d_8ec3);
    x = (x ^ (x >> 27) ^ (x >> 54)).wrapping_mul(0x96de_1b17_3f11_9089);
    x ^ (x >> 30) ^ (x >> 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_knows_the_ids_that_it_drew() {
        for _ in 0..1_000 {
            let id = ClaimId::fresh();
            assert!(id.is_ours());
            assert!(!ClaimId(id.0 ^ 1).is_ours() && !ClaimId(id.0 ^ (1 << 64)).is_ours());
        }
        // The seed of another process, or of this one before a fork.
        let other = Source {
            seed: Mutex::new(None),
            high: AtomicU64::new(0),
            low: AtomicU64::new(0),
            generation: AtomicU32::new(u32::MAX),
            counter: AtomicU64::new(0),
        };
        let id = other.next();
        assert!(other.drew(id) && !id.is_ours());
        assert!(!other.drew(ClaimId(0)));
    }

    #[test]
    fn a_map_gives_back_its_room_once_almost_everything_is_removed_and_not_before() {
        let mut map: ById<u64, u64> = (0..100_000).map(|key| (key, key)).collect();
        let mut left = |most: u64| {
            map.retain(|key, _| *key < most);
            shrink(&mut map);
            map.capacity()
        };
        assert!(left(25_000) >= 100_000, "a quarter of it may come again");
        assert!(left(5) < 1_024);
    }

    #[test]
    fn ids_are_fresh_and_survive_printing() {
        let ids: std::collections::HashSet<_> = (0..10_000).map(|_| ClaimId::fresh()).collect();
        assert_eq!(ids.len(), 10_000);
        for id in ids.into_iter().take(100) {
            assert_eq!(ClaimId::parse(&id.to_string()), Some(id));
        }
        assert_eq!(ClaimId::parse("+0000000000000000000000000000001"), None);
    }
}
