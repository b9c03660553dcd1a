//! A PostgreSQL server of the run's own, behind a proxy for each client.

use std::path::Path;

use lockkeeper_testkit::postgres::server::{PostgresServer, USER};

use super::usual;
use crate::engines::own::with_options;
use crate::torture::arena::{About, Arena, Failed, Mended, has};
use crate::torture::fault::{AWAY, Fault, Hits};
use crate::torture::links::Links;

/// Leases are short, so that faults outlast them.
const TTL: &str = "ttl=600ms";

const fn server(name: &'static str, what: &'static str) -> Fault {
    Fault { name, hits: Hits::Server, excuses: AWAY, what }
}

/// What was answered was on the disk before: none of them excuses two holders.
const FAULTS: [Fault; 3] = [
    server(STOP, "the server is stopped as it stands, and goes on later"),
    server(KILL, "the server is killed, and started again with its data"),
    server(TERMINATE, "the server ends every connection (pg_terminate_backend)"),
];
const STOP: &str = "stop-server";
const KILL: &str = "kill-server";
const TERMINATE: &str = "end-connections";

pub(crate) struct PostgresArena {
    about: About,
    options: String,
    // The links go before the server they lead to.
    links: Links,
    server: PostgresServer,
    down: bool,
}

impl PostgresArena {
    /// `dir` is for the server's data.
    pub(crate) fn start(options: &str, dir: &Path) -> Result<Self, (u8, String)> {
        let mut options = usual(options);
        if !has(&options, "ttl") && !has(&options, "session_timeout") {
            options = format!("{options}{}{TTL}", if options.is_empty() { "" } else { "&" });
        }
        let server = PostgresServer::try_start_below(dir, &[]).map_err(|text| (69, text))?;
        let about = About::of(&with_options(&server.url(), &options))?;
        let links = Links::to(vec![server.port()]);
        Ok(Self { about, options, links, server, down: false })
    }
}

impl Arena for PostgresArena {
    fn url(&mut self, number: u32) -> Result<String, String> {
        let at: Vec<String> =
            self.links.addresses(number)?.iter().map(ToString::to_string).collect();
        // In a network of its own a client has another address than the loopback's.
        let url = format!("postgres://{USER}@{}/postgres?sslmode=disable", at.join(","));
        Ok(format!("{url}&{}", self.options))
    }

    fn about(&self) -> About {
        self.about
    }

    fn links(&mut self) -> Option<&mut Links> {
        Some(&mut self.links)
    }

    fn faults(&self) -> Vec<Fault> {
        FAULTS.into_iter().chain(self.links.faults()).collect()
    }

    fn left_out(&self) -> Vec<String> {
        self.links.left_out().into_iter().collect()
    }

    fn lost(&mut self) -> Option<String> {
        let status = self.server.ended().filter(|_| !self.down)?;
        let log = self.server.log();
        let words = log.lines().last().unwrap_or_default();
        Some(format!("the server ended by itself with {status}; it said last: {words}"))
    }

    fn strike(&mut self, fault: &'static str, client: u32) -> Result<(), Failed> {
        match fault {
            STOP | KILL | TERMINATE if self.down => Err("the server is down".into()),
            STOP => {
                self.server.stop();
                Ok(())
            }
            KILL => {
                self.down = true;
                self.server.kill();
                Ok(())
            }
            TERMINATE => {
                let ended = self.server.ask(
                    "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity \
                     WHERE application_name LIKE 'lockkeeper:%'",
                )?;
                if ended == "0" { Err("nobody was connected".into()) } else { Ok(()) }
            }
            fault => self
                .links
                .strike(fault, client)
                .unwrap_or_else(|| Err(format!("postgres has no fault {fault}").into())),
        }
    }

    fn mend(&mut self, fault: &'static str, client: u32) -> Result<Mended, String> {
        match fault {
            STOP => self.server.go_on(),
            KILL => {
                self.server.try_start_again()?;
                self.down = false;
            }
            TERMINATE => {}
            fault => {
                return self
                    .links
                    .mend(fault, client)
                    .unwrap_or_else(|| Err(format!("postgres has no fault {fault}")));
            }
        }
        Ok(Mended::Ended)
    }
}
