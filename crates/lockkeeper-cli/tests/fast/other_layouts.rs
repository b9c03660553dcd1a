//! Locks of other libraries under the same name that do not exclude ours: whoever takes the lock,
//! or looks at it, is told which layout does (C31).

use std::process::Stdio;

use lockkeeper_testkit::redis::server::RedisServer;
use lockkeeper_testkit::zookeeper::client::{Client, Kind};
use lockkeeper_testkit::zookeeper::server::{Server, Settings};

use crate::common::{Place, Ran, Reaped, json, run, until};

/// Nodes as kazoo and as Curator call them, up to the number.
const KAZOO: &str = "3f1c5a0e9b8d4f6aa1b2c3d4e5f60718__lock__";
const KAZOO_READER: &str = "3f1c5a0e9b8d4f6aa1b2c3d4e5f60718__rlock__";
const CURATOR: &str = "_c_7b2d0f4e-1111-4222-8333-444455556666-lock-";
const CURATOR_WRITER: &str = "_c_7b2d0f4e-1111-4222-8333-444455556666-__WRIT__";
const CURATOR_READER: &str = "_c_7b2d0f4e-1111-4222-8333-444455556666-__READ__";
const CURATOR_LATCH: &str = "_c_7b2d0f4e-1111-4222-8333-444455556666-latch-";
const GO: &str = "_c_7b2d0f4e111122223333444455556666-lock-";
const WRITE_LOCK: &str = "x-72057594037927936-";

/// The lines of stderr that warn.
fn warnings(ran: &Ran) -> Vec<&str> {
    ran.err.lines().filter(|line| line.contains("warning: ")).collect()
}

struct ZooKeeper {
    server: Server,
    client: Client,
    place: Place,
}

impl ZooKeeper {
    fn start() -> Self {
        let server = Server::start(Settings::default()).unwrap();
        let mut client = Client::connect(server.port()).unwrap();
        client.create("/a", b"", Kind::Persistent).unwrap();
        Self { server, client, place: Place::new() }
    }

    fn url(&self, layout: &str) -> String {
        format!("zk://127.0.0.1:{}?layout={layout}", self.server.port())
    }

    /// A contender as another library makes it.
    fn stands(&mut self, prefix: &str) -> String {
        self.client.create(&format!("/a/{prefix}"), b"10.1.2.3", Kind::EphemeralSequential).unwrap()
    }

    fn goes(&mut self, path: &str) {
        self.client.delete(path).unwrap();
    }

    /// What a try that finds the lock held by this contender warns of.
    fn try_beside(&mut self, layout: &str, prefix: &str, args: &[&str]) -> Vec<String> {
        let node = self.stands(prefix);
        let name = node.rsplit('/').next().unwrap();
        let ran = run(&self.place, &self.url(layout), args);
        self.goes(&node);
        assert!(ran.code == 75 || ran.code == 0, "{prefix}: {ran:?}");
        let told: Vec<_> = warnings(&ran).into_iter().map(str::to_owned).collect();
        assert!(told.iter().all(|line| line.contains(name)), "{name}: {told:?}");
        told
    }
}

