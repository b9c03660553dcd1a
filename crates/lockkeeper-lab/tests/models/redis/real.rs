//! The model of the scripts beside a real server: the same calls, the same answers, the same keys
//! afterwards.

use std::collections::BTreeMap;
use std::time::Duration;

use lockkeeper_testkit::dice::Dice;
use lockkeeper_testkit::redis::server::{RedisClient, RedisServer};
use lockkeeper_testkit::servers::clock_shim::{ClockShim, Clocks};

use super::scripts::{Holder, How, Lock, Place, Reply, Units};

macro_rules! script {
    ($($name:literal),+) => {
        concat!($(include_str!(concat!(
            "../../../../lockkeeper/src/engine/redis/native/",
            $name,
            ".lua"
        ))),+)
    };
}

const TAKE: &str = script!("take");
const TAKE_PERMITS: &str = script!("permits");
const ACQUIRE: &str = script!("now", "forms", "holders", "settle", "answers", "acquire");
const RELEASE: &str = script!("give", "forms", "holders", "settle", "answers", "release");
const WITHDRAW: &str = script!("now", "forms", "holders", "settle", "answers", "withdraw");
const CONVERT: &str = script!("now", "forms", "holders", "settle", "answers", "convert");
const RENEW: &str = script!("renew");

/// Microseconds, as the scripts count them.
const UNITS: Units =
    Units { second: 1_000_000, number_of: |now| (now - 1_767_225_600_000_000) / 16 };
/// A reading further than this from the model's is another.
const NEAR_US: u64 = 20_000;

struct Server {
    client: RedisClient,
    now: u64,
}

fn word(claim: u16) -> String {
    format!("{claim:032x}")
}

fn place_text(place: &Place) -> String {
    let Place { claim, mode, count, limit, ttl, hold } = *place;
    let hold = hold.map_or("-".to_owned(), word);
    // The time of the first asking rises with the claim.
    let asked = claim;
    let ttl = ttl / 1000;
    format!("2 {} 0 {mode} {count} {ttl} channel who {asked} {limit} {hold}", word(claim))
}

/// What is kept of the last number while nobody is in the way.
fn bare(place: &Place, number: u64) -> String {
    if place.mode == 'p' { format!("2:{}:l", place.limit) } else { number.to_string() }
}

fn number(text: &str) -> u64 {
    text.parse().unwrap_or_else(|_| panic!("a number: {text}"))
}

/// The server's time when it gave this number.
fn time_of(given: &str) -> u64 {
    number(given) * 16 + 1_767_225_600_000_000
}

impl Server {
    fn call(&mut self, script: &str, arguments: &[String]) -> Vec<String> {
        let reply = self.eval(script, &["{a}", "{a}:line", "{a}:last", "{a}:watch:0"], arguments);
        self.now = match &reply[..] {
            // On the short way, with a number that is the time.
            [_, now, given] if now.is_empty() => time_of(given),
            [_, now, ..] => number(now),
            _ => self.tell(),
        };
        reply
    }

    fn eval(&mut self, script: &str, keys: &[&str], arguments: &[String]) -> Vec<String> {
        let count = keys.len().to_string();
        let mut words = vec!["EVAL", script, &count];
        words.extend(keys);
        words.extend(arguments.iter().map(String::as_str));
        let reply = self.client.command(&words);
        assert!(!reply[0].starts_with('-'), "{reply:?}");
        reply
    }

    /// The short way; `None`: something is in the way.
    fn take(&mut self, place: &Place, patience: u64) -> Option<Reply> {
        let keys = ["{a}", "{a}:last", "{a}:line"];
        let (text, ttl) = (format!("{} ", place_text(place)), (place.ttl / 1000).to_string());
        let reply = if place.mode == 'p' {
            let words = [text, ttl, patience.to_string(), bare(place, 0)];
            self.eval(TAKE_PERMITS, &keys, &words)
        } else {
            let until = (UNITS.number_of)(patience).to_string();
            self.eval(TAKE, &keys, &[text, ttl, until])
        };
        if let [given] = &reply[..] {
            self.now = time_of(given);
            return Some(Reply::Granted { number: number(given), ttl: place.ttl });
        }
        self.now = number(&reply[1]);
        (reply[0] != "W").then(|| Self::reply(&reply))
    }

