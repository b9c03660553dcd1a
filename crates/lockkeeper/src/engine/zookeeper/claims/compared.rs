//! The model of the ensemble beside a real server: the same requests, the same answers and news, in
//! the same order.
//!
//! What a claim's machine asks for goes through [`State::perform`] to the server, and what comes
//! back is what the machine would be told; it is taken down instead.

use std::collections::BTreeMap;

use super::ConversionEntry;
use crate::engine::zookeeper::layout::{Tag, write_seq};
use crate::engine::zookeeper::proto::{Create, Request};
use crate::engine::zookeeper::recipe::{Action, Conversion, Input, Seen};
use crate::engine::zookeeper::tests::model::{Model, Part, Who};
use crate::engine::zookeeper::tests::{Client, Place, claim_in, run, until};
use crate::words::claim::Mode;
use crate::words::id::ClaimId;
use crate::words::name::Kind;
use lockkeeper_testkit::dice::Dice;

/// One client with one claim.
struct Side {
    client: Client,
    claim: ClaimId,
    limit: Option<u16>,
    prefixes: [String; 4],
    /// The numbers of the nodes that it created.
    seqs: Vec<i32>,
}

impl Side {
    async fn new(place: &Place, options: &str, kind: Kind, mode: Mode) -> Self {
        let client = place.client_with(options).await;
        let claim = claim_in(kind, "line", mode);
        let dir = client.path("line");
        {
            let shared = client.engine.shared().unwrap();
            let mut state = shared.lock();
            state.taken_down = Some(Vec::new());
            _ = state.attempt(&claim, dir, false);
        }
        let limit = if let Mode::Permits { limit, .. } = mode { Some(limit) } else { None };
        let mut side =
            Self { client, claim: claim.id, limit, prefixes: Default::default(), seqs: Vec::new() };
        side.heard();
        side.renamed();
        side
    }

    /// Its names are other ones in each session.
    fn renamed(&mut self) {
        let shared = self.client.engine.shared().unwrap();
        let mut state = shared.lock();
        let layout = state.options.layout.clone();
        let turn = ClaimId::fresh();
        let entry = state.claims.get_mut(&self.claim).unwrap();
        let stood = ClaimId(self.claim.0.wrapping_add(u128::from(entry.incarnation)));
        let writer = layout.prefix(Tag::Write, turn);
        let prefix = writer.clone();
        let (answers, ends) = (Vec::new(), Vec::new());
        entry.turn = Some(ConversionEntry {
            id: turn,
            way: Conversion::Upgrade,
            running: true,
            number: None,
            prefix,
            answers,
            ends,
        });
        let [read, upgradable] = [Tag::Read, Tag::Upgradable].map(|tag| layout.prefix(tag, stood));
        self.prefixes = [entry.prefix.clone(), writer, read, upgradable];
    }

    fn prefix(&self, part: Part) -> String {
        let at = match part {
            Part::Own => 0,
            Part::Writer => 1,
            Part::Reader { upgradable: false } => 2,
            Part::Reader { upgradable: true } => 3,
        };
        self.prefixes[at].clone()
    }

    /// What the machine would have been told since the last call.
    fn heard(&self) -> Vec<Input> {
        let shared = self.client.engine.shared().unwrap();
        let mut state = shared.lock();
        std::mem::take(state.taken_down.as_mut().unwrap())
    }

    /// Everything that the server said before now has come.
    async fn settled(&self) {
        let path = self.client.engine.options.root();
        self.client.ask(Request::Exists { path, watch: false }).await.unwrap();
    }

    async fn call(&self, action: &Action) -> Vec<Input> {
        self.client.engine.shared().unwrap().lock().perform(self.claim, action.clone());
        let mut heard = Vec::new();
        // Some take more than one message.
        loop {
            self.settled().await;
            heard.append(&mut self.heard());
            if matches!(action, Action::Discard(_)) || !heard.iter().all(is_news) {
                return heard;
            }
        }
    }

