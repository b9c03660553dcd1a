//! All that can follow on a state.

use super::*;

impl State {
    /// All that can happen next.
    pub(in super::super) fn next(&self, world: &World) -> Vec<Self> {
        let mut all = Vec::new();
        let mut with = |change: &dyn Fn(&mut Self)| {
            let mut next = self.clone();
            change(&mut next);
            next.tidy(world);
            all.push(next);
        };
        let now = self.now;
        for (n, client) in self.clients.iter().enumerate() {
            let holds = client.until.is_some_and(|until| now < until);
            let reach: &[u16] =
                if world.in_turn { &[0b111, 0b110, 0b101, 0b011] } else { &[0b111] };
            for &members in reach {
                let sent = |s: &mut Self| {
                    if world.in_turn || world.at_once && n == 1 {
                        s.at_once(n, members, world);
                    }
                };
                if client.asks > 0 && client.due.is_none() && !holds && !client.left {
                    with(&|s| {
                        s.ask(n, world);
                        sent(s);
                    });
                }
                if holds && client.renewals > 0 && client.due.is_none() {
                    with(&|s| {
                        s.clients[n].renewals -= 1;
                        s.step(n, Event::Renew { now }, world);
                        sent(s);
                    });
                }
                if holds && client.completions > 0 && client.machine.is_incomplete() {
                    with(&|s| {
                        s.clients[n].completions -= 1;
                        if world.flaw == Some(Flaw::CompletesLease) {
                            let until = deadline(now, world.ttl[n], Drift::default());
                            s.clients[n].until = Some(until);
                        }
                        s.step(n, Event::Complete, world);
                        sent(s);
                    });
                }
                if holds && !client.left {
                    with(&|s| {
                        s.clients[n].left = true;
                        s.clients[n].until = None;
                        s.step(n, Event::Leave { now }, world);
                        sent(s);
                    });
                }
            }
            if let Some(round) = client.due {
                with(&|s| s.step(n, Event::Due { now, round }, world));
            }
        }
        for at in 0..self.requests.len() {
            with(&|s| s.arrives(at, true, world));
            if self.turns > 0 && self.requests[at].verb == Verb::Take {
                with(&|s| s.refuses(at, 0, world));
                with(&|s| s.refuses(at, u64::MAX, world));
            }
            if !self.requests[at].verb.gives() {
                with(&|s| s.arrives(at, false, world));
            }
        }
        if self.steps > 0 {
            with(&|s| {
                s.steps -= 1;
                s.now = s.now.plus(STEP);
            });
        }
        let taken = if self.forces > 0 { &[0b111u16, 0b110, 0b101, 0b011][..] } else { &[] };
        for &members in taken {
            with(&|s| {
                s.forces -= 1;
                let all = s.members.iter_mut().enumerate();
                let some = all.filter(|(member, _)| members & (1 << member) != 0);
                some.for_each(|(_, member)| member.records = [None, None]);
            });
        }
        for member in 0..MEMBERS {
            if self.restarts > 0 {
                with(&|s| s.restart(member, world));
            }
            if self.members[member].admitted {
                continue;
            }
            let same = world.ttl[0] == world.ttl[1] && world.skew[0] == world.skew[1];
            let alike = same && !world.twins && world.flaw != Some(Flaw::ClientWaits);
            for client in if alike { 0..1 } else { 0..2 } {
                // Who hears more than these begins no lower.
                for members in [0b110, 0b101, 0b011, 0b001, 0b010, 0b100] {
                    if !self.has_waited(member, client, members, world) {
                        continue;
                    }
                    if let Some(floor) = self.floor(member, client, members, world) {
                        with(&|s| match world.slow_floors {
                            true => s.floors.push((member, s.members[member].run, floor)),
                            false => s.admit(member, floor, client, world),
                        });
                    }
                }
            }
        }
        for at in 0..self.floors.len() {
            with(&|s| {
                let (member, _, floor) = s.floors.remove(at);
                s.admit(member, floor, 1, world);
            });
        }
        all
    }

    fn admit(&mut self, member: usize, floor: u64, client: usize, world: &World) {
        let there = &mut self.members[member];
        (there.floor, there.admitted) = (floor.max(there.floor), true);
        there.longest = there.longest.max(TTL).max(world.ttl[client]);
    }

    /// A member loses everything, or what is newer than the beginning, and starts again.
    fn restart(&mut self, member: usize, world: &World) {
        self.restarts -= 1;
        let there = &self.members[member];
        let admitted = matches!(world.flaw, Some(Flaw::CountsAtOnce | Flaw::NoFloor));
        let (met, run) = (self.now, there.run + 1);
        let longest = if world.keeps_longest { there.longest } else { Duration::ZERO };
        let last = if world.older { world.last[member] } else { 0 };
        self.members[member] = Member { met, run, admitted, last, longest, ..Member::default() };
    }
}