    /// Whether the flag stands beside the last number for as long as there is a line, and does not
    /// go before it.
    fn is_flagged(&mut self) -> bool {
        let line = self.client.command(&["PTTL", "{a}:line"])[0].parse::<i64>().expect("a time");
        let kept = self.client.command(&["GET", "{a}:last"]).pop().unwrap_or_default();
        let lives = self.client.command(&["PTTL", "{a}:last"])[0].parse::<i64>().expect("a time");
        let marks = kept.rsplit_once(':').map_or("", |(_, marks)| marks);
        line == -2 || line >= 0 && marks.contains('w') && lives > line
    }

    fn tell(&mut self) -> u64 {
        let time = self.client.command(&["TIME"]);
        number(&time[0]) * 1_000_000 + number(&time[1])
    }

    fn reply(words: &[String]) -> Reply {
        match words[0].as_str() {
            "G" => Reply::Granted { number: number(&words[2]), ttl: number(&words[3]) * 1000 },
            "L" => Reply::InLine {
                ahead: number(&words[2]) as usize,
                rest: number(&words[3]) * 1000,
                turn: words[5].parse().ok(),
            },
            "B" => Reply::Busy,
            "T" => Reply::Late,
            "X" => Reply::Gone,
            "E" => Reply::NotUpgradable,
            "M" => Reply::OtherLimit(number(&words[2])),
            other => panic!("an answer that no model knows: {other}"),
        }
    }

    /// What stands in the keys: holders with what is left of their leases, the order of the line,
    /// and the words.
    fn keys(&mut self) -> (Vec<(Holder, u64)>, Vec<u16>, Vec<u16>) {
        let mut holders = Vec::new();
        let claim_of =
            |text: &str| u16::from_str_radix(&text[text.len() - 4..], 16).expect("a claim of ours");
        let mut read = |text: &str, left: u64| {
            let w: Vec<&str> = text.split(' ').collect();
            let conversion = w.get(13).filter(|word| **word != "-");
            let conversion = conversion.map(|word| word.parse().expect("a time of ours"));
            let holder = Holder {
                claim: claim_of(w[1]),
                mode: w[3].chars().next().expect("a letter"),
                count: w[4].parse().expect("a count"),
                number: number(w[11]),
                ttl: number(w[5]) * 1000,
                until: 0,
                conversion,
                confirmed: true,
            };
            holders.push((holder, left));
        };
        let kind = self.client.command(&["TYPE", "{a}"]).remove(0);
        if kind == "string" {
            let left = number(&self.client.command(&["PTTL", "{a}"])[0]) * 1000;
            read(&self.client.command(&["GET", "{a}"])[0], left);
        } else if kind == "hash" {
            let now = self.tell();
            for pair in
                self.client.command(&["HGETALL", "{a}"]).chunks(2).filter(|pair| pair[0] != "=")
            {
                let (deadline, text) = pair[1].split_once(' ').expect("a deadline first");
                read(text, number(deadline).saturating_sub(now));
            }
        }
        holders.sort_by_key(|(h, _)| h.claim);
        let members = self.client.command(&["ZRANGE", "{a}:line", "0", "-1"]);
        let places = members
            .iter()
            .filter(|m| m.starts_with("2 "))
            .map(|m| claim_of(m.split(' ').nth(1).expect("a claim")))
            .collect();
        let mut words: Vec<u16> =
            members.iter().filter(|m| m.starts_with('w')).map(|m| claim_of(m)).collect();
        words.sort_unstable();
        (holders, places, words)
    }
}

/// Two answers mean the same. Of several leases the server tells the earliest that there was, which
/// a renewal may have moved: whoever is in line asks too early at worst, and never too late.
fn alike(real: &Reply, model: &Reply) -> bool {
    match (real, model) {
        (
            Reply::InLine { ahead: a, rest: b, turn: e },
            Reply::InLine { ahead: c, rest: d, turn: f },
        ) => {
            // When to ask changes at half a claim lease, which is a number of half seconds here.
            let changes = (b + NEAR_US) % 500_000 < 2 * NEAR_US;
            a == c && *b <= *d + NEAR_US && (e == f || *a > 0 && changes)
        }
        _ => real == model,
    }
}