#[test]
fn c31_whoever_takes_a_lock_beside_one_that_does_not_wait_for_it_is_told_the_layout() {
    let mut zookeeper = ZooKeeper::start();
    let exclusive = &["run", "-n", "a", "--", "true"];
    let shared = &["run", "-n", "-s", "a", "--", "true"];
    // What stands there, the layout of ours, and the word that the warning has to hold.
    for (theirs, layout, args, word) in [
        (KAZOO, "curator", &exclusive[..], "layout=kazoo"),
        (KAZOO, "curator", shared, "layout=kazoo"),
        (KAZOO_READER, "curator", exclusive, "layout=kazoo"),
        (KAZOO_READER, "curator", shared, "layout=kazoo"),
        (CURATOR, "kazoo", exclusive, "layout=curator"),
        (CURATOR_WRITER, "kazoo", shared, "layout=curator"),
        (WRITE_LOCK, "kazoo", exclusive, "layout=curator"),
        (CURATOR_WRITER, "curator", exclusive, "take an rwlock"),
        (CURATOR, "curator", shared, "take a mutex"),
        (WRITE_LOCK, "curator", shared, "take a mutex"),
        ("Lock", "curator", exclusive, "layout=plain&prefix=Lock"),
        ("", "kazoo", exclusive, "layout=plain&prefix="),
    ] {
        let told = zookeeper.try_beside(layout, theirs, args);
        assert_eq!(told.len(), 1, "{theirs} beside {layout} {args:?}: {told:?}");
        assert!(told[0].contains(word), "{theirs} beside {layout}: {told:?}");
    }
    // These wait for ours, as ours wait for them.
    for (theirs, layout, args) in [
        (CURATOR, "curator", &exclusive[..]),
        (GO, "curator", exclusive),
        (GO, "kazoo", exclusive),
        (WRITE_LOCK, "curator", exclusive),
        (CURATOR_READER, "curator", shared),
        (CURATOR_WRITER, "curator", shared),
        (CURATOR_LATCH, "curator", exclusive),
        (KAZOO, "kazoo", exclusive),
        (KAZOO_READER, "kazoo", shared),
    ] {
        let told = zookeeper.try_beside(layout, theirs, args);
        assert!(told.is_empty(), "{theirs} beside {layout} {args:?}: {told:?}");
    }
}

#[test]
fn c31_a_wait_and_a_hold_are_warned_once_and_json_has_an_event() {
    let mut zookeeper = ZooKeeper::start();
    let url = zookeeper.url("curator");
    let kazoo = zookeeper.stands(KAZOO);
    let waits = |says: &str, args: &[&str]| {
        let mut lk = zookeeper.place.lk(args);
        lk.env("LOCKKEEPER_URL", &url).stdin(Stdio::null()).stdout(Stdio::piped());
        let says = std::fs::File::create(zookeeper.place.path(says)).unwrap();
        Reaped::spawn(lk.stderr(says))
    };
    let place = zookeeper.place.path(".");
    let said = |says: &str| std::fs::read_to_string(place.join(says)).unwrap();
    let ended = |waited: Reaped, says: &str| {
        let ran = waited.output();
        Ran { err: said(says), ..ran }
    };
    let words = waits("words", &["acquire", "a", "--for", "0.1"]);
    let objects = waits("objects", &["run", "--json", "a", "--", "true"]);
    let quiet = waits("quiet", &["run", "-q", "a", "--", "true"]);
    until("all stand in line", || {
        let entry = run(&zookeeper.place, &url, &["status", "a", "--json"]).out;
        (json(&entry)["waiters"].as_array().unwrap().len() == 3).then_some(())
    });
    // They look around while they wait.
    until("they have warned", || {
        ["words", "objects"].iter().all(|says| said(says).contains("warning")).then_some(())
    });
    zookeeper.goes(&kazoo);
    let ran = ended(words, "words");
    assert_eq!((ran.code, warnings(&ran).len()), (0, 1), "{ran:?}");
    assert!(warnings(&ran)[0].starts_with("lockkeeper: a: warning: the node "), "{ran:?}");
    let ran = ended(objects, "objects");
    let told: Vec<_> =
        ran.err.lines().map(json).filter(|object| object["event"] == "warning").collect();
    assert_eq!((ran.code, told.len()), (0, 1), "{ran:?}");
    assert_eq!((&told[0]["name"], &told[0]["id"]), (&"a".into(), &"other-layout".into()));
    assert!(told[0]["text"].as_str().unwrap().contains("layout=kazoo"), "{told:?}");
    let ran = ended(quiet, "quiet");
    assert_eq!((ran.code, ran.err.as_str()), (0, ""), "{ran:?}");

    // A reader of kazoo's keeps no reader of ours out, and is told of while that one holds.
    zookeeper.stands(KAZOO_READER);
    let said = zookeeper.place.path("said");
    let script = "until grep -q warning said; do sleep 0.02; done";
    let mut lk = zookeeper.place.lk(["run", "-s", "a", "--", "sh", "-c", script]);
    lk.env("LOCKKEEPER_URL", &url).stderr(std::fs::File::create(&said).unwrap());
    assert_eq!(Reaped::spawn(&mut lk).wait(), 0);
    assert!(zookeeper.place.read("said").contains("layout=kazoo"));
}

