//! What has to hold in every state, and what may happen in it.

use lockkeeper::Mode;
use lockkeeper::test_util::machines::bytes::{Grip, Span};
use stateright::{Model, Property};

use super::permits::LIMIT;
use super::{At, Bytes, Process, Step, Then, World};

pub(super) const EXCLUSION: &str = "holders exclude each other";
pub(super) const TOKENS: &str = "numbers rise";
pub(super) const ORDER: &str = "nobody who is not in line overtakes it";
pub(super) const REFUSED: &str =
    "a try is refused only while too few permits are free, or others wait";
pub(super) const COUNTING: &str =
    "whoever counts permits comes to the end of that, whatever their holders do";
pub(super) const END: &str = "everybody comes to an end, and nothing is left locked";

impl Model for Bytes {
    type State = World;
    type Action = Step;

    fn init_states(&self) -> Vec<World> {
        let processes = vec![
            Process { at: At::Idle, file: 0, in_line: false, marked: false };
            self.plans.len()
        ];
        vec![World {
            processes,
            files: Vec::new(),
            path: None,
            deaths: self.deaths,
            removals: self.removals,
            greatest: 0,
            greatest_exclusive: 0,
            tokens_rise: true,
            in_order: true,
            wrong_busy: false,
        }]
    }

    fn actions(&self, world: &World, out: &mut Vec<Step>) {
        self.possible(world, out);
        if world.deaths > 0 {
            let lives = |at: &At| !matches!(at, At::Idle | At::Over | At::Dead);
            out.extend(
                (0..)
                    .zip(&world.processes)
                    .filter(|(_, process)| lives(&process.at))
                    .map(|(p, _)| Step::Dies(p)),
            );
        }
        if let Some(path) = world.path.filter(|_| world.removals > 0) {
            if !self.collects {
                out.push(Step::Removes);
            } else if world.files[usize::from(path)].locks.may_lock(
                u8::MAX,
                Span::EVERYTHING,
                Grip::Write,
            ) {
                out.push(Step::Collects);
            }
        }
    }

    fn next_state(&self, world: &World, step: Step) -> Option<World> {
        let mut world = world.clone();
        self.take_step(&mut world, step);
        Some(world)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut properties = vec![
            Property::always(EXCLUSION, |model: &Self, world: &World| {
                world.excludes(model.removals > 0 && !model.collects)
            }),
            Property::always(TOKENS, |_, world: &World| world.tokens_rise),
            Property::always(ORDER, |_, world: &World| world.in_order),
            Property::always(END, |model: &Self, world: &World| model.comes_to_an_end(world)),
        ];
        if self.plans.iter().any(|plan| plan.permits > 0) {
            properties.push(Property::always(REFUSED, |_, world: &World| !world.wrong_busy));
            properties.push(Property::always(COUNTING, |model: &Self, world: &World| {
                model.counting_ends(world)
            }));
            let together = |_: &Self, world: &World| world.holders().len() > 1;
            if self.plans.iter().filter(|plan| plan.permits < LIMIT).count() > 1 {
                properties.push(Property::sometimes("permits are held together", together));
            }
        }
        if self.plans.len() > 1 && self.plans.iter().any(|plan| plan.join) {
            properties.push(Property::sometimes("somebody stands in line", |_, world: &World| {
                world.processes.iter().any(|p| p.in_line)
            }));
        }
        if self.plans.iter().any(|plan| matches!(plan.then, Some(Then::Downgrade(_)))) {
            properties.push(Property::sometimes("somebody goes down", |_, world: &World| {
                world.processes.iter().any(|p| {
                    matches!(
                        p.at,
                        At::Holds { mode: Mode::Shared | Mode::Upgradable, converted: true, .. }
                    )
                })
            }));
        }
        if self.plans.iter().any(|plan| plan.then == Some(Then::Upgrade)) {
            properties.push(Property::sometimes("somebody upgrades", |_, world: &World| {
                world.processes.iter().any(|p| {
                    matches!(p.at, At::Holds { mode: Mode::Exclusive, converted: true, .. })
                })
            }));
        }
        properties
    }
}
