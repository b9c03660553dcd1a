//! What advisory locks promise, and what breaks it (R14).

use std::time::Duration;

use super::super::options::Address;
use super::connection::Facts;
use super::options::Options;
use crate::words::guarantee::{Ability, Can, Class, Description, Expiry, Warning};

/// What the layout table can instead.
const IN_TABLE: (Can, &str) =
    (Can::ALL.without(&[Ability::Barrier, Ability::Ask, Ability::HeldWrites]), "use layout=table");

/// The server looks at its keepalives once a second.
const ONE_LOOK: Duration = Duration::from_secs(1);

/// The class and its limits, as far as the options and the server say.
pub(super) fn describe(options: &Options, facts: Option<&Facts>) -> Description {
    let server = &options.server;
    let mut about = Description::new("postgres", "session", Class::Timed);
    about.hosts = true;
    about.fenced = false;
    about.hand_off = false;
    about.expiry = Expiry::Session { ttl: options.session };
    about.request_timeout = Some(server.request_timeout);
    about.recovery = options.session + ONE_LOOK;
    about.can = Can::NONE.with(&[Ability::Shared, Ability::Fair, Ability::WriterTurns]);
    if !options.hashed {
        about.can = about.can.with(&[Ability::List]);
    }
    about.elsewhere = &[IN_TABLE];
    about.breaks = vec![
        "a standby that is promoted, or a restore: it knows no advisory lock, and a holder goes on \
         for as long as the old server answers it"
            .to_owned(),
        "a server that restarts within session_timeout, as far as psql and other programs are \
         concerned: they are granted a lock at once, while a holder that hears nothing goes on \
         until its deadline"
            .to_owned(),
        "clients with different values of session_timeout, when the server restarts".to_owned(),
        "something between client and server that ends the connection for the server alone: the \
         lock is free at once, while its holder goes on until its deadline"
            .to_owned(),
        "anybody who may call pg_terminate_backend: the locks of that connection are free at once"
            .to_owned(),
        "a statement that waits for all snapshots (CREATE INDEX CONCURRENTLY) under such a lock, \
         while others wait for it: none goes on, unless the locks are in a database of their own"
            .to_owned(),
        "there is no fencing token: a holder that was paused is not kept out of the resource"
            .to_owned(),
    ];
    // No setting lets a standby have them.
    if server.addresses.len() > 1 || facts.is_some_and(|facts| facts.has_standby) {
        about.class = Class::Efficiency;
    }
    about.server = format!("PostgreSQL at {}", server.at());
    if options.hashed {
        let text = "names=hash: a name is hashed to 64 bits, and two names may exclude each \
                    other; one name is never two locks, and psql takes it with \
                    hashtextextended(name, 0)";
        about.warnings.push(Warning { id: "hashed-names", text: text.to_owned() });
    }
    if let Some(facts) = facts {
        about.server = format!(
            "PostgreSQL {} at {}, database {} as {}",
            facts.version.split(' ').next().unwrap_or_default(),
            server.at(),
            facts.database,
            facts.user
        );
        let is_remote = server.addresses.iter().any(|at| matches!(at, Address::Tcp(..)));
        if !facts.bounded && is_remote {
            let text = "the server does not let clients set tcp_user_timeout: a host that is gone \
                        may keep its locks for as long as the server's own TCP settings say";
            about.warnings.push(Warning { id: "keepalives", text: text.to_owned() });
        }
    }
    about
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::Common;
    use crate::open::url::EngineUrl;

    #[test]
    fn r14_where_another_server_may_take_over_advisory_locks_are_efficiency() {
        let class = |hosts: &str, has_standby: bool| {
            let mut url = EngineUrl::parse(&format!("postgres://{hosts}/x")).unwrap();
            let options = Options::take(&mut url, &Common::new(Duration::from_secs(30), 100));
            let facts = Facts {
                version: "15.18".to_owned(),
                database: "x".to_owned(),
                user: "u".to_owned(),
                bounded: true,
                locks_max: 800,
                has_standby,
            };
            describe(&options.unwrap(), Some(&facts)).class
        };
        assert_eq!(class("127.0.0.1", false), Class::Timed);
        assert_eq!(class("127.0.0.1", true), Class::Efficiency);
        assert_eq!(class("127.0.0.1:1,127.0.0.1:2", false), Class::Efficiency);
    }
}