    /// Its session ends, and it gets another one.
    async fn end(&mut self) {
        let before = self.client.session();
        _ = self.client.ask(Request::Close).await;
        let (shared, client) = (self.client.engine.shared().unwrap(), &self.client);
        until("there is another session", || async {
            client.session() != before && shared.lock().up
        })
        .await;
        let mut heard = self.heard();
        // It may be told of its own nodes' end, because it asked for it.
        heard.retain(|input| !is_news(input));
        assert_eq!(
            heard,
            [Input::LinkDown, Input::SessionEnded, Input::LinkUp],
            "of the session's end"
        );
        self.renamed();
    }
}

fn is_news(input: &Input) -> bool {
    matches!(input, Input::Happened { .. } | Input::LimitChanged)
}

/// Takes the transaction numbers out, and puts lists in one order.
fn numbers_of(input: &mut Input) -> Vec<i64> {
    match input {
        Input::Created(Ok(node)) | Input::Made(Ok(node)) => {
            node.czxid.as_mut().map(std::mem::take).into_iter().collect()
        }
        Input::Listed(Ok(listing)) => {
            listing.children.sort_by(|a, b| a.name.cmp(&b.name));
            vec![std::mem::take(&mut listing.mzxid)]
        }
        Input::Found(Ok(children)) => {
            children.sort_by(|a, b| a.name.cmp(&b.name));
            Vec::new()
        }
        Input::Own(_, Ok(seen)) => vec![std::mem::take(&mut seen.czxid)],
        Input::Watched(_, Seen::Here(number))
        | Input::Peeked(_, Seen::Here(number))
        | Input::Numbered(Ok(number)) => {
            vec![std::mem::take(number)]
        }
        _ => Vec::new(),
    }
}

/// The model's numbers and the real ones: other numbers, the same order.
#[derive(Default)]
struct Numbers(BTreeMap<i64, i64>);

impl Numbers {
    fn compare(&mut self, model: i64, real: i64) {
        let known = *self.0.entry(model).or_insert(real);
        assert_eq!(known, real, "the number that is {model} in the model");
        let below = self.0.range(..model).next_back().is_none_or(|(_, below)| *below < real);
        let above = self.0.range(model + 1..).next().is_none_or(|(_, above)| real < *above);
        assert!(
            below && above,
            "{model}, which is {real} in reality, stands elsewhere in the order: {:?}",
            self.0
        );
    }
}

fn action(dice: &mut Dice, side: &Side, names: &[String]) -> Action {
    // Mostly of those that came last, which are there more often.
    let name = |dice: &mut Dice| {
        let back = if dice.below(4) == 0 { dice.below(names.len() as u64) } else { dice.below(6) };
        names
            .iter()
            .rev()
            .nth(back as usize)
            .cloned()
            .unwrap_or_else(|| "_c_x-lock-0000000000".to_owned())
    };
    let (one, other) = (name(dice), name(dice));
    let seq = dice.below(side.seqs.len() as u64 + 1) as usize;
    let seq = side.seqs.get(seq).copied().unwrap_or(0);
    let permits = side.limit.is_some();
    match dice.below(14) {
        0 | 1 => Action::Create,
        2 if !permits => Action::CreateWriter,
        3 if !permits => Action::CreateReader { seq, upgradable: dice.below(2) == 0 },
        4 if !permits => Action::Guard {
            node: side.prefix(Part::Writer) + &write_seq(seq),
            behind: vec![one, other],
        },
        5 if !permits => {
            Action::Number { node: one, before: (dice.below(2) == 0).then_some(other) }
        }
        2 | 3 if permits => Action::StoreLimit,
        6 => Action::Find { writer: !permits && dice.below(2) == 0 },
        7 => Action::Delete(one),
        8 => Action::Discard(one),
        9 => Action::WatchOwn(one),
        10 | 11 => Action::Watch(one),
        12 => Action::Peek(one),
        _ => Action::List,
    }
}