#[test]
fn c31_an_election_beside_another_librarys_is_told_that_there_can_be_two_leaders() {
    let mut zookeeper = ZooKeeper::start();
    let script = "until grep -q warning said; do sleep 0.02; done";
    for (theirs, layout, word) in [
        (KAZOO, "curator", "layout=kazoo"),
        (CURATOR, "curator", "LeaderLatch"),
        (GO, "curator", "take a mutex"),
        (CURATOR_LATCH, "kazoo", "layout=curator"),
        (CURATOR, "kazoo", "take a mutex with layout=curator"),
    ] {
        let node = zookeeper.stands(theirs);
        let said = std::fs::File::create(zookeeper.place.path("said")).unwrap();
        let mut lk = zookeeper.place.lk(["elect", "a", "--", "sh", "-c", script]);
        lk.env("LOCKKEEPER_URL", zookeeper.url(layout)).stderr(said);
        let mut elect = Reaped::spawn(&mut lk);
        until("it is told", || zookeeper.place.read("said").contains("warning").then_some(()));
        // With layout=kazoo a candidate waits for locks, too.
        zookeeper.goes(&node);
        assert_eq!(elect.wait(), 0, "{theirs} beside {layout}");
        let said = zookeeper.place.read("said");
        assert!(said.contains("two leaders") && said.contains(word), "{said}");
    }
}

#[test]
fn c31_lockkeepers_own_locks_exclude_each_other_in_all_layouts_and_nobody_is_warned() {
    let mut zookeeper = ZooKeeper::start();
    for (theirs, ours) in [("kazoo", "curator"), ("curator", "kazoo")] {
        let url = zookeeper.url(theirs);
        let holder = zookeeper.place.hold_with("a", &["--url", &url, "-q"]);
        let url = zookeeper.url(ours);
        let ran = run(&zookeeper.place, &url, &["run", "-n", "a", "--", "true"]);
        assert_eq!((ran.code, warnings(&ran).len()), (75, 0), "{ran:?}");
        let status = run(&zookeeper.place, &url, &["status", "a"]);
        assert!(!status.out.contains("warning"), "{status:?}");
        holder.end();
    }
    // And a mutex beside a read-write lock.
    let url = zookeeper.url("curator");
    let holder = zookeeper.place.hold_with("a", &["--url", &url, "-q", "-s"]);
    let ran = run(&zookeeper.place, &url, &["run", "-n", "a", "--", "true"]);
    assert_eq!((ran.code, warnings(&ran).len()), (75, 0), "{ran:?}");
    holder.end();
    // Nor is a directory with a contender's name one.
    zookeeper.client.create("/a/x__lock__0000000077", b"", Kind::Persistent).unwrap();
    zookeeper.client.create("/a/x__lock__0000000077/b", b"", Kind::Persistent).unwrap();
    let ran = run(&zookeeper.place, &url, &["run", "-w", "120", "a", "--", "true"]);
    assert_eq!((ran.code, warnings(&ran).len()), (0, 0), "{ran:?}");
}

#[test]
fn c31_status_and_doctor_name_the_layout_of_a_zookeeper_lock_beside_ours() {
    let mut zookeeper = ZooKeeper::start();
    for (theirs, layout, word) in
        [(KAZOO, "curator", "layout=kazoo"), (CURATOR, "kazoo", "layout=curator")]
    {
        let (node, url) = (zookeeper.stands(theirs), zookeeper.url(layout));
        let status = run(&zookeeper.place, &url, &["status", "a"]);
        assert!(status.code == 0 && status.out.contains("  warning: the node "), "{status:?}");
        assert!(status.out.contains(word), "{status:?}");
        let doctor = run(&zookeeper.place, &url, &["doctor"]);
        assert!(doctor.code == 0 && doctor.out.contains("warning   other-layout: "), "{doctor:?}");
        zookeeper.goes(&node);
        let status = run(&zookeeper.place, &url, &["status", "a"]);
        assert!(!status.out.contains("warning"), "{status:?}");
    }
    // Whoever takes read-write locks stands in line with Curator's.
    zookeeper.stands(CURATOR_WRITER);
    let status = run(&zookeeper.place, &zookeeper.url("curator"), &["status", "a"]);
    assert!(!status.out.contains("warning"), "{status:?}");
}

