//! Every script of every layout on a node of a cluster: its keys are declared, and in one slot.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;

use lockkeeper_testkit::redis::server::RedisClient;
use lockkeeper_testkit::servers::free_port;

use super::super::options::{Layout, RedisOptions, RedissonLock, RedissonSemaphore};
use super::super::script::Which;
use super::server::RedisServer;
use super::support::{Process, granted, options, patient, until};
use crate::engine::{Attempt, Change, End, Query, Renewal, WatchId};
use crate::words::claim::Mode;
use crate::words::error::ErrorKind;
use crate::words::id::ClaimId;
use crate::words::name::{Kind, Name};

/// A node that has all slots, what is heard of its commands, and which operation sent which script.
struct Node {
    server: RedisServer,
    monitor: RedisClient,
    sent_by: BTreeMap<Which, String>,
}

impl Node {
    fn start() -> Self {
        let bus = free_port().to_string();
        let server = RedisServer::start_with(&["--cluster-enabled", "yes", "--cluster-port", &bus]);
        assert_eq!(server.command(&["CLUSTER", "ADDSLOTSRANGE", "0", "16383"]), ["OK"]);
        let info = || server.command(&["CLUSTER", "INFO"]).join("\n");
        until("it has all slots", || info().contains("cluster_state:ok"));
        let mut monitor = server.client();
        assert_eq!(monitor.command(&["MONITOR"]), ["OK"]);
        Self { server, monitor, sent_by: BTreeMap::new() }
    }

    fn options(&self) -> RedisOptions {
        let mut options = patient(options(self.server.port()));
        options.in_cluster = true;
        options
    }

    fn process(&self, layout: &str) -> Process {
        let mut options = self.options();
        match layout {
            "native" => {}
            "plain" => options.layout = Layout::Plain,
            _ => {
                options.layout = Layout::Redisson;
                options.redisson = match layout {
                    "fenced" => RedissonLock::Fenced,
                    "fair" => RedissonLock::Fair,
                    "rw" => RedissonLock::ReadWrite,
                    _ => RedissonLock::Plain,
                };
                if layout == "simple" {
                    options.semaphore = RedissonSemaphore::Simple;
                }
            }
        }
        Process::with(options)
    }

    /// Notes the scripts that the server knows since this operation.
    fn after(&mut self, layout: &str, operation: &str) {
        let mut client = self.server.client();
        for (which, _) in Which::ALL {
            let known = client.command(&["SCRIPT", "EXISTS", which.get().sha()]) == ["1"];
            if known && !self.sent_by.contains_key(which) {
                self.sent_by.insert(*which, format!("{operation} ({layout})"));
            }
        }
    }

    /// Fails if a script touched a key that its caller did not declare.
    fn check_keys(&mut self) {
        self.server.command(&["ECHO", "the walk is over"]);
        let (mut declared, mut checked) = (Vec::new(), 0);
        let mut client = self.server.client();
        loop {
            let line = self.monitor.read().remove(0);
            let (whence, words) = line.split_once("] ").expect("whence, then the words");
            let words = words_of(words);
            match words[0].to_ascii_uppercase().as_str() {
                "ECHO" => break,
                "EVAL" | "EVALSHA" => {
                    let keys: usize = words[2].parse().unwrap();
                    declared = words[3..3 + keys].to_vec();
                }
                _ if whence.ends_with(" lua") => {
                    let mut ask = vec!["COMMAND", "GETKEYS"];
                    ask.extend(words.iter().map(String::as_str));
                    let keys = client.command(&ask);
                    for key in keys.iter().filter(|key| !key.starts_with('-')) {
                        // Redisson's own: a reader that leaves looks how long the others stay,
                        // whose keys begin with the declared name in its slot.
                        let of_a_reader = key.contains(":rwlock_timeout:")
                            && key.starts_with(&format!("{{{}}}:", declared[0]));
                        assert!(
                            declared.contains(key) || of_a_reader,
                            "{words:?} touches {key}, and declared is {declared:?}"
                        );
                        checked += 1;
                    }
                }
                _ => {}
            }
        }
        assert!(checked > 500, "{checked}");
    }

    /// How often a script was refused because its keys are in several slots.
    fn crossings(&self) -> u64 {
        let info = self.server.command(&["INFO", "errorstats"]).join("\n");
        let of = |line: &str| line.strip_prefix("errorstat_CROSSSLOT:count=")?.parse().ok();
        info.lines().find_map(of).unwrap_or(0)
    }
}

