//! What a pair costs the server's processor, beside the leanest one that anybody sends.

use std::time::Duration;

use super::super::client::node::Node;
use super::super::client::texts::Texts;
use super::super::name::Keys;
use super::super::recipe::{Read, Recipe, Rules, Verdict};
use super::super::reply::Reply;
use super::super::resp::{Command, Value};
use super::super::script::{Call, Which};
use super::lean::Pipe;
use super::server::RedisServer;
use super::support::Process;
use crate::engine::{Attempt, Line};
use crate::words::claim::Claim;
use crate::words::clock::Ticks;

/// The processor time that a server has used, in microseconds.
fn processor_us(server: &RedisServer) -> f64 {
    let info = server.command(&["INFO", "cpu"]).join("\n");
    let seconds = |name: &str| {
        info.lines().find_map(|line| line.strip_prefix(name)?.trim().parse::<f64>().ok()).unwrap()
    };
    (seconds("used_cpu_user:") + seconds("used_cpu_sys:")) * 1e6
}

#[test]
fn timed_a_pair_costs_the_server_four_and_a_half_times_a_bare_one_and_in_company_a_quarter_less() {
    const AT_ONCE: usize = 64;
    const ROUNDS: usize = 40;
    let server = RedisServer::start();
    let (process, mut pipe) = (Process::of(&server), Pipe::to(&server));
    let mut recipe = Recipe::new(Rules {
        keys: Keys::new("lockkeeper", 0),
        channel: format!("lockkeeper:process:{:032x}", 1),
        drift_permille: 100,
        request_timeout: Duration::from_secs(2),
        acknowledged: false,
        moves: false,
        scattered: false,
    });
    let (node, now) = (Node::default(), Ticks(0));
    let names: Vec<String> = (0..AT_ONCE).map(|n| format!("stock/sku-{n}")).collect();
    // As the leanest client has it: a key of that name, and a release that compares.
    let lean = "if redis.call('get',KEYS[1]) == ARGV[1] then return redis.call('del',KEYS[1]) else \
                return 0 end";
    let sha = server.command(&["SCRIPT", "LOAD", lean]).remove(0);
    let bare = |pipe: &mut Pipe| {
        let tokens: Vec<String> =
            names.iter().map(|_| crate::words::id::ClaimId::fresh().to_string()).collect();
        let set = |(name, token): (&String, &String)| {
            Command::new(["SET", name, token, "NX", "PX", "30000"])
        };
        let del =
            |(name, token): (&String, &String)| Command::new(["EVALSHA", &sha, "1", name, token]);
        let given = pipe.send(&names.iter().zip(&tokens).map(set).collect::<Vec<_>>());
        assert!(given.iter().all(|value| value.text() == Some("OK")));
        let freed = pipe.send(&names.iter().zip(&tokens).map(del).collect::<Vec<_>>());
        assert!(freed.iter().all(|value| value.integer() == Some(1)));
    };
    let mut ours = |pipe: &mut Pipe, in_full: bool, at_once: usize| {
        let mut send = |calls: &[Call], at_once: usize| -> Vec<Value> {
            let messages: Vec<Call> = calls.chunks(at_once).map(together).collect();
            let as_sent = |call: &Call| if in_full { call.in_full() } else { call.by_name() };
            let answers = pipe.send(&messages.iter().map(as_sent).collect::<Vec<_>>());
            answers.iter().flat_map(each).collect()
        };
        let claims: Vec<_> = names.iter().map(|name| process.exclusive(name)).collect();
        let ask = |claim: &Claim| recipe.ask(now, node, claim, Line::Join, None);
        let answers = send(&claims.iter().map(ask).collect::<Vec<_>>(), at_once);
        let mut releases = Vec::new();
        for (claim, answer) in claims.iter().zip(&answers) {
            let reply = Reply::parse(answer).expect("an answer");
            let read = Read { before: now, node, order: 1 };
            let verdict = recipe.answered(now, read, claim.id, reply);
            assert!(matches!(verdict, Verdict::Tell(Attempt::Granted(_))), "{verdict:?}");
            releases.push(recipe.release(now, node, claim.id, None).expect("a hold"));
            recipe.forget(claim.id);
        }
        let freed = send(&releases, at_once);
        assert!(freed.iter().all(|value| value.integer() == Some(1)), "{freed:?}");
    };
    ours(&mut pipe, true, 1);
    ours(&mut pipe, true, 32);
    bare(&mut pipe);
    let (mut used, mut company, mut floor) = (0.0, 0.0, 0.0);
    for _ in 0..5 {
        let mut at = processor_us(&server);
        let mut since = || {
            let before = std::mem::replace(&mut at, processor_us(&server));
            at - before
        };
        (0..ROUNDS).for_each(|_| bare(&mut pipe));
        floor += since();
        (0..ROUNDS).for_each(|_| ours(&mut pipe, false, 1));
        used += since();
        (0..ROUNDS).for_each(|_| ours(&mut pipe, false, 32));
        company += since();
    }
    let pairs = (5 * ROUNDS * AT_ONCE) as f64;
    let [floor, used, company] = [floor, used, company].map(|us| us / pairs);
    let (alone, together) = (used / floor, company / floor);
    println!(
        "server, us a pair: bare {floor:.1}, one name a call {used:.1}, ratio {alone:.2}, 32 names \
         {company:.1}, ratio {together:.2}"
    );
    assert!(used < 4.5 * floor, "{used:.1} us of the server a pair, and a bare one {floor:.1}");
    assert!(company < 0.75 * used, "{company:.1} us with 32 in a call, and {used:.1} with one");
}

/// What many requests are in one call; one alone stays what it is.
fn together(calls: &[Call]) -> Call {
    let [first, _, ..] = calls else { return calls[0].clone() };
    let key = |at: usize| calls.iter().map(move |call| call.keys.get(at).unwrap());
    if first.script == Which::Release {
        return Call {
            script: Which::Gives,
            keys: [2, 0].into_iter().flat_map(key).collect(),
            arguments: calls.iter().flat_map(|call| call.arguments.iter()).collect(),
        };
    }
    let place = |call: &Call| call.arguments.first().unwrap().to_owned();
    let mut arguments: Texts = first.arguments.iter().skip(1).collect();
    arguments.extend(calls.iter().map(place));
    Call { script: Which::Many, keys: [1, 0, 2].into_iter().flat_map(key).collect(), arguments }
}

/// The answers in one.
fn each(answer: &Value) -> Vec<Value> {
    match answer.items() {
        [number, letters, _] => letters.text().unwrap().chars().map(|_| number.clone()).collect(),
        _ => match answer.text() {
            Some(given) if given.starts_with('D') => {
                given.chars().map(|letter| Value::Integer(i64::from(letter == 'D'))).collect()
            }
            _ => vec![answer.clone()],
        },
    }
}
