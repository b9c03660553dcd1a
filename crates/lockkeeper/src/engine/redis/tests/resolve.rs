//! A server whose address may be another one at each dial.

use std::sync::{Arc, Mutex};

use super::server::RedisServer;
use super::support::{PATIENCE, Process, options, until};
use crate::claim::Mode;
use crate::engine::redis::options::{Address, Resolve};
use crate::engine::{BoxFuture, Event};
use crate::error::{Error, ErrorKind, Result};

/// Says where the test says that it is; `None`: nobody knows.
#[derive(Debug)]
struct Told(Mutex<Option<u16>>);

impl Told {
    fn tell(&self, port: Option<u16>) {
        *self.0.lock().unwrap() = port;
    }
}

impl Resolve for Told {
    fn resolve(&self) -> BoxFuture<Result<Address>> {
        let port = *self.0.lock().unwrap();
        let nobody = || Error::new(ErrorKind::Unreachable, "nobody knows the master");
        let found = port.map(|port| Address::Tcp("127.0.0.1".into(), port)).ok_or_else(nobody);
        Box::pin(std::future::ready(found))
    }
}

#[test]
fn an_address_is_resolved_before_each_dial() {
    let (mut first, second) = (RedisServer::start(), RedisServer::start());
    let told = Arc::new(Told(Mutex::new(None)));
    // Nobody is ever at the address that the options name.
    let mut options = options(1);
    options.resolve = Some(told.clone());
    let error = Process::try_with(options.clone()).map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable);
    assert!(error.message().contains("nobody knows the master"), "{error}");

    told.tell(Some(first.port()));
    let process = Process::with(options);
    process.take("a", Mode::Exclusive);
    assert_eq!(first.command(&["EXISTS", "lockkeeper:{lock:a}"]), ["1"]);

    told.tell(Some(second.port()));
    first.kill();
    let up = |e: &Event| matches!(e, Event::Link { up: true }).then_some(());
    assert!(process.event_within(PATIENCE, &mut { up }).is_some(), "it dials anew");
    process.take("a", Mode::Exclusive);
    assert_eq!(second.command(&["EXISTS", "lockkeeper:{lock:a}"]), ["1"]);
    until("no connection is left behind", || {
        second.command(&["CLIENT", "LIST"]).join("").matches("lockkeeper:").count() == 1
    });
}