/// What redis-py writes: a `uuid1().hex`, with a time to live.
const TOKEN: &str = "8f14e45fceea167a5a36dedd4bea2543";
/// What Redisson writes: a client's id and a thread's.
const FIELD: &str = "285475da-9152-4c83-822a-67ee2f116a79:52";

#[test]
fn c31_status_and_doctor_name_the_layout_of_a_redis_lock_under_the_same_name() {
    let (server, place) = (RedisServer::start(), Place::new());
    let url = server.url();
    let status = |url: &str| run(&place, url, &["status", "a"]);
    let is_told = |url: &str, key: &str, word: &str| {
        let status = status(url);
        let told = status.out.lines().find(|line| line.starts_with("  warning: "));
        let told = told.unwrap_or_else(|| panic!("{url}: {status:?}"));
        assert!(status.code == 0 && told.contains(key) && told.contains(word), "{told}");
    };
    assert!(!status(&url).out.contains("warning"), "nobody has it");
    let holder = place.hold_with("a", &["--url", &url, "-q"]);
    assert!(!status(&url).out.contains("warning"), "ours is no other");

    server.command(&["SET", "a", TOKEN, "NX", "PX", "60000"]);
    is_told(&url, "the key a looks like a lock of redis-py", "layout=plain");
    let doctor = run(&place, &url, &["doctor", "--json"]);
    let about = json(doctor.out.trim());
    let told = about["warnings"].as_array().unwrap();
    let told: Vec<_> = told.iter().filter(|warning| warning["id"] == "other-layout").collect();
    assert_eq!((doctor.code, told.len()), (0, 1), "{about}");
    assert!(told[0]["text"].as_str().unwrap().contains("layout=plain"), "{about}");
    assert_eq!(
        told[0]["text"],
        "the key a looks like a lock of redis-py, or of another program that writes layout=plain: \
         layout=native does not exclude layout=plain, so there can be two holders; give every URL \
         of this name layout=plain"
    );
    // One warning for each layout, however many names.
    let second = place.hold_with("b", &["--url", &url, "-q"]);
    server.command(&["SET", "b", TOKEN, "NX", "PX", "60000"]);
    let doctor = run(&place, &url, &["doctor"]);
    assert_eq!(doctor.out.matches("other-layout").count(), 1, "{doctor:?}");
    assert!(doctor.out.contains("layout=plain; 2 names in use have such a lock"), "{doctor:?}");
    second.end();
    // Programs read it as the event that `run` has; stdout is what it was.
    let objects = run(&place, &url, &["status", "a", "--json"]);
    let event = json(objects.err.trim());
    assert_eq!(
        (event["event"].as_str(), event["id"].as_str()),
        (Some("warning"), Some("other-layout"))
    );
    assert_eq!((objects.code, objects.out.lines().count()), (0, 1), "{objects:?}");
    // The other way round: who uses the other layout learns of ours.
    let plain = format!("{url}?layout=plain");
    is_told(&plain, "the key lockkeeper:{lock:a} looks like a lock of lockkeeper", "layout=native");
    server.command(&["DEL", "a"]);

    server.command(&["HSET", "a", FIELD, "1"]);
    server.command(&["PEXPIRE", "a", "60000"]);
    is_told(&url, "the key a looks like a lock of Redisson", "layout=redisson");
    server.command(&["DEL", "a"]);
    let redisson = format!("{url}?layout=redisson");
    is_told(
        &redisson,
        "the key lockkeeper:{lock:a} looks like a lock of lockkeeper",
        "layout=native",
    );

    // What has nothing to do with locks: a counter, a cached text, a hash of data, anything that
    // does not end by itself.
    for words in [
        &["SET", "a", "41"][..],
        &["SET", "a", "41", "PX", "60000"],
        &["SET", "a", "a text with words in it", "PX", "60000"],
        &["SET", "a", TOKEN],
        &["HSET", "a", "colour", "red"],
        &["RPUSH", "a", TOKEN],
    ] {
        server.command(words);
        let status = status(&url);
        assert!(status.code == 0 && !status.out.contains("warning"), "{words:?}: {status:?}");
        server.command(&["DEL", "a"]);
    }
    holder.end();
}