/// The words of a line of MONITOR.
fn words_of(line: &str) -> Vec<String> {
    let (mut words, mut rest) = (Vec::new(), line.chars());
    while rest.by_ref().any(|c| c == '"') {
        let mut word = String::new();
        while let Some(c) = rest.next().filter(|c| *c != '"') {
            // Which character it is does not matter, nor is there one in any key.
            word.push(if c == '\\' { rest.next().expect("an escaped one") } else { c });
        }
        words.push(word);
    }
    words
}

fn name(text: &str) -> Name {
    Name::new(text).unwrap()
}

fn freed(end: &End) {
    assert!(matches!(end, End::Freed), "{end:?}");
}

/// Takes, keeps, waits for and gives back in one mode, by two processes.
fn use_up(node: &mut Node, layout: &str, modes: &[(&str, Mode)]) {
    for (word, mode) in modes {
        let (one, two) = (node.process(layout), node.process(layout));
        let n = format!("{layout}-{}", word.replace(' ', "-"));
        let (held, _) = one.take(&n, *mode);
        node.after(layout, &format!("{word}: lock"));
        let (other, _) = one.take(&format!("{n}-2"), *mode);
        let renewals = one.wait(one.engine.renew(&[held.id.into(), other.id.into()]));
        assert!(renewals.iter().all(|r| matches!(r, Renewal::Extended { .. })), "{renewals:?}");
        node.after(layout, &format!("{word}: renew"));
        let kind = held.kind;
        assert!(!one.look(kind, &n).holders.is_empty(), "{n}");
        node.after(layout, &format!("{word}: look"));
        one.wait(one.engine.watch(WatchId(1), &Query::One(kind, name(&n)))).unwrap();
        let exclusive = !matches!(mode, Mode::Shared);
        if exclusive {
            assert!(matches!(two.attempt_try(&two.claim(&n, *mode)), Attempt::Busy(_)));
            let waiting = two.queue(&n, *mode);
            let answers = two.wait(two.engine.recheck(&[waiting.id]));
            assert_eq!(answers.len(), 1);
            node.after(layout, &format!("{word}: wait"));
            let leaves = two.queue(&n, *mode);
            two.withdraw(leaves.id);
            node.after(layout, &format!("{word}: leave the line"));
            freed(&one.release(held.id));
            granted_at_last(&two, &waiting);
            freed(&two.release(waiting.id));
        } else {
            freed(&one.release(held.id));
        }
        node.after(layout, &format!("{word}: release"));
        if kind == Kind::Lock && mode == &Mode::Exclusive {
            assert!(one.change(&Change::Force(kind, name(&format!("{n}-2")), Vec::new())));
            node.after(layout, "force");
        }
        one.engine.unwatch(WatchId(1));
    }
}

fn granted_at_last(process: &Process, claim: &crate::words::claim::Claim) {
    until("it is granted", || matches!(process.attempt(claim), Attempt::Granted(_)));
}

/// What only the native layout has.
fn use_native(node: &mut Node) {
    let one = node.process("native");
    let (hold, _) = one.take("up", Mode::Upgradable);
    let to = one.exclusive("up");
    granted(one.wait(one.engine.convert(hold.id, &to)));
    node.after("native", "upgrade");
    let (mut held, next) = (one.exclusive("again"), one.exclusive("again"));
    held.lock_delay = Duration::from_secs(1);
    granted(one.attempt(&held));
    freed(&one.release_again(held.id, &next).ends.remove(0));
    let mut leads = one.exclusive("leader");
    leads.kind = Kind::Election;
    granted(one.attempt(&leads));
    // One name: several are the exception.
    let claims = [one.exclusive("all-1"), one.exclusive("all-2")];
    let all = |n| one.wait(one.engine.attempt_all(&claims[..n]));
    assert!(matches!(all(1)[..], [Attempt::Granted(_)]));
    node.after("native", "all");
    assert_eq!(node.crossings(), 0, "before several names were asked for");
    let refused = all(2);
    let says = |a: &Attempt| {
        matches!(a, Attempt::Failed(e) if e.kind() == ErrorKind::Unsupported
        && e.message().contains("one after the other"))
    };
    assert!(refused.iter().all(says), "{refused:?}");
    assert_eq!(node.crossings(), 1, "a crossing is counted");
    node.server.command(&["CONFIG", "RESETSTAT"]);
    one.wait(one.engine.watch(WatchId(2), &Query::Prefix("native".into()))).unwrap();
    assert!(one.list("").len() > 3);
}

