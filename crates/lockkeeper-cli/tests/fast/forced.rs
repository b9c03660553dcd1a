//! A forced release takes a lock from those who were shown, and from nobody who came since.

use lockkeeper::Kind;
use lockkeeper::blocking::Locks;

use crate::common::lease::Engine;

fn urls(redis: &Engine, zookeeper: &Engine) -> Vec<String> {
    let (redis, zookeeper) = (redis.patient(), zookeeper.patient());
    vec![
        "memory:".to_owned(),
        redis.clone(),
        format!("{redis}&layout=plain"),
        format!("{redis}&layout=redisson"),
        format!("{redis}&layout=redisson&lock=fair"),
        zookeeper.clone(),
        format!("{zookeeper}&layout=kazoo"),
        format!("{zookeeper}&layout=plain"),
    ]
}

#[test]
fn a_forced_release_that_names_a_former_holder_leaves_the_next_one_alone() {
    let (redis, zookeeper) = (Engine::redis(), Engine::zookeeper());
    for (at, url) in urls(&redis, &zookeeper).into_iter().enumerate() {
        // A name of its own for each: the layouts share the server.
        let (locks, name) = (Locks::open(&url).unwrap(), format!("a{at}"));
        let first = locks.mutex(&name).lock().run().unwrap();
        let shown = locks.status(Kind::Lock, &name).unwrap().holders;
        assert_eq!(shown.len(), 1, "{url}: {shown:?}");
        assert!(first.release().is_clean(), "{url}");
        let next = locks.mutex(&name).lock().run().unwrap();
        assert!(!locks.force_release_from(Kind::Lock, &name, &shown).unwrap(), "{url}");
        next.held().verify_blocking().unwrap_or_else(|error| panic!("{url}: {error}"));
        let shown = locks.status(Kind::Lock, &name).unwrap().holders;
        assert!(locks.force_release_from(Kind::Lock, &name, &shown).unwrap(), "{url}");
        next.held().verify_blocking().unwrap_err();
        assert!(locks.status(Kind::Lock, &name).unwrap().holders.is_empty(), "{url}");
        let last = locks.mutex(&name).lock().run().unwrap();
        assert!(locks.force_release(Kind::Lock, &name).unwrap(), "{url}: from whoever holds it");
        drop(last);
    }
}

#[test]
fn of_several_holders_those_are_taken_away_that_were_named() {
    let (redis, zookeeper) = (Engine::redis(), Engine::zookeeper());
    for url in ["memory:".to_owned(), redis.patient(), zookeeper.patient()] {
        // In memory a store is one `Locks`: its holds are told apart by their claims.
        let opened = Locks::open(&url).unwrap();
        let other = if url == "memory:" { opened.clone() } else { Locks::open(&url).unwrap() };
        let semaphore = |locks: &Locks| locks.semaphore("gpu", 3).acquire(1).run().unwrap();
        let (first, second) = (semaphore(&opened), semaphore(&other));
        let shown = opened.status(Kind::Semaphore, "gpu").unwrap().holders;
        assert_eq!(shown.len(), 2, "{url}: {shown:?}");
        assert!(opened.force_release_from(Kind::Semaphore, "gpu", &shown[..1]).unwrap(), "{url}");
        let left = opened.status(Kind::Semaphore, "gpu").unwrap().holders;
        assert!(left.len() == 1 && left[0].is_same_hold(&shown[1]), "{url}: {left:?}");
        let verified = [&first, &second].map(|guard| guard.held().verify_blocking().is_ok());
        assert_eq!(verified.iter().filter(|held| **held).count(), 1, "{url}: {verified:?}");
        // What was taken is free again.
        let _again = semaphore(&opened);
        let shown = opened.status(Kind::Semaphore, "gpu").unwrap().holders;
        assert_eq!(shown.len(), 2, "{url}");
    }
}

#[test]
fn a_forced_release_spares_another_programs_lock_that_came_since() {
    let engine = Engine::redis();
    let Engine::Redis(server) = &engine else { return };
    for (layout, old, new) in [
        ("plain", &["SET", "a", "8f14e45fceea167a5a36dedd4bea2543"][..], "SET"),
        ("redisson", &["HSET", "a", "285475da-9152-4c83-822a-67ee2f116a79:52", "1"], "HSET"),
    ] {
        let locks = Locks::open(&format!("{}&layout={layout}", engine.patient())).unwrap();
        server.command(old);
        let shown = locks.status(Kind::Lock, "a").unwrap().holders;
        server.command(&["DEL", "a"]);
        let mut theirs = vec![new, "a", "0cc175b9-c0f1-46b6-a31c-399e26977266:7"];
        theirs.extend((new == "HSET").then_some("1"));
        server.command(&theirs);
        assert!(!locks.force_release_from(Kind::Lock, "a", &shown).unwrap(), "{layout}");
        assert_eq!(locks.status(Kind::Lock, "a").unwrap().holders.len(), 1, "{layout}");
        assert!(locks.force_release(Kind::Lock, "a").unwrap(), "{layout}");
    }
}
