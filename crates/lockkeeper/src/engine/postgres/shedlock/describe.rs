//! What the layout promises, and what breaks it (R14).

use std::time::Duration;

use super::claims::LOOK;
use super::store::Facts;
use crate::engine::postgres::options::PostgresOptions;
use crate::words::guarantee::{Ability, Can, Class, Description, Expiry, Warning};

/// What the layout `table` can instead.
const IN_TABLE: (Can, &str) = (Can::ALL.without(&[Ability::Barrier]), "use layout=table");

/// The class and its limits, as far as the options and the server say.
pub(super) fn describe(options: &PostgresOptions, facts: Option<&Facts>) -> Description {
    let mut about = Description::new("postgres", "shedlock", Class::Efficiency);
    about.hosts = true;
    about.fenced = false;
    about.expiry = Expiry::PerHold { claim_lease: None };
    about.request_timeout = Some(options.request_timeout);
    // A waiter looks when the lease ends, at the latest so much later.
    about.recovery = options.ttl + LOOK.0;
    about.recovery_stopped = Some(about.recovery);
    about.can = Can::NONE.with(&[Ability::List, Ability::Force, Ability::Identity]);
    about.elsewhere = &[IN_TABLE];
    about.breaks = vec![
        "a JVM whose clock is ahead of the server's by more than what is left of a lease, or in \
         another time zone than UTC: ShedLock asks its own clock unless its provider is built with \
         usingDbTime()"
            .to_owned(),
        "a ShedLock before 7.0.0 without usingDbTime(): it unlocks by name alone, so that a task \
         which ran longer than its lockAtMostFor frees whoever has the lock by then"
            .to_owned(),
        "a step of the server's clock by more than what is left of a lease: leases are counted on \
         it"
        .to_owned(),
        "a standby that is promoted without the last commits, a restore of an older backup, or \
         rows that somebody else changes"
            .to_owned(),
        "the layout has no fencing token: a holder that was paused is not kept out of the resource"
            .to_owned(),
    ];
    about.server = format!("PostgreSQL at {}", options.at());
    if options.ttl < Duration::from_secs(1) {
        let text = format!("a lease of {:?} leaves little room for a slow commit", options.ttl);
        about.warnings.push(Warning { id: "short-ttl", text });
    }
    let Some(facts) = facts else { return about };
    let server = &facts.server;
    let version = server.version.split(' ').next().unwrap_or_default();
    about.server = format!(
        "PostgreSQL {version} at {}, database {} as {}, table {}.{}",
        options.at(),
        server.database,
        server.user,
        facts.table.schema,
        options.table
    );
    if !server.fsync || !server.full_page_writes {
        let text = "fsync or full_page_writes is off: a crash of the server's machine loses or \
                    damages leases that were granted; set both on"
            .to_owned();
        about.breaks.push(text.clone());
        about.warnings.push(Warning { id: "fsync", text });
    }
    about.warnings.extend(facts.others.iter().cloned());
    about
}
