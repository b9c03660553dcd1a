//! What a server promises, and what breaks it (R14).

use std::time::Duration;

use super::facts::Facts;
use super::options::PostgresOptions;
use super::statement::make_index;
use crate::engine::sql::line::CLAIM_LEASE;
use crate::engine::sql::record::left;
use crate::words::guarantee::{Ability, Class, Description, Expiry, Warning};

/// What breaks it where no standby is known, or commits wait for one.
const STANDBY: &str = "a standby that is promoted without the last commits: leases and numbers may \
                       be missing there (synchronous_standby_names names one that has them)";
/// The same where there is one, and none that commits wait for.
const NOBODY_WAITS: &str = "a failover to a standby: no commit waits for one, so that leases and \
                            numbers that were granted last may be missing there \
                            (synchronous_standby_names names one that has them)";

/// The class and its limits, as far as the options and the server say.
pub(super) fn describe(options: &PostgresOptions, facts: Option<&Facts>) -> Description {
    let mut about = Description::new("postgres", "table", Class::Timed);
    about.hosts = true;
    about.expiry = Expiry::PerHold { claim_lease: Some(left(CLAIM_LEASE)) };
    about.request_timeout = Some(options.request_timeout);
    about.recovery = options.ttl;
    about.recovery_stopped = Some(options.ttl);
    about.can = about.can.with(&[Ability::Together, Ability::Statements]);
    let standby = match facts {
        Some(facts) if is_left_behind(options, facts) => NOBODY_WAITS,
        _ => STANDBY,
    };
    about.breaks = vec![
        "a step of the server's clock by more than what is left of a lease: leases are counted on \
         it"
        .to_owned(),
        standby.to_owned(),
        "a restore of an older backup, or rows that somebody else changes".to_owned(),
        "tokens: data loss together with a clock that was set back, or with that of a standby, \
         now promoted, which is behind"
            .to_owned(),
    ];
    about.server = format!("PostgreSQL at {}", options.at());
    if options.ttl < Duration::from_secs(1) {
        let text = format!("a lease of {:?} leaves little room for a slow commit", options.ttl);
        about.warnings.push(Warning { id: "short-ttl", text });
    }
    if let Some(facts) = facts {
        from_facts(&mut about, options, facts);
    }
    about
}

/// Whether there may be a failover to a server that lacks the last commits: several hosts are named
/// for one, too.
fn is_left_behind(options: &PostgresOptions, facts: &Facts) -> bool {
    !facts.synchronous && (facts.standbys > 0 || options.addresses.len() > 1)
}

fn from_facts(about: &mut Description, options: &PostgresOptions, facts: &Facts) {
    let version = facts.version.split(' ').next().unwrap_or_default();
    about.server = format!(
        "PostgreSQL {version} at {}, database {} as {}, schema {}",
        options.at(),
        facts.database,
        facts.user,
        facts.schema
    );
    if facts.pooled {
        let text = "a pooler stands in between, through which no notice comes: a waiter looks \
                    every 100 to 250 ms; name the server itself, or add pooler=session if each \
                    client has a server connection of its own there"
            .to_owned();
        about.warnings.push(Warning { id: "pooler", text });
    }
    if !facts.indexed {
        let text = format!(
            "the table lacks the unique index of `number`, which statements for transactions need: \
             let its owner run `{}`",
            make_index(options, &facts.schema)
        );
        about.warnings.push(Warning { id: "index", text });
    }
    if is_left_behind(options, facts) {
        about.class = Class::Efficiency;
    }
    if !facts.fsync || !facts.full_page_writes {
        let text = "fsync or full_page_writes is off: a crash of the server's machine loses or \
                    damages leases that were granted; set both on"
            .to_owned();
        about.class = Class::Efficiency;
        about.breaks.push(text.clone());
        about.warnings.push(Warning { id: "fsync", text });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::Common;
    use crate::open::url::EngineUrl;
    use crate::words::clock::Ticks;

    /// The class, and what is said of standbys.
    fn about(hosts: &str, standbys: i64, synchronous: bool) -> (Class, String) {
        let mut url = EngineUrl::parse(&format!("postgres://{hosts}/x")).unwrap();
        let common = Common::new(Duration::from_secs(30), 100);
        let options = PostgresOptions::take(&mut url, &common).unwrap();
        let facts = Facts {
            now: 0,
            before: Ticks::default(),
            version: "15.18".to_owned(),
            replica: false,
            read_only: false,
            fsync: true,
            full_page_writes: true,
            database: "x".to_owned(),
            user: "u".to_owned(),
            schema: "public".to_owned(),
            pooled: false,
            standbys,
            synchronous,
            indexed: true,
        };
        let about = describe(&options, Some(&facts));
        let said = about.breaks.into_iter().find(|said| said.contains("standby"));
        (about.class, said.expect("it is always said"))
    }

    #[test]
    fn r14_a_failover_to_a_standby_that_no_commit_waits_for_is_efficiency() {
        let (one, two) = ("127.0.0.1", "127.0.0.1:1,127.0.0.1:2");
        for (hosts, standbys) in [(one, 1), (two, 0), (two, 2)] {
            let (class, said) = about(hosts, standbys, false);
            assert_eq!((class, said.as_str()), (Class::Efficiency, NOBODY_WAITS), "{hosts}");
            let (class, said) = about(hosts, standbys, true);
            assert_eq!((class, said.as_str()), (Class::Timed, STANDBY), "{hosts}");
        }
        assert_eq!(about(one, 0, false), (Class::Timed, STANDBY.to_owned()));
    }
}