#[test]
fn a_copy_of_an_upgrade_changes_nothing_once_it_or_a_younger_one_was_withdrawn() {
    let redis = RedisServer::start();
    let mut server = Server { client: redis.client(), now: 0 };
    let upgradable = Place { claim: 1, mode: 'u', count: 1, limit: 0, ttl: 60_000_000, hold: None };
    let (last, reader) = (
        Place { claim: 4, mode: 'x', hold: Some(1), ..upgradable },
        Place { claim: 5, mode: 's', ..upgradable },
    );
    let patience = (server.tell() + 60_000_000).to_string();
    let words = |place: &Place| [place_text(place), patience.clone(), "join".to_owned()];
    let convert = |server: &mut Server, claim, mode| {
        let place = Place { claim, mode, hold: Some(1), ..upgradable };
        Server::reply(&server.call(CONVERT, &words(&place)))
    };
    assert!(matches!(
        Server::reply(&server.call(ACQUIRE, &words(&upgradable))),
        Reply::Granted { .. }
    ));
    for (claim, mode) in [(2, 'x'), (3, 'u'), (4, 'x')] {
        assert!(
            matches!(convert(&mut server, claim, mode), Reply::Granted { .. }),
            "conversion {claim}"
        );
    }
    assert_eq!(server.call(WITHDRAW, &[place_text(&last), "0".to_owned()])[0], "D");
    for (claim, mode) in [(2, 'x'), (3, 'u'), (4, 'x')] {
        assert_eq!(convert(&mut server, claim, mode), Reply::Late, "a copy of conversion {claim}");
    }
    let (holders, ..) = server.keys();
    assert_eq!((holders[0].0.mode, holders[0].0.conversion), ('u', Some(4)));
    assert!(
        matches!(Server::reply(&server.call(ACQUIRE, &words(&reader))), Reply::Granted { .. }),
        "readers come in"
    );
}

