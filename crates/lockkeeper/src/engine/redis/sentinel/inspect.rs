//! The clocks of the servers: a replica that takes its master's place counts leases, and makes
//! numbers, by its own.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};

use super::errors;
use super::resolve::Sentinels;
use crate::engine::either::either;
use crate::engine::password::Login;
use crate::engine::redis::client::pipe::Pipe;
use crate::engine::redis::client::resp::{Command, Value};
use crate::engine::redis::client::stream::{self, Dialled};
use crate::engine::redis::client::why::value;
use crate::engine::redis::client::wire::driven;
use crate::engine::redis::errors as server_errors;
use crate::engine::redis::options::{Address, RedisOptions};
use crate::words::clock::unix_us;
use crate::words::error::{Error, ErrorKind, Result};
use crate::words::guarantee::Warning;

/// How soon after it was opened, or after the master moved, the clocks are looked at: whoever takes
/// a lock for a moment does not pay for it.
const SETTLED: Duration = Duration::from_secs(2);

/// How often they are looked at after that.
const EVERY: Duration = Duration::from_secs(600);

/// Two clocks that differ by less are the same to any lease.
const LEAST: Duration = Duration::from_millis(10);

/// One reading of a server's clock.
struct Reading {
    /// By how much it is ahead of ours.
    ahead_us: i128,
    /// How long asking took: the reading is off by half of it at most.
    took_us: u64,
}

impl Sentinels {
    /// What is worth a warning, as it was when they were looked at last.
    pub(super) fn clock_warnings(&self) -> Vec<Warning> {
        self.clocks.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Looks at the clocks from time to time, until all is closed.
    pub(super) async fn watch_clocks(self: Arc<Self>) {
        let mut closed = self.closed.subscribe();
        let watching = async {
            loop {
                sleep(SETTLED).await;
                let Some(master) = self.master() else { continue };
                self.look_at_clocks().await;
                _ = either(self.moved_from(&master.at), sleep(EVERY)).await;
            }
        };
        let _: std::result::Result<(), _> = either(watching, closed.wait_for(|c| *c)).await;
    }

    /// Compares the replicas' clocks with the master's, and notes what is worth a warning.
    pub(super) async fn look_at_clocks(&self) {
        let Some(master) = self.master() else { return };
        let within = self.options.master.connect_timeout;
        let Ok(Ok(base)) = timeout(within, self.read_clock(&master.at)).await else { return };
        let mut warnings = Vec::new();
        for at in self.replicas().await {
            // One that cannot be reached from here may still be promoted; what it is connected to
            // is the Sentinels' to say.
            let Ok(Ok(read)) = timeout(within, self.read_clock(&at)).await else { continue };
            warnings.extend(self.compare(&at, &base, &read));
        }
        *self.clocks.lock().unwrap_or_else(PoisonError::into_inner) = warnings;
    }

    /// The replicas that a majority of the Sentinels knows: whoever is asked there gets the
    /// master's password.
    async fn replicas(&self) -> Vec<Address> {
        let mut known: BTreeMap<String, (Address, usize)> = BTreeMap::new();
        for node in self.nodes.iter().filter(|node| node.why_down().is_none()) {
            for at in node.replicas(&self.options).await {
                known.entry(at.to_string()).or_insert((at, 0)).1 += 1;
            }
        }
        let majority = self.options.majority();
        known.into_values().filter(|(_, by)| *by >= majority).map(|(at, _)| at).collect()
    }

    fn compare(&self, at: &Address, base: &Reading, read: &Reading) -> Option<Warning> {
        let options = &self.options.master;
        let allowed = (options.ttl * options.drift_permille / 1000).max(LEAST);
        let apart = read.ahead_us - base.ahead_us;
        let apart_us = u64::try_from(apart.unsigned_abs()).unwrap_or(u64::MAX);
        let certain = apart_us.saturating_sub(base.took_us / 2 + read.took_us / 2);
        if Duration::from_micros(certain) <= allowed {
            return None;
        }
        let (which, costs) = if apart > 0 {
            ("ahead of", "leases end early there, which can give two holders")
        } else {
            ("behind", "leases end late there, and nothing is granted whose token would go back")
        };
        let apart = Duration::from_micros(apart_us);
        let text = format!(
            "the clock of the replica at {at} is {:.1} s {which} its master's, and the drift \
             allowance of a lease is {allowed:?}: after a failover {costs}; set their clocks by \
             one source",
            apart.as_secs_f64()
        );
        Some(Warning { id: "clocks-apart", text })
    }

    async fn read_clock(&self, at: &Address) -> Result<Reading> {
        let options =
            RedisOptions { address: at.clone(), resolve: None, ..self.options.master.clone() };
        let until = Instant::now() + options.connect_timeout;
        let Dialled { stream, login, .. } = stream::open(&options, until, |_| ()).await?;
        let (pipe, driver) =
            Pipe::new(stream, options.request_timeout, Arc::new(|_, _: Vec<Value>| {}));
        driven(ask_time(&pipe, &options, login), driver).await.0
    }
}

async fn ask_time(pipe: &Pipe, options: &RedisOptions, login: Option<Login>) -> Result<Reading> {
    let mut hello = Command::new(["HELLO", "3"]);
    if let Some(Login { password, .. }) = &login {
        let user = options.user.as_deref().unwrap_or("default");
        hello = hello.arg("AUTH").arg(user).arg(password.reveal());
    }
    // Two messages: greeting takes longer than reading a clock.
    let greeted = answer(pipe, hello).await;
    if let Some((password, login)) = options.password.as_ref().zip(login.as_ref()) {
        let at = options.address.to_string();
        match &greeted {
            Ok(_) => password.accepted(&at, login),
            // Nobody dials it again before there is another password.
            Err(why) if server_errors::is_about_password(why.message()) => {
                let why = server_errors::server(options, "HELLO", why.message());
                _ = password.refused(&at, login, why);
            }
            Err(_) => {}
        }
    }
    greeted?;
    let asked_us = unix_us();
    let time = answer(pipe, Command::new(["TIME"])).await?;
    let took_us = unix_us().saturating_sub(asked_us);
    let [seconds, micros] = time.items() else { return Err(errors::garbage(&options.address)) };
    let server_us = seconds.unsigned().unwrap_or(0) * 1_000_000 + micros.unsigned().unwrap_or(0);
    let ahead_us = i128::from(server_us) - i128::from(asked_us + took_us / 2);
    Ok(Reading { ahead_us, took_us })
}

async fn answer(pipe: &Pipe, command: Command) -> Result<Value> {
    let failed = |why: String| Error::new(ErrorKind::Unreachable, why);
    let Some(answer) = pipe.send(&[command]).pop() else { return Err(failed("closed".into())) };
    match value(answer).await.map_err(|why| failed(why.to_string()))? {
        Value::Error(text) => Err(Error::new(ErrorKind::Refused, text)),
        value => Ok(value),
    }
}