async fn compare(options: &str, kind: Kind, modes: [Mode; 3], seed: u64) {
    const CALLS: u32 = 700;
    let place = Place::new().await;
    let mut sides = Vec::new();
    for mode in modes {
        sides.push(Side::new(&place, options, kind, mode).await);
    }
    let dir = sides[0].client.path("line");
    sides[0].client.create(&dir, b"", Create::Persistent).await;
    let mut model = Model::new(sides.len(), 0);
    for at in 0..sides.len() {
        model.connect(at, false);
    }
    let (mut dice, mut numbers, mut names) = (Dice::new(seed), Numbers::default(), Vec::new());
    let mut kinds = BTreeMap::<String, u32>::new();
    for call in 0..CALLS {
        let at = dice.below(sides.len() as u64) as usize;
        let ends = dice.below(60) == 0;
        let mut heard = vec![Vec::new(); sides.len()];
        let (action, answer) = if ends {
            sides[at].end().await;
            model.end(at, false);
            model.disconnect(at);
            model.connect(at, false);
            sides[at].seqs.clear();
            (None, None)
        } else {
            let action = action(&mut dice, &sides[at], &names);
            let (prefix, limit) = (|part| sides[at].prefix(part), sides[at].limit);
            let answer = model.serve(&Who { at, prefix: &prefix, limit }, &action);
            heard[at] = sides[at].call(&action).await;
            (Some(action), answer)
        };
        let mut expected = vec![Vec::new(); sides.len()];
        for (whom, news) in model.told() {
            // A session that is over is told nothing.
            if !(ends && whom == at) {
                expected[whom].push(news);
            }
        }
        if let Some(Input::Created(Ok(node)) | Input::Made(Ok(node))) = &answer {
            names.push(node.name.clone());
            sides[at].seqs.push(node.seq);
        }
        expected[at].extend(answer);
        for (whom, side) in sides.iter().enumerate() {
            side.settled().await;
            heard[whom].append(&mut side.heard());
        }
        for (whom, (mut expected, mut heard)) in expected.into_iter().zip(heard).enumerate() {
            if ends {
                // What goes in one transaction is told in any order.
                for all in [&mut expected, &mut heard] {
                    all.sort_by_key(|input| format!("{input:?}"));
                }
            }
            let [ours, theirs] = [&mut expected, &mut heard]
                .map(|all| all.iter_mut().flat_map(numbers_of).collect::<Vec<_>>());
            assert_eq!(
                heard, expected,
                "seed {seed}, call {call}: {at} asks for {action:?}, and {whom} hears"
            );
            for (ours, theirs) in ours.into_iter().zip(theirs) {
                numbers.compare(ours, theirs);
            }
            for input in &heard {
                let text = format!("{input:?}");
                let word = text.split(['(', ' ']).next().unwrap_or_default();
                let failed = text.contains("Err(") || text.contains("Gone");
                *kinds
                    .entry(format!("{word}{}", if failed { ", refused" } else { "" }))
                    .or_default() += 1;
            }
        }
    }
    println!(
        "model zookeeper: {CALLS} calls, answered alike by a real server ({options}): {kinds:?}"
    );
    assert!(kinds.len() >= 12 && kinds.values().all(|count| *count >= 5), "too weak: {kinds:?}");
    for side in &sides {
        side.client.close().await;
    }
}

#[test]
fn the_model_of_the_ensemble_answers_as_a_real_server_does_call_by_call() {
    run(async {
        for (seed, layout) in [(1, "curator"), (2, "kazoo")] {
            let modes = [Mode::Exclusive, Mode::Shared, Mode::Upgradable];
            compare(&format!("layout={layout}"), Kind::Lock, modes, seed).await;
            let modes = [1, 2, 3].map(|count| Mode::Permits { count, limit: 3 });
            compare(&format!("layout={layout}"), Kind::Semaphore, modes, seed + 10).await;
        }
    });
}
