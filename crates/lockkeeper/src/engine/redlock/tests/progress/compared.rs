//! The rules in Rust beside a real server: the same calls, the same answers and words, the same
//! keys afterwards.

use std::collections::BTreeMap;
use std::time::Duration;

use lockkeeper_testkit::dice::Dice;
use lockkeeper_testkit::redis::server::{RedisClient, RedisServer};
use lockkeeper_testkit::servers::clock_shim::{ClockShim, Clocks};

use super::super::support::in_full;
use super::rules::{ALL, Flaw, Rules};
use crate::engine::redis::client::script::{Call, Which};

const RECORD: &str = "{a}";
const CHANNEL: &str = "free";
/// A reading further than this from the model's is another.
const NEAR_MS: u64 = 20;

struct Server {
    client: RedisClient,
    ear: Option<RedisClient>,
}

fn key(of: &str) -> String {
    match of {
        "record" => RECORD.to_owned(),
        of => format!("{RECORD}:{of}"),
    }
}

fn keys(which: Which) -> Vec<String> {
    let keys: &[&str] = match which {
        Which::QuorumTake => &["record", "last", "member", "readers", "line", "signs", "turn"],
        Which::QuorumKeep => &["record", "last", "member", "readers"],
        Which::QuorumTell => &["member"],
        Which::QuorumGive => &["record", "line", "signs", "turn"],
        _ => &["record", "readers", "line", "signs", "turn"],
    };
    keys.iter().map(|of| key(of)).collect()
}

fn claim(nth: u64) -> String {
    format!("{:032x}", 0xc1a1 + nth)
}

impl Server {
    fn ask(&mut self, words: &[&str]) -> Vec<String> {
        self.client.command(words)
    }

    fn now_us(&mut self) -> u64 {
        let time: Vec<u64> =
            self.ask(&["TIME"]).iter().map(|part| part.parse().expect("a number")).collect();
        time[0] * 1_000_000 + time[1]
    }

    fn run(&mut self, which: Which, arguments: &[String]) -> Vec<String> {
        let (keys, arguments) = (keys(which), arguments.to_vec());
        let call = Call { script: which, keys: keys.into(), arguments: arguments.into() };
        let words = in_full(&call);
        self.ask(&words.iter().map(String::as_str).collect::<Vec<_>>())
    }

    /// The words of those that listen.
    fn words(&mut self, count: usize) -> Vec<String> {
        let Some(ear) = &mut self.ear else { return Vec::new() };
        (0..count).map(|_| ear.read().last().cloned().unwrap_or_default()).collect()
    }

    /// What stands in the keys: the record, who stands in line, who gave a sign of life, whose turn
    /// it is or was, and what it knows of the numbers of all names.
    fn state(&mut self) -> [Vec<String>; 5] {
        let signs = self.ask(&["ZRANGE", &key("signs"), "0", "-1", "WITHSCORES"]);
        let at = |text: &str| text.parse().expect("a whole number");
        let signs = signs.chunks(2).map(|one| (one[0].clone(), at(&one[1])));
        let turn = self.ask(&["GET", &key("turn")]).concat();
        let kept = self.ask(&["HMGET", &key("member"), "top", "ahead"]);
        let number = |text: String| if text == "(nil)" { "0".to_owned() } else { text };
        [
            self.ask(&["GET", RECORD]),
            self.ask(&["ZRANGE", &key("line"), "0", "-1"]),
            signs_of(signs.collect()),
            vec![turn.split(' ').next().unwrap_or_default().to_owned()],
            kept.into_iter().map(number).collect(),
        ]
    }
}

/// Who gave a sign of life, and who did not since all were to.
fn signs_of(signs: BTreeMap<String, i64>) -> Vec<String> {
    let since = signs.get(ALL).copied().unwrap_or(0);
    signs.iter().map(|(claim, at)| format!("{claim} {}", *at > since)).collect()
}

fn state(rules: &mut Rules, now_us: u64) -> [Vec<String>; 5] {
    let kept = rules.kept().to_vec();
    let lock = rules.at(RECORD, now_us);
    let none = || "(nil)".to_owned();
    [
        vec![lock.record.as_ref().map_or_else(none, |record| record.text())],
        lock.line.iter().map(|(_, claim)| claim.clone()).collect(),
        signs_of(lock.signs.clone()),
        vec![lock.turn.as_ref().map_or_else(none, |turn| turn.claim.clone())],
        kept,
    ]
}