fn use_latches_and_limits(node: &mut Node, layout: &str) {
    let one = node.process(layout);
    let latch = name(&format!("latch-{layout}"));
    one.wait(one.engine.watch(WatchId(1), &Query::One(Kind::Latch, latch.clone()))).unwrap();
    assert!(one.change(&Change::LatchSet(latch.clone(), 2)));
    one.change(&Change::LatchCountDown(latch.clone(), ClaimId::fresh()));
    one.change(&Change::LatchCountDown(latch, ClaimId::fresh()));
    node.after(layout, "latch");
    let (held, _) = one.take(&format!("permits-{layout}"), Mode::Permits { count: 2, limit: 3 });
    one.change(&Change::Resize(held.name.clone(), 5));
    node.after(layout, "resize");
}

#[test]
fn every_script_keeps_to_the_keys_that_it_declares_and_to_one_slot() {
    let mut node = Node::start();
    let exclusive = ("exclusive", Mode::Exclusive);
    let permits = ("permits", Mode::Permits { count: 2, limit: 3 });
    let shared = ("shared", Mode::Shared);
    use_up(&mut node, "native", &[exclusive, shared, ("upgradable", Mode::Upgradable), permits]);
    use_latches_and_limits(&mut node, "native");
    use_native(&mut node);
    use_up(&mut node, "plain", &[exclusive]);
    for layout in ["redisson", "fenced", "fair"] {
        use_up(&mut node, layout, &[exclusive]);
    }
    use_up(&mut node, "redisson", &[permits]);
    use_up(&mut node, "simple", &[permits]);
    use_latches_and_limits(&mut node, "redisson");
    use_up(&mut node, "rw", &[shared, exclusive]);
    // The last of two readers to come sees the first one leave.
    let one = node.process("rw");
    let (first, _) = one.take("readers", Mode::Shared);
    one.take("readers", Mode::Shared);
    freed(&one.release(first.id));
    drop(one);
    for layout in ["native", "plain", "fenced"] {
        let process = node.process(layout);
        let probe = name(&format!("probe-{layout}"));
        process.wait(process.engine.clear_probe(&probe)).unwrap();
        node.after(layout, "probe");
        let others = process.wait(process.engine.other_layouts(&name("native-exclusive")));
        assert!(others.unwrap().is_empty());
        node.after(layout, "other layouts");
        process.take(&format!("bench0123456789/{layout}"), Mode::Exclusive);
        process.take(&format!("bench0123456789/{layout}/2"), Mode::Exclusive);
        assert!(process.wait(process.engine.sweep("bench0123456789")).unwrap());
    }
    assert_eq!(node.crossings(), 0);
    node.check_keys();
    for (which, files) in Which::ALL {
        let sent = node.sent_by.get(which);
        println!("{:<40} {}", files.join(" "), sent.map_or("-", String::as_str));
    }
    // Those of several names, which are in different slots, travel each by itself.
    let all = Which::ALL
        .iter()
        .map(|(which, _)| which)
        .filter(|which| !matches!(which, Which::Many | Which::Gives));
    assert!(!node.sent_by.contains_key(&Which::Many));
    let forgotten: Vec<_> = all.filter(|which| !node.sent_by.contains_key(which)).collect();
    assert!(forgotten.is_empty(), "nothing sent these, so nothing is known of them: {forgotten:?}");
}

#[test]
fn every_file_of_a_script_is_part_of_one_that_is_sent() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/engine/redis");
    let used: BTreeSet<String> =
        Which::ALL.iter().flat_map(|(_, files)| files.iter().map(|f| format!("{f}.lua"))).collect();
    let mut found = BTreeSet::new();
    for layout in ["native", "plain", "redisson", "foreign"] {
        for file in std::fs::read_dir(dir.join(layout)).unwrap() {
            let file = file.unwrap().file_name().into_string().unwrap();
            if file.ends_with(".lua") {
                found.insert(format!("{layout}/{file}"));
            }
        }
    }
    assert_eq!(found, used);
}

#[test]
fn fenced_data_and_its_tokens_are_in_one_slot() {
    let node = Node::start();
    let mut client = node.server.client();
    for key in ["stock", "{shop}:stock", "a b"] {
        let token = crate::Token::raw(640).unwrap();
        let fence = crate::primitives::fence::RedisFence::of(key);
        for script in [fence.write(token, "1"), fence.read(token), fence.read_shared(token)] {
            let words: Vec<String> =
                script.words().map(|w| String::from_utf8(w.to_vec()).unwrap()).collect();
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            assert_eq!(client.command(&words)[0], "1");
        }
    }
}
