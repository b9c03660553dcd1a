//! First come, first served: how often claims were overtaken in the engine's line.
//!
//! A claim `j` was overtaken by `i` when `j`'s place had been confirmed before `i` was even called,
//! and `i` was granted first. Each grant adds one to all places confirmed before its call (a
//! prefix), each granted place asks for its sum: a Fenwick tree makes both O(log n).

use super::claims::At;

/// Who overtook, for the report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Overtaker {
    pub client: u32,
    pub asked: At,
    pub granted: At,
}

#[derive(Clone, Copy, Debug)]
struct Place {
    ticket: u64,
    confirmed: u64,
    /// What had overtaken it when the line was last rebuilt.
    before: u64,
    there: bool,
    /// The last grant that overtook this place and all before it, but none behind it.
    by: Option<Overtaker>,
}

/// The line of one lock.
#[derive(Default)]
pub(super) struct Line {
    /// In the order of confirmation, which is that of tickets.
    places: Vec<Place>,
    there: usize,
    tickets: u64,
    tree: Vec<u64>,
}

/// Below this many places a line is not worth rebuilding.
const SMALL: usize = 64;

impl Line {
    /// A place was confirmed; answers its ticket, from 1 on. Confirmations come in the order of
    /// time.
    pub fn join(&mut self, confirmed: u64) -> u64 {
        self.tidy();
        self.tickets += 1;
        self.there += 1;
        self.places.push(Place {
            ticket: self.tickets,
            confirmed,
            before: 0,
            there: true,
            by: None,
        });
        // The new node of the tree covers some nodes before it, and itself with nothing yet.
        let node = self.places.len();
        self.tree.push(self.sum(node - 1) - self.sum(node & (node - 1)));
        self.tickets
    }

    /// Somebody was granted: everybody whose place was confirmed before that one was called was
    /// overtaken.
    pub fn granted(&mut self, who: Overtaker) {
        let overtaken = self.places.partition_point(|place| place.confirmed < who.asked.time);
        let Some(last) = overtaken.checked_sub(1) else { return };
        self.places[last].by = Some(who);
        let mut node = overtaken;
        while node <= self.tree.len() {
            self.tree[node - 1] += 1;
            node += node & node.wrapping_neg();
        }
    }

    /// A place was granted or given up: answers by how many it was overtaken while it stood there.
    pub fn leave(&mut self, ticket: u64) -> u64 {
        let Ok(index) = self.places.binary_search_by_key(&ticket, |place| place.ticket) else {
            return 0;
        };
        if !std::mem::take(&mut self.places[index].there) {
            return 0;
        }
        self.there -= 1;
        let count = self.places[index].before + self.overtaken(index);
        if self.there == 0 {
            self.places.clear();
            self.tree.clear();
        }
        count
    }

    /// Who overtook a place that is there last; ask before it leaves.
    pub fn overtaker(&self, ticket: u64) -> Option<Overtaker> {
        let index = self.places.binary_search_by_key(&ticket, |place| place.ticket).ok()?;
        self.places[index..].iter().filter_map(|place| place.by).max_by_key(|who| who.granted.time)
    }

    /// Forgets the places that are empty, once they are more than half.
    fn tidy(&mut self) {
        if self.places.len() < SMALL || self.there >= self.places.len() / 2 {
            return;
        }
        let mut by: Option<Overtaker> = None;
        for index in (0..self.places.len()).rev() {
            let count = self.overtaken(index);
            let place = &mut self.places[index];
            place.before += count;
            by = [by, place.by].into_iter().flatten().max_by_key(|who| who.granted.time);
            place.by = by;
        }
        self.places.retain(|place| place.there);
        self.tree = vec![0; self.places.len()];
    }

    /// How many grants covered this place since the last rebuild.
    fn overtaken(&self, index: usize) -> u64 {
        self.sum(self.places.len()) - self.sum(index)
    }

    fn sum(&self, mut node: usize) -> u64 {
        let mut sum = 0;
        while node > 0 {
            sum += self.tree[node - 1];
            node &= node - 1;
        }
        sum
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn granted(line: &mut Line, asked: u64, at: u64) {
        line.granted(Overtaker {
            client: 0,
            asked: At { time: asked, record: asked },
            granted: At { time: at, record: at },
        });
    }

    #[test]
    fn only_places_confirmed_before_the_call_are_overtaken() {
        let mut line = Line::default();
        let early = line.join(10);
        let same = line.join(20);
        granted(&mut line, 20, 30);
        assert_eq!(line.overtaker(early).map(|who| who.granted.time), Some(30));
        assert_eq!(line.overtaker(same), None);
        assert_eq!([line.leave(early), line.leave(same)], [1, 0]);
        assert_eq!(
            [line.leave(early), line.leave(same), line.leave(77)],
            [0, 0, 0],
            "nobody leaves twice"
        );
    }

    #[test]
    fn the_tree_agrees_with_counting_one_by_one() {
        // A small generator of its own: joins, grants of newcomers, and leaves, in a mixed order.
        let mut seed = 7u64;
        let mut random = |below: u64| {
            seed = seed
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) % below
        };
        let mut line = Line::default();
        // ticket, confirmed, overtaken, last overtaker's time
        let mut model: Vec<(u64, u64, u64, u64)> = Vec::new();
        let mut longest = 0;
        for now in 1..20_000u64 {
            match random(if now % 4000 < 2000 { 3 } else { 5 }) {
                0 => {
                    model.push((line.join(now), now, 0, 0));
                    let (places, there) = (line.places.len(), line.there);
                    assert!(
                        places <= SMALL.max(2 * there + 1),
                        "{places} places for {there} that are there"
                    );
                }
                1 => {
                    let asked = now - random(now.min(200));
                    granted(&mut line, asked, now);
                    for place in model.iter_mut().filter(|place| place.1 < asked) {
                        (place.2, place.3) = (place.2 + 1, now);
                    }
                }
                _ if !model.is_empty() => {
                    let (ticket, _, overtaken, by) =
                        model.remove(random(model.len() as u64) as usize);
                    assert_eq!(
                        line.overtaker(ticket).map_or(0, |who| who.granted.time),
                        by,
                        "at {now}"
                    );
                    assert_eq!(line.leave(ticket), overtaken, "at {now}");
                }
                _ => {}
            }
            longest = longest.max(model.len());
            assert_eq!(line.there, model.len());
        }
        assert!(longest > SMALL, "the line was rebuilt: {longest}");
    }
}
