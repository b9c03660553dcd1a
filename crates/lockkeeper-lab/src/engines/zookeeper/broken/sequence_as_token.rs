//! The sequence number of the node as the token: it begins again at zero when the directory is made
//! anew.

use std::io;
use std::time::{Duration, Instant};

use super::{BASE, Base, Broken, Kind, SESSION, Session, number};
use crate::torture::raw::{Ending, GiveUp, Grant, RawLock, Style};

pub(super) const THIS: Broken = Broken {
    name: "sequence-as-token",
    // The server removes idle directories every second instead of every minute.
    url: "zk:auto?session_timeout=600ms&container_check=1s",
    what: "its token is the node's number, which begins again when the server has removed the idle \
           directory",
    convicted_by: &["token-order", "token-repeated"],
    clients: 2,
    names: 3,
    style: Style { hold_ms: (1, 10), rest_ms: (200, 900), ..Style::PLAIN },
    make: |orders, task| Ok(Box::new(Lock(Base::of(orders, task)?))),
    shows: removes_idle_directories,
    ..BASE
};

/// How long a server may take to remove an idle directory: turns are so short, and rests so long,
/// that one which looks every few seconds finds some idle.
const IDLE_MAX: Duration = Duration::from_secs(4);

fn removes_idle_directories(url: &str) -> Result<(), String> {
    let port = super::port(url).ok_or("this server cannot be reached")?;
    let removes = || -> io::Result<bool> {
        let directory = format!("/torture-idle-{}", std::process::id());
        let mut session = Session::open(port, SESSION)?;
        session.create(&directory, Kind::Container)?;
        // One that never had a child is not removed.
        if let Some(child) =
            session.create(&format!("{directory}/child-"), Kind::EphemeralSequential)?
        {
            session.delete(&child)?;
        }
        let until = Instant::now() + IDLE_MAX;
        while session.children(&directory, false)?.is_some() {
            if Instant::now() > until {
                session.delete(&directory)?;
                return Ok(false);
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(true)
    };
    let (most, arena) = (IDLE_MAX.as_secs(), THIS.url);
    match removes() {
        Ok(true) => Ok(()),
        Ok(false) => Err(format!(
            "this server does not remove an idle directory within {most} s; \
             start it with -Dznode.container.checkIntervalMs=1000, or torture {arena}"
        )),
        Err(error) => {
            Err(format!("this server does not say whether it removes idle directories: {error}"))
        }
    }
}

struct Lock(Base);

impl RawLock for Lock {
    fn acquire(&mut self, name: &str, give_up: &GiveUp) -> io::Result<Option<Grant>> {
        let got = self.0.acquire(name, Kind::Container, give_up)?;
        Ok(got.map(|grant| Grant { token: number(&self.0.node) + 1, ..grant }))
    }

    fn tend(&mut self) -> bool {
        self.0.tend()
    }

    fn release(&mut self) -> io::Result<Ending> {
        self.0.release()
    }
}
