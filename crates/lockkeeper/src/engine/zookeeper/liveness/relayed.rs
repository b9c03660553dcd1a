//! What the leader knows of a session whose server dies, beside what its holder believes (Z1).
//!
//! Real: [`Alive`] with its plan. Modelled: the leader pings the server twice a tick, and what the
//! server heard since the ping before renews the session there; a tick is half a session, the
//! longest there may be. An acknowledged write carries nothing of this by itself. The leader rounds
//! the end of a session up to a tick; the model does not, which is the worst for the holder.

use super::*;

const T: Duration = Duration::from_secs(16);
const STEP: Duration = Duration::from_millis(50);

/// The leader, and the server that may keep to itself what it heard.
struct Servers {
    next_ping: Ticks,
    heard: bool,
    renewed: Ticks,
}

impl Servers {
    /// Every ping until now has come by.
    fn until(&mut self, now: Ticks) {
        while self.next_ping <= now {
            if std::mem::take(&mut self.heard) {
                self.renewed = self.next_ping;
            }
            self.next_ping = self.next_ping.plus(T / 4);
        }
    }
}

/// Tends a held session for five of its lengths; whether a death of the server right after any
/// answer ends the session before its holder stops to believe in it.
fn is_outlived(first_ping: Duration, answer: Duration, floor: Duration) -> bool {
    let begun = Ticks(1_000_000_000_000);
    let mut alive = Alive::default();
    alive.created(begun, T);
    let mut servers = Servers { next_ping: begun.plus(first_ping), heard: false, renewed: begun };
    let longest = alive.longest(floor, 0);
    let (mut now, mut last_sent, mut proofs) = (begun, begun, 0);
    while now < begun.plus(T * 5) {
        let plan = alive.plan(longest);
        let write = plan.write.is_some_and(|at| at <= now);
        if write || (plan.touch <= now && last_sent < plan.touch) {
            (last_sent, now) = (now, now.plus(answer));
            // It heard of us when the request came, halfway.
            servers.until(last_sent.plus(answer / 2));
            servers.heard = true;
            servers.until(now);
            proofs += u32::from(alive.answered(last_sent, now, write, Some(longest)));
            if servers.renewed < alive.proven() {
                return false;
            }
        } else {
            now = now.plus(STEP);
            servers.until(now);
        }
    }
    assert!(proofs >= 5, "{proofs} proofs in five sessions");
    true
}

#[test]
fn z1_the_leader_lets_a_session_live_for_as_long_as_its_holder_believes_whenever_its_server_dies() {
    for first_ping in (0..80).map(|n| STEP * n) {
        for answer in [20, 300].map(Duration::from_millis) {
            for floor in [T / 12, T * 3 / 10, T * 23 / 60] {
                assert!(
                    is_outlived(first_ping, answer, floor),
                    "pings from {first_ping:?}, answers in {answer:?}, floor {floor:?}"
                );
            }
        }
    }
}
