//! The floors on ZooKeeper: the same requests by a plain client, on sockets of its own.

use std::time::Instant;

use lockkeeper::url::EngineUrl;
use lockkeeper_testkit::zookeeper::client::{Client, Kind};

use crate::bench::handoff::{self, Peer};
use crate::bench::measure::{Pairs, Row, pairs};
use crate::bench::uncontended::cycles;
use crate::bench::{Subject, general, text};

const BATCH: u32 = 32;

/// A plain client of the subject's first server, and a directory of its own there.
fn client(subject: &Subject) -> Result<(Client, String), String> {
    let url = EngineUrl::parse(&subject.url).map_err(text)?;
    let (host, port) = url.hosts.first().ok_or("the URL names no server")?;
    let mut client = Client::connect_to((host.as_str(), port.unwrap_or(2181))).map_err(text)?;
    let own = format!("{}/{}", url.path.trim_end_matches('/'), subject.own);
    let dir = format!("{own}/floor");
    for directory in [&own, &dir] {
        // It is there from the second row on, and the first one may be made by our locks.
        if client.children(directory).is_err() {
            client.create(directory, b"", Kind::Persistent).map_err(text)?;
        }
    }
    Ok((client, dir))
}

/// Measures a row.
pub(crate) fn measure(subject: &Subject, name: &str) -> Result<Vec<Row>, String> {
    match name {
        "uncontended" => uncontended(subject),
        "process-handoff" => process_handoff(subject),
        _ => general(subject, name),
    }
}

/// Acquire, and release without waiting, beside one create, and a delete that nobody waits for.
fn uncontended(subject: &Subject) -> Result<Vec<Row>, String> {
    let mutex = subject.locks.mutex(subject.name("uncontended"));
    let (mut raw, dir) = client(subject)?;
    let ours = |batch| subject.runtime.block_on(cycles(&mutex, batch));
    let mut floor = |batch: u32| -> std::io::Result<()> {
        for deletes in 0..batch {
            raw.ask_create(
                &format!("{dir}/_c_00000000-0000-0000-0000-000000000000-lock-"),
                b"",
                Kind::EphemeralSequential,
            )?;
            if deletes > 0 {
                raw.answer()?;
            }
            let node = raw.created()?;
            raw.ask_delete(&node)?;
        }
        raw.answer()
    };
    let both = pairs(subject.time, BATCH, ours, |batch| floor(batch).map_err(text))?;
    Ok(vec![
        subject
            .row("uncontended", 1)
            .measured(&both)
            .beside("one create, and a delete not awaited", "≤ 1.2"),
    ])
}

/// Release here, turn there, beside a delete here and the event of a data watch there.
fn process_handoff(subject: &Subject) -> Result<Vec<Row>, String> {
    let ((mut holds, dir), (mut waits, _)) = (client(subject)?, client(subject)?);
    let mut peer = Peer::start(subject, &subject.file("bare-handoff"))?;
    let name = handoff::name(subject);
    let locks = lockkeeper::blocking::Locks::open(&subject.url).map_err(text)?;
    let mutex = locks.mutex(&name);
    let began = Instant::now();
    let mut all = Vec::new();
    while began.elapsed() < subject.time || all.len() < 8 {
        let guard = mutex.lock().run().map_err(text)?;
        peer.say("ours")?;
        handoff::until_waiting(&locks, &name)?;
        let released = handoff::now();
        drop(guard);
        let ours = peer.turn_at()?.saturating_sub(released);
        let node =
            holds.create(&format!("{dir}/lock-"), b"", Kind::EphemeralSequential).map_err(text)?;
        waits.watch(&node).map_err(text)?;
        let released = handoff::now();
        holds.ask_delete(&node).map_err(text)?;
        waits.event().map_err(text)?;
        let floor = handoff::now().saturating_sub(released);
        holds.answer().map_err(text)?;
        all.push((ours as f64 / 1e3, floor as f64 / 1e3));
    }
    all.remove(0);
    let row = subject.row("process-handoff", 2).measured(&Pairs(all));
    Ok(vec![row.beside("a delete, and the event of a data watch", "≤ 1.3")])
}
