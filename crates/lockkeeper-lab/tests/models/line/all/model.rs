//! The search over what may happen, and what has to hold in every state.

use stateright::{Model, Property};

use super::super::register::Server;
use super::super::{BELIEF, END, Message, Step, TOKENS, World};
use super::{ALL, All, Joint, Move, Stage, State};

impl<S: Server> Model for All<S> {
    type State = State<S>;
    type Action = Move;

    fn init_states(&self) -> Vec<State<S>> {
        // What goes wrong is counted for all names together.
        let world = || World { silences: 0, deaths: 0, ..self.line.init_states().remove(0) };
        vec![State {
            names: [world(), world()],
            callers: vec![Stage::Idle; usize::from(self.callers)],
            network: Vec::new(),
            silences: self.line.silences,
            deaths: self.line.deaths,
            all_or_nothing: true,
            at_once: false,
            in_order: false,
            lost_one: false,
        }]
    }

    fn actions(&self, state: &State<S>, out: &mut Vec<Move>) {
        self.possible(state, out);
        // What time does to a single name is model 1's; here it passes while one is had and the
        // next is waited for.
        let half = state.callers.iter().any(|stage| matches!(stage, Stage::Waits(1..)));
        if half && state.names[0].now < self.line.until {
            out.push(Move::Tick);
        }
        for (c, stage) in (0..).zip(&state.callers) {
            if self.leave && c == 0 && matches!(stage, Stage::AtOnce { .. } | Stage::Waits(1..)) {
                out.push(Move::Leaves(c));
            }
            if state.deaths > 0 && c == 0 && !matches!(stage, Stage::Idle | Stage::Over) {
                out.push(Move::Dies(c));
            }
            if state.silences > 0 && matches!(stage, Stage::AtOnce { .. }) {
                out.push(Move::Silence(c));
            }
        }
        out.extend(
            state
                .network
                .iter()
                .filter(|joint| matches!(joint, Joint::Late { .. }))
                .cloned()
                .map(Move::Loses),
        );
        for (name, world) in state.names.iter().enumerate() {
            let late =
                world.network.iter().filter(|message| matches!(message, Message::Late { .. }));
            out.extend(late.cloned().map(|message| Move::Of(name, Step::Loses(message))));
            if state.silences > 0 {
                let calls = (0..)
                    .zip(&world.processes)
                    .flat_map(|(p, process)| process.calls.keys().map(move |number| (p, *number)));
                out.extend(calls.map(|(p, number)| Move::Of(name, Step::Silence(p, number))));
            }
        }
    }

    fn next_state(&self, state: &State<S>, what: Move) -> Option<State<S>> {
        let mut state = state.clone();
        self.make(&mut state, what);
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut properties = vec![
            Property::always(BELIEF, |_, state: &State<S>| {
                state.names.iter().all(World::believing_is_holding)
            }),
            Property::always(TOKENS, |_, state: &State<S>| {
                state.names.iter().all(|world| world.tokens_rise)
            }),
            Property::always(ALL, |_, state: &State<S>| state.all_or_nothing),
            Property::always(END, |model: &Self, state: &State<S>| model.comes_to_an_end(state)),
            Property::sometimes("somebody gets all one after the other", |_, state: &State<S>| {
                state.in_order
            }),
        ];
        if self.line.deaths > 0 {
            let outlived = |_: &Self, state: &State<S>| {
                state.deaths == 0 && state.callers.iter().skip(1).any(|stage| *stage == Stage::Has)
            };
            properties.push(Property::sometimes("one dies, and another has all", outlived));
        }
        if self.jointly > 0 {
            properties.push(Property::sometimes(
                "somebody gets all in one message",
                |_, state: &State<S>| state.at_once,
            ));
        }
        if self.line.until >= super::super::register::TTL {
            properties.push(Property::sometimes(
                "one is lost while the next is waited for",
                |_, state: &State<S>| state.lost_one,
            ));
        }
        properties
    }
}