#[test]
fn c31_a_redis_lock_of_the_other_shared_layout_is_refused_with_its_layout() {
    let (server, place) = (RedisServer::start(), Place::new());
    let url = |layout: &str| format!("{}?layout={layout}", server.url());
    server.command(&["HSET", "a", FIELD, "1"]);
    server.command(&["SET", "b", TOKEN, "NX", "PX", "60000"]);
    for (layout, name, other) in [("plain", "a", "redisson"), ("redisson", "b", "plain")] {
        let ran = run(&place, &url(layout), &["run", "-n", name, "--", "true"]);
        assert_eq!(ran.code, 69, "{ran:?}");
        assert!(ran.err.contains(&format!("give the URL layout={other}")), "{ran:?}");
    }
    let status = run(&place, &url("redisson"), &["status", "b"]);
    let told = "  warning: the key b looks like a lock of redis-py, or of another program that \
                writes layout=plain: no lock of layout=redisson can be had while it is there; \
                give every URL of this name layout=plain\n";
    assert!(status.out.contains(told), "{status:?}");
}

#[test]
fn c31_a_user_who_may_not_look_at_other_keys_is_told_nothing_and_locks() {
    let (server, place) = (RedisServer::start(), Place::new());
    server.command(&["SET", "a", TOKEN, "NX", "PX", "60000"]);
    let rules =
        ["ACL", "SETUSER", "app", "on", ">secret", "~lockkeeper:*", "&lockkeeper:*", "+@all"];
    server.command(&rules);
    let url = format!("redis://app:secret@127.0.0.1:{}", server.port());
    let status = run(&place, &url, &["status", "a"]);
    assert!(status.code == 0 && status.out.starts_with("a (lock, redis): free"), "{status:?}");
    assert!(!status.out.contains("warning"), "{status:?}");
    assert_eq!(run(&place, &url, &["run", "a", "--", "true"]).code, 0);
}

#[test]
fn w8_a_hold_stands_once_in_status_where_locks_and_elections_are_one_line() {
    let mut zookeeper = ZooKeeper::start();
    for (layout, theirs) in [("kazoo", KAZOO), ("plain", "")] {
        let url = zookeeper.url(layout);
        let status = || run(&zookeeper.place, &url, &["status", "a"]);
        let holder = zookeeper.place.hold_with("a", &["--url", &url, "-q"]);
        let held = status();
        assert_eq!((held.code, held.out.matches("held by").count()), (0, 1), "{held:?}");
        assert!(!held.out.contains("claim="), "what is told is the record's meaning: {held:?}");
        let elected = run(&zookeeper.place, &url, &["status", "a", "--json"]);
        assert_eq!(elected.out.lines().count(), 1, "{elected:?}");
        holder.end();
        let node = zookeeper.stands(theirs);
        let foreign = run(&zookeeper.place, &url, &["status", "a"]);
        assert_eq!(foreign.out.matches("held by").count(), 1, "{layout}: {foreign:?}");
        let taken = run(&zookeeper.place, &url, &["release", "--force", "a", "--json"]);
        assert_eq!((taken.code, taken.out.lines().count()), (0, 1), "{layout}: {taken:?} {node}");
    }
}

#[test]
fn c31_asking_for_a_redis_lock_stays_one_message() {
    let (server, place) = (RedisServer::start(), Place::new());
    server.command(&["SET", "a", TOKEN, "NX", "PX", "60000"]);
    let ran = run(&place, &server.url(), &["run", "a", "--", "true"]);
    assert_eq!((ran.code, warnings(&ran).len()), (0, 0), "{ran:?}");
    let counts = server.command_counts();
    assert!(!counts.contains_key("type") && !counts.contains_key("pttl"), "{counts:?}");
}