/// Two answers say the same; how long something lasts still is read a moment later.
fn alike(real: &[String], model: &[String]) -> bool {
    let lasts = matches!(real.first().map(String::as_str), Some("B" | "R"));
    let near = |at: usize, one: &str, other: &str| {
        let [one, other] = [one, other].map(|text| text.parse::<u64>().unwrap_or(u64::MAX));
        lasts && at == 3 && one.abs_diff(other) <= NEAR_MS
    };
    let pairs = || real.iter().zip(model).enumerate();
    real.len() == model.len()
        && pairs().all(|(at, (one, other))| one == other || near(at, one, other))
}

/// A server of a test's own, whose clock stands still unless the test moves it: whatever the
/// machine is busy with, both are asked at the same time.
struct Beside {
    shim: ClockShim,
    redis: RedisServer,
    run: String,
}

impl Beside {
    fn new() -> Self {
        let shim = ClockShim::new().expect("a C compiler");
        let [(preload, library), (control, file)] = shim.environment();
        let (library, file) = (library.to_string_lossy(), file.to_string_lossy());
        let redis = RedisServer::start_in(&[], &[(preload, &*library), (control, &*file)]);
        let info = redis.command(&["INFO", "server"]).concat();
        let run = info.lines().find_map(|line| line.trim().strip_prefix("run_id:"));
        let run = run.expect("it says so").to_owned();
        Self { shim, redis, run }
    }

    fn pass(&self, time: u64) {
        self.shim.step(Clocks::Wall, Duration::from_millis(time)).expect("the file is ours");
    }

    /// Both are asked the same; `met` counts what was asked and answered.
    ///
    /// # Errors
    /// Where they differ.
    fn compare(
        &self,
        seed: u64,
        flaw: Option<Flaw>,
        met: &mut BTreeMap<String, u32>,
    ) -> Result<(), String> {
        let mut dice = Dice::new(seed);
        self.shim.mend().expect("the file is ours");
        self.shim.run_at(Clocks::Wall, -1_000_000).expect("the file is ours");
        let mut server = Server { client: self.redis.client(), ear: None };
        server.ask(&["FLUSHALL"]);
        server.ask(&["HSET", &key("member"), "run", &self.run, "layout", "2"]);
        // In one of four nobody listens.
        server.ear = (!seed.is_multiple_of(4)).then(|| {
            let mut ear = self.redis.client();
            ear.command(&["SUBSCRIBE", CHANNEL]);
            ear
        });
        let listens = u64::from(server.ear.is_some());
        let mut rules = Rules::new(self.run.clone(), flaw);
        let (mut round, mut trail) = (0, Vec::new());
        for _ in 0..80 {
            let most = match dice.below(100) {
                0..70 => 3,
                70..91 => 400,
                _ => 9_000,
            };
            self.pass(dice.below(most));
            if dice.chance(20) {
                let by = Duration::from_millis(dice.below(9_000));
                self.shim.step_back(Clocks::Wall, by).expect("the file is ours");
            }
            if dice.chance(20) {
                // Now and then for so long that numbers are far ahead of the clock, or forgotten.
                let days = Duration::from_secs(dice.below(9) * 86_400);
                match dice.chance(500) {
                    true => self.shim.step_back(Clocks::Wall, days),
                    false => self.shim.step(Clocks::Wall, days),
                }
                .expect("the file is ours");
            }
            if dice.chance(20) {
                server.ask(&["DEL", &key("last")]);
                rules.forget(RECORD);
            }
            // Nothing is to end while a call is on its way.
            let now = server.now_us();
            if rules.at(RECORD, now).ends().any(|at| at.abs_diff(now) < 2_000 * NEAR_MS) {
                self.pass(5 * NEAR_MS);
            }
            let now = server.now_us();
            round += dice.below(2);
            let holder = rules.at(RECORD, now).record.as_ref().map(|record| record.claim.clone());
            let (which, arguments) = self.roll(&mut dice, now, round, holder);
            let real = server.run(which, &arguments);
            let time = match which {
                Which::QuorumTake | Which::QuorumKeep => real.get(1).cloned(),
                Which::QuorumTell => real.first().cloned(),
                _ => Some(server.now_us().to_string()),
            };
            let now = time.and_then(|time| time.parse().ok()).ok_or_else(|| real.concat())?;
            let mut told = Vec::new();
            let model = rules.call(which, &keys(which), &arguments, now, &mut |_, text| {
                told.push(text.to_owned());
                listens
            });
            let model = model.expect("it is one of them");
            trail.push(format!("{now}: {which:?} {arguments:?} -> {real:?} {told:?}"));
            if listens == 0 {
                told.clear();
            }
            let (theirs, ours) = (server.state(), state(&mut rules, now));
            if !alike(&real, &model) || theirs != ours {
                let trail = trail.join("\n");
                return Err(format!("model {model:?} {ours:?}, server {theirs:?}\n{trail}"));
            }
            // Only where all else is alike: a word that never comes is waited for.
            let words = server.words(told.len());
            if words != told {
                return Err(format!("the server told {words:?}\n{}", trail.join("\n")));
            }
            // What is told of itself begins with the time.
            let said = if which == Which::QuorumTell { "" } else { &real[0] };
            *met.entry(format!("{which:?} {said}")).or_default() += 1;
        }
        Ok(())
    }

