//! The rows of a quorum: an uncontended acquire beside a raw client of all members.

use lockkeeper::url::EngineUrl;
use lockkeeper_testkit::redis::resp::command;

use crate::bench::measure::{Row, pairs};
use crate::bench::uncontended::{self, cycles};
use crate::bench::{Subject, general, text};
use crate::engines::redis::floor::raw::Raw;

const BATCH: u32 = 64;
/// What the raw client writes.
const VALUE: &str = "00112233445566778899aabbccddeeff";
const COMPARE_AND_DELETE: &str = "if redis.call('get', KEYS[1]) == ARGV[1] then \
                                  return redis.call('del', KEYS[1]) else return 0 end";

/// Measures a row.
pub(super) fn measure(subject: &Subject, name: &str) -> Result<Vec<Row>, String> {
    match name {
        "uncontended" => uncontended(subject),
        _ => general(subject, name),
    }
}

/// Two rows: with the release awaited, and without. A quorum that the raw client cannot talk to,
/// with a password or TLS, has the general row.
fn uncontended(subject: &Subject) -> Result<Vec<Row>, String> {
    let Some(mut bare) = Bare::connect(subject)? else {
        return uncontended::uncontended(subject, subject.time);
    };
    let mutex = subject.locks.mutex(subject.name("uncontended"));
    let awaited = |batch| subject.runtime.block_on(awaited(&mutex, batch));
    let dropped = |batch| subject.runtime.block_on(cycles(&mutex, batch));
    let half = subject.time / 2;
    let both = pairs(half, BATCH, awaited, |batch| bare.cycles(batch, true))?;
    let one = pairs(half, BATCH, dropped, |batch| bare.cycles(batch, false))?;
    let row = |measured| subject.row("uncontended", 1).measured(measured);
    Ok(vec![
        row(&both).beside("SET NX PX, compare-and-delete on all members, awaited as ours", "≤ 2"),
        row(&one).beside("the same, where neither waits for the answer to its release", "≤ 2"),
    ])
}

async fn awaited(mutex: &lockkeeper::Mutex, batch: u32) -> Result<(), String> {
    for _ in 0..batch {
        let released = mutex.lock().await.map_err(text)?.release().await;
        if !released.is_clean() {
            return Err(format!("a release was {released:?}"));
        }
    }
    Ok(())
}

/// A connection to each member, from one thread: a command goes to all of them before any answer is
/// read.
struct Bare {
    members: Vec<Raw>,
    set: Vec<u8>,
    delete: Vec<u8>,
}

impl Bare {
    fn connect(subject: &Subject) -> Result<Option<Self>, String> {
        let mut url = EngineUrl::parse(&subject.url).map_err(text)?;
        let secret = ["password_file", "password_env", "tls"].map(|option| url.take(option));
        if url.user.is_some() || url.password.is_some() || secret.iter().any(Option::is_some) {
            return Ok(None);
        }
        let key = format!("lockkeeper:{}", subject.name("set"));
        let set = command(&["SET", &key, VALUE, "NX", "PX", "30000"]);
        let (mut members, mut delete) = (Vec::new(), Vec::new());
        for (host, port) in &url.hosts {
            let host = if host.contains(':') { format!("[{host}]") } else { host.clone() };
            let mut raw = Raw::connect(&format!("{host}:{}", port.unwrap_or(6379)), &[])?;
            let sha = raw.ask(&command(&["SCRIPT", "LOAD", COMPARE_AND_DELETE]))?.concat();
            delete = command(&["EVALSHA", &sha, "1", &key, VALUE]);
            members.push(raw);
        }
        Ok(Some(Self { members, set, delete }))
    }

    fn cycles(&mut self, batch: u32, awaited: bool) -> Result<(), String> {
        for round in 0..batch {
            for member in &mut self.members {
                member.send(&self.set)?;
            }
            for member in &mut self.members {
                if !awaited && round > 0 {
                    Self::answer(member, "1")?;
                }
                Self::answer(member, "OK")?;
            }
            for member in &mut self.members {
                member.send(&self.delete)?;
            }
            if awaited || round + 1 == batch {
                for member in &mut self.members {
                    Self::answer(member, "1")?;
                }
            }
        }
        Ok(())
    }

    fn answer(member: &mut Raw, due: &str) -> Result<(), String> {
        let said = member.answer()?.concat();
        if said == due { Ok(()) } else { Err(format!("a member said {said:?}, not {due}")) }
    }
}
