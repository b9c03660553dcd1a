//! Whoever is called master once is believed for as long as it answers.

use std::io;
use std::time::Duration;

use lockkeeper_testkit::redis::resp::{Reply, Resp};
use lockkeeper_testkit::sentinel::server::SERVICE;

use super::{BASE, Broken};
use crate::engines::redis::broken::COMPARE_AND_DELETE;
use crate::history::Writer;
use crate::torture::broken::Strike;
use crate::torture::orders::Orders;
use crate::torture::raw::{Ending, GiveUp, Grant, RawLock, Style};

pub(super) const THIS: Broken = Broken {
    name: "sentinel-trusts-old-master",
    what: "it goes on with a master that no Sentinel and no replica confirms: one that is cut off \
           grants to it while the new one grants to others",
    convicted_by: &["overlap"],
    trigger: &[Strike::one("cut-off-master", (0, 50), 7_000)],
    round_ms: 10_000,
    style: Style { hold_ms: (20, 60), ..Style::PLAIN },
    make: |orders, task| Ok(Box::new(Lock::of(orders, task)?)),
    ..BASE
};

const TTL: Duration = Duration::from_secs(1);
/// How often it asks again.
const EVERY: Duration = Duration::from_millis(5);
/// How long it waits for a Sentinel, and for the master.
const SENTINEL_PATIENCE: Duration = Duration::from_millis(100);
const PATIENCE: Duration = Duration::from_secs(1);
/// How often it asks who is the master.
const ASK_EVERY: Duration = Duration::from_millis(200);

struct Lock {
    sentinels: Vec<Resp>,
    password: String,
    master: Option<(u16, Resp)>,
    /// When the Sentinels were asked last, on the clock of histories.
    asked: u64,
    name: String,
    value: String,
}

impl Lock {
    fn of(orders: &Orders, task: u32) -> Result<Self, String> {
        let (password, ports) = parts(&orders.url).ok_or("these Sentinels cannot be reached")?;
        let sentinels = ports.into_iter().map(|port| Resp::to(port, SENTINEL_PATIENCE)).collect();
        let value = format!("{}:{}:{task}", orders.label, std::process::id());
        let (password, name) = (password.to_owned(), String::new());
        Ok(Self { sentinels, password, master: None, asked: 0, name, value })
    }

    /// The first Sentinel that answers is believed; when none does, the master is who it was.
    fn find(&mut self) {
        let every = u64::try_from(ASK_EVERY.as_nanos()).unwrap_or(0);
        if self.master.is_some() && Writer::now() < self.asked + every {
            return;
        }
        self.asked = Writer::now();
        let question = ["SENTINEL", "GET-MASTER-ADDR-BY-NAME", SERVICE];
        let port = self.sentinels.iter_mut().find_map(|sentinel| {
            let Ok(Reply::List(answer)) = sentinel.ask(&question) else { return None };
            answer.get(1)?.text()?.parse::<u16>().ok()
        });
        if let Some(port) = port
            && self.master.as_ref().is_none_or(|(at, _)| *at != port)
        {
            self.master = Some((port, Resp::to(port, PATIENCE)));
        }
    }

    fn ask(&mut self, words: &[&str]) -> io::Result<Reply> {
        let (_, master) = self.master.as_mut().ok_or(io::ErrorKind::NotConnected)?;
        match master.ask(words)? {
            Reply::Error(text) if text.starts_with("NOAUTH") => {
                master.ask(&["AUTH", &self.password])?;
                master.ask(words)
            }
            reply => Ok(reply),
        }
    }
}

impl RawLock for Lock {
    fn acquire(&mut self, name: &str, give_up: &GiveUp) -> io::Result<Option<Grant>> {
        name.clone_into(&mut self.name);
        let (value, ttl) = (self.value.clone(), TTL.as_millis().to_string());
        let lease = u64::try_from(TTL.as_nanos()).unwrap_or(u64::MAX) / 10 * 9;
        give_up.poll(EVERY, || {
            self.find();
            let before = Writer::now();
            // A master that is away is one that has not granted.
            let set = self.ask(&["SET", name, &value, "NX", "PX", &ttl]);
            let granted = set.is_ok_and(|reply| reply.is_ok());
            Ok(granted.then_some(Grant { token: 0, deadline: before + lease }))
        })
    }

    fn release(&mut self) -> io::Result<Ending> {
        let (name, value) = (self.name.clone(), self.value.clone());
        Ok(match self.ask(&["EVAL", COMPARE_AND_DELETE, "1", &name, &value])? {
            Reply::Number(1) => Ending::Released,
            Reply::Number(_) => Ending::NotOurs,
            _ => Ending::Unknown,
        })
    }
}

/// The master's password, and where the Sentinels are.
fn parts(url: &str) -> Option<(&str, Vec<u16>)> {
    let rest = url.strip_prefix("redis+sentinel://")?;
    let (user, rest) = rest.split_once('@')?;
    let hosts = rest.split(['?', '/']).next()?;
    let ports = hosts.split(',').map(|at| at.strip_prefix("127.0.0.1:")?.parse().ok());
    Some((user.strip_prefix(':')?, ports.collect::<Option<_>>()?))
}