#[test]
fn the_model_of_the_scripts_answers_every_call_as_a_server_does() {
    let shim = ClockShim::new().expect("a C compiler");
    let environment: Vec<(&str, String)> =
        shim.environment().iter().map(|(k, v)| (*k, v.to_string_lossy().into_owned())).collect();
    let environment: Vec<(&str, &str)> =
        environment.iter().map(|(k, v)| (*k, v.as_str())).collect();
    let redis = RedisServer::start_in(&[], &environment);
    let mut server = Server { client: redis.client(), now: 0 };
    let mut met: BTreeMap<&'static str, u32> = BTreeMap::new();
    let mut passed_on = 0;
    let mut calls = 0;
    for seed in 0..150 {
        let permits = (60..75).contains(&seed);
        // Holds that are converted again and again.
        let turning = seed >= 75;
        let mut dice = Dice::new(seed);
        server.client.command(&["FLUSHALL"]);
        server.now = server.tell();
        // Nobody listens.
        let mut model = Lock::default();
        model.deaf.extend((1..=5).chain(100..5000));
        let mut trail = Vec::new();
        let places: Vec<Place> = (1..=5)
            .map(|claim| Place {
                claim,
                mode: if permits {
                    'p'
                } else {
                    [if turning { 'u' } else { 'x' }, 's', 'u'][dice.below(3) as usize]
                },
                count: if permits { 1 + dice.below(3) as u16 } else { 1 },
                // Some believe in another limit.
                limit: if permits { 3 + u64::from(dice.chance(100)) } else { 0 },
                ttl: (3 + 3 * dice.below(3)) * 1_000_000,
                hold: None,
            })
            .collect();
        for _ in 0..60 {
            if dice.chance(250) {
                shim.step(Clocks::Wall, Duration::from_millis(100 + dice.below(5000))).unwrap();
            }
            // Nothing is to end while a call is on its way.
            let now = server.tell();
            let ends = model
                .holders
                .iter()
                .map(|h| h.until)
                .chain(model.line.iter().map(|s| s.lives_until))
                .chain(model.words.values().copied());
            if ends.into_iter().any(|at| at.abs_diff(now) < 2 * NEAR_US) {
                shim.step(Clocks::Wall, Duration::from_micros(5 * NEAR_US)).unwrap();
            }
            let now = server.tell();
            let place = places[dice.below(5) as usize];
            let patience = if dice.chance(100) { now - 1_000_000 } else { now + 2_000_000 };
            let refuse = if dice.chance(300) { now + 1_500_000 } else { 0 };
            let how = *[How::Join, How::Join, How::Try]
                .get(dice.below(3) as usize)
                .expect("one of three");
            let how_word = match how {
                How::Join => "join",
                How::Try => "try",
            };
            let convert = {
                let hold = places[dice.below(5) as usize].claim;
                let hold = model.holders.first().filter(|_| turning).map_or(hold, |h| h.claim);
                // Nobody asks for what it has, nor goes from shared to upgradable.
                let modes = match model.holders.iter().find(|h| h.claim == hold).map(|h| h.mode) {
                    Some('x') => ['u', 's'],
                    Some('u') => ['x', 's'],
                    _ => ['x', 'x'],
                };
                let mode = modes[dice.below(2) as usize];
                // A hold is converted again and again, and sometimes an older request arrives late.
                let round = trail.len() / 15;
                let round =
                    if dice.chance(200) { round.saturating_sub(1) } else { round } as u16 * 1000;
                let first = round + if mode == 'x' { 100 } else { 200 };
                // A claim says the same words each time it is sent.
                Place {
                    claim: first + hold + 10 * u16::from(mode == 'u'),
                    mode,
                    ttl: places[usize::from(hold) - 1].ttl,
                    hold: Some(hold),
                    ..places[0]
                }
            };
            let (what, real, said) = match if turning && dice.chance(300) {
                6 + dice.below(3)
            } else {
                dice.below(10)
            } {
                kind if kind <= 3 || permits && (7..=8).contains(&kind) => {
                    let words = [place_text(&place), patience.to_string(), how_word.to_owned()];
                    // Half of them begin on the short way, whatever was before.
                    let short = dice.chance(500).then(|| {
                        let real = server.take(&place, patience);
                        (real, model.take(server.now, UNITS, None, place, patience))
                    });
                    if let Some((real, said)) = short.filter(|s| s.0.is_some() || s.1.is_some()) {
                        *met.entry("the short way").or_default() += 1;
                        // Something is in the way of one of them only.
                        let told = |reply: Option<Reply>| vec![reply.unwrap_or(Reply::Busy)];
                        (format!("take {place:?}"), told(real), told(said))
                    } else {
                        let real = Server::reply(&server.call(ACQUIRE, &words));
                        let (said, _) =
                            model.acquire(server.now, UNITS, None, place, how, patience);
                        (format!("acquire {place:?} {how:?}"), vec![real], vec![said])
                    }
                }
                4..=5 => {
                    // Often of who holds it.
                    let held = model.holders.first().filter(|_| dice.chance(500));
                    let held = held.and_then(|h| places.iter().find(|p| p.claim == h.claim));
                    let place = held.copied().unwrap_or(place);
                    let again = dice
                        .chance(400)
                        .then(|| (places[dice.below(5) as usize], patience))
                        .filter(|(p, _)| p.claim != place.claim);
                    let held = model.holders.iter().find(|h| h.claim == place.claim);
                    let short = held.filter(|_| refuse == 0);
                    let bare = short.map_or_else(String::new, |h| bare(&place, h.number));
                    let begins = format!("2 {} 0 ", word(place.claim));
                    let mut words = vec![begins, bare, refuse.to_string()];
                    if let Some((place, patience)) = &again {
                        words.extend([place_text(place), patience.to_string(), "join".to_owned()]);
                    }
                    let answer = server.call(RELEASE, &words);
                    let passed = answer.get(1).is_some_and(String::is_empty);
                    passed_on += u32::from(passed);
                    if answer.len() == 1 || passed {
                        *met.entry("the short way back").or_default() += 1;
                    }
                    let (found, more, _) =
                        model.release(server.now, UNITS, None, place.claim, refuse, again);
                    let done = |found| if found { Reply::Busy } else { Reply::Gone };
                    let mut real = vec![done(answer[0] == "D" || answer.len() == 1)];
                    real.extend(again.map(|(place, _)| match &answer[2..] {
                        [given] if passed => {
                            Reply::Granted { number: number(given), ttl: place.ttl }
                        }
                        reply => Server::reply(reply),
                    }));
                    let said = std::iter::once(done(found)).chain(more).collect();
                    (format!("release {} again {again:?} refuse {refuse}", place.claim), real, said)
                }
                6 => {
                    // What was upgraded is taken back now and then; copies of its conversions come
                    // later.
                    let upgraded = model.holders.iter().find_map(|h| {
                        let claim = h.conversion.filter(|_| h.mode == 'x')?;
                        Some(Place {
                            claim,
                            mode: 'x',
                            ttl: places[usize::from(h.claim) - 1].ttl,
                            hold: Some(h.claim),
                            ..places[0]
                        })
                    });
                    let place = match upgraded {
                        Some(upgraded) if dice.chance(if turning { 900 } else { 500 }) => upgraded,
                        _ if !permits && dice.chance(300) => convert,
                        _ => place,
                    };
                    let words = [place_text(&place), refuse.to_string()];
                    let answer = server.call(WITHDRAW, &words);
                    let (found, _) = model.withdraw(server.now, UNITS, None, place, refuse);
                    if found && Some(place) == upgraded {
                        *met.entry("an upgrade taken back").or_default() += 1;
                    }
                    let done = |found| if found { Reply::Busy } else { Reply::Gone };
                    (
                        format!("withdraw {place:?} refuse {refuse}"),
                        vec![done(answer[0] == "D")],
                        vec![done(found)],
                    )
                }
                7..=8 => {
                    let words = [place_text(&convert), patience.to_string(), how_word.to_owned()];
                    let real = Server::reply(&server.call(CONVERT, &words));
                    let (said, _) = model.convert(server.now, UNITS, None, convert, how, patience);
                    (format!("convert {convert:?} {how:?}"), vec![real], vec![said])
                }
                _ => {
                    let claim = word(place.claim);
                    let ttl = (place.ttl / 1000).to_string();
                    let answer = server
                        .client
                        .command(&["EVAL", RENEW, "2", "{a}", "{a}:last", &claim, &ttl]);
                    server.now = number(&answer[0]);
                    let done = |found| if found { Reply::Busy } else { Reply::Gone };
                    let said = model.renew(server.now, UNITS, place.claim, place.ttl);
                    (
                        format!("renew {}", place.claim),
                        vec![done(answer[1].starts_with('D'))],
                        vec![done(said)],
                    )
                }
            };
            calls += 1;
            trail.push(format!("at {}: {what} -> {real:?}", server.now));
            let told = || {
                format!(
                    "seed {seed}; the server says {real:?}, the model {said:?}; \
                     model {model:#?}\n{}",
                    trail.join("\n")
                )
            };
            assert!(
                real.len() == said.len() && real.iter().zip(&said).all(|(a, b)| alike(a, b)),
                "{}",
                told()
            );
            for reply in &real {
                *met.entry(kind_of(reply)).or_default() += 1;
            }
            if model.line.iter().any(|s| s.asked.is_some_and(|asked| asked > s.lives_until)) {
                *met.entry("a place owes a sign of life").or_default() += 1;
            }
            assert!(server.is_flagged(), "a line without its flag; {}", told());
            // What is left of a lease was read between these two.
            let before = server.tell();
            let (holders, line, words) = server.keys();
            let after = server.tell();
            let mut expected = model.holders.clone();
            expected.sort_by_key(|h| h.claim);
            let same = holders.len() == expected.len()
                && holders.iter().zip(&expected).all(|((real, left), model)| {
                    let at =
                        Holder { until: model.until, confirmed: model.confirmed, ..real.clone() };
                    let (least, most) =
                        (model.until.saturating_sub(after), model.until.saturating_sub(before));
                    at == *model && (least.saturating_sub(NEAR_US)..=most + NEAR_US).contains(left)
                });
            assert!(same, "the server holds {holders:?}; {}", told());
            let expected: Vec<u16> = model.line.iter().map(|s| s.place.claim).collect();
            assert_eq!(line, expected, "{}", told());
            // The last of them goes with its key, and reading takes time.
            let due = model
                .words
                .iter()
                .filter(|(_, until)| **until > after + NEAR_US)
                .map(|(claim, _)| claim);
            let same = words.iter().all(|word| model.words.contains_key(word))
                && due.into_iter().all(|claim| words.contains(claim));
            assert!(same, "the server has words of {words:?}; {}", told());
        }
    }
    println!(
        "scripts: {calls} calls, answered alike by redis-server and the model, keys alike after \
         each: {met:?}"
    );
    assert!(met.len() >= 8 && met.values().all(|n| *n > 20), "too weak: {met:?}");
    assert!(passed_on > 0, "nobody stood again on the short way");
}

fn kind_of(reply: &Reply) -> &'static str {
    match reply {
        Reply::Granted { .. } => "granted",
        Reply::InLine { .. } => "in line",
        Reply::Busy => "busy or done",
        Reply::Late => "late",
        Reply::Gone => "gone",
        Reply::NotUpgradable => "not upgradable",
        Reply::OtherLimit(_) => "another limit",
    }
}