    /// A call: which script, and with what.
    fn roll(
        &self,
        dice: &mut Dice,
        now: u64,
        round: u64,
        holder: Option<String>,
    ) -> (Which, Vec<String>) {
        let nth = dice.below(6);
        // Often of who has it.
        let one = holder.filter(|_| dice.chance(300)).unwrap_or_else(|| claim(nth));
        let first = (70 + (nth * 7) % 5).to_string();
        let asked = round.saturating_sub(u64::from(dice.chance(100)) * 3).to_string();
        let ttl = [400, 3_000, 20_000][dice.below(3) as usize].to_string();
        let proposed = ((now - 1_767_225_600_000_000) / 16 + dice.below(2)).to_string();
        let channel = CHANNEL.to_owned();
        match dice.below(21) {
            20 => (Which::QuorumTell, Vec::new()),
            0..=9 => {
                let late = dice.chance(50);
                let not_after = if late { now - 1_000_000 } else { now + 2_000_000 }.to_string();
                let (first, waits) = match dice.below(10) {
                    // What completes a hold.
                    0 => ("0".to_owned(), "0"),
                    1..=2 => (first, "0"),
                    _ => (first, "1"),
                };
                let who = "who".to_owned();
                let words = [one, asked, ttl, not_after, who, proposed, first, waits.into()];
                let more = [self.run.clone(), "60000".to_owned(), channel];
                (Which::QuorumTake, [words.as_slice(), &more].concat())
            }
            10..=11 => {
                let held = dice.below(2).to_string();
                (Which::QuorumKeep, vec![one, ttl, proposed, held, self.run.clone()])
            }
            12..=18 => {
                let words = match dice.below(5) {
                    0 => vec![one, asked, first],
                    1 => vec![one, asked, first, channel, claim(dice.below(6)), "71".into()],
                    2 => vec![one, asked, first, channel],
                    _ => vec![one, asked, String::new(), channel],
                };
                (Which::QuorumGive, words)
            }
            _ => {
                let those = dice.chance(500).then_some(one);
                (Which::QuorumForce, std::iter::once(channel).chain(those).collect())
            }
        }
    }
}

#[test]
fn the_model_of_a_member_answers_every_call_as_a_server_does() {
    let beside = Beside::new();
    let mut met = BTreeMap::new();
    for seed in 0..40 {
        let alike = beside.compare(seed, None, &mut met);
        assert!(alike.is_ok(), "seed {seed}: {}", alike.unwrap_err());
    }
    println!("answered alike by redis-server and the model: {met:?}");
    let enough = |kind: &str| met.get(kind).is_some_and(|count| *count > 20);
    for kind in
        ["Take Y", "Take B", "Take R", "Take T", "Keep Y", "Keep B", "Give D", "Force D", "Tell "]
    {
        assert!(enough(&format!("Quorum{kind}")), "too weak: {met:?}");
    }
}

#[test]
fn a_model_of_a_member_that_leaves_out_a_rule_answers_otherwise_than_a_server() {
    let beside = Beside::new();
    for flaw in Flaw::ALL {
        let differs = |seed| beside.compare(seed, Some(flaw), &mut BTreeMap::new()).is_err();
        assert!((0..40).any(differs), "{flaw:?} is not noticed");
    }
}
