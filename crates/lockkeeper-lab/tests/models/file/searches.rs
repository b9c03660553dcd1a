//! What is searched: every rule, and every known flaw.

use super::rules::{COUNTING, END, EXCLUSION, ORDER, REFUSED, TOKENS};
use super::{
    ALL_PERMITS, Bytes, Flaw, GOES_DOWN, LEAVES, LEAVES_ONE, ONE, READ, READS_ON, READS_ONLY,
    TRIES, TRIES_ALL, TRIES_ONE, UPGRADES, WRITE,
};
use crate::explore::{convicts, holds};

#[test]
fn the_byte_plan_keeps_every_rule() {
    holds("file", "two writers", Bytes::of(&[WRITE, WRITE]).deaths(2));
    holds("file", "writer and reader", Bytes::of(&[WRITE, READ]).deaths(2));
    holds("file", "upgrade beside a reader", Bytes::of(&[UPGRADES, READ]).deaths(2));
    holds("file", "upgrade beside a writer", Bytes::of(&[UPGRADES, WRITE]).deaths(2));
    holds("file", "two upgrades", Bytes::of(&[UPGRADES, UPGRADES]).deaths(1));
    holds("file", "downgrade beside a writer", Bytes::of(&[GOES_DOWN, WRITE]).deaths(1));
    holds("file", "downgrade beside an upgrade", Bytes::of(&[READS_ON, UPGRADES]).deaths(1));
    holds(
        "file",
        "no upgrade after all, before a writer",
        Bytes::of(&[READS_ONLY, WRITE]).deaths(1),
    );
    holds(
        "file",
        "no upgrade after all, before another",
        Bytes::of(&[READS_ONLY, UPGRADES]).deaths(1),
    );
    holds("file", "a caller leaves", Bytes::of(&[LEAVES, WRITE]).deaths(1));
    holds("file", "the file is collected", Bytes::of(&[WRITE, READ]).collects());
    holds("file", "the file is removed by force", Bytes::of(&[WRITE, UPGRADES]).removed());
    holds("file", "two writers and a try", Bytes::of(&[WRITE, WRITE, TRIES]).deaths(2));
    holds("file", "writer, readers", Bytes::of(&[WRITE, READ, READ]).deaths(2));
    holds("file", "upgrade, reader, writer", Bytes::of(&[UPGRADES, READ, WRITE]).deaths(2));
    holds(
        "file",
        "upgrade, upgrade, downgrade",
        Bytes::of(&[UPGRADES, UPGRADES, GOES_DOWN]).deaths(1),
    );
    holds(
        "file",
        "collected under three",
        Bytes::of(&[LEAVES, READ, UPGRADES]).collects().deaths(1),
    );
}

#[test]
fn permits_keep_every_rule() {
    holds("file", "permits, and for all of them", Bytes::of(&[ONE, ALL_PERMITS]).deaths(2));
    holds("file", "permits, one waits", Bytes::of(&[ONE, ONE, ALL_PERMITS]).deaths(1));
    holds("file", "tries for permits meet", Bytes::of(&[TRIES_ONE, TRIES_ONE, ONE]).deaths(1));
    holds(
        "file",
        "great and small tries for permits",
        Bytes::of(&[TRIES_ALL, TRIES_ONE, ONE]).deaths(1),
    );
    holds(
        "file",
        "a caller leaves the line for permits",
        Bytes::of(&[LEAVES_ONE, ALL_PERMITS]).deaths(1),
    );
    holds(
        "file",
        "permits, and the file is collected",
        Bytes::of(&[ONE, ALL_PERMITS]).collects().deaths(1),
    );
}

#[test]
fn every_known_flaw_of_a_file_lock_is_found() {
    convicts(
        "file",
        "no look at the path",
        EXCLUSION,
        Bytes::of(&[WRITE, WRITE]).collects().flaw(Flaw::NoCheck),
    );
    convicts(
        "file",
        "no look at the line",
        ORDER,
        Bytes::of(&[WRITE, READ, READ]).flaw(Flaw::SkipsTheLine),
    );
    convicts(
        "file",
        "no upgrade byte",
        EXCLUSION,
        Bytes::of(&[UPGRADES, UPGRADES]).flaw(Flaw::NoUpgradeByte),
    );
    convicts(
        "file",
        "an upgrade lets go first",
        EXCLUSION,
        Bytes::of(&[UPGRADES, WRITE]).flaw(Flaw::UpgradeLetsGo),
    );
    convicts(
        "file",
        "the number is worked out too early",
        TOKENS,
        Bytes::of(&[WRITE, WRITE]).flaw(Flaw::NumberTooEarly),
    );
    let reads_only = Bytes::of(&[READS_ONLY, WRITE]).flaw(Flaw::OneMoreDownwards);
    convicts("file", "a downgrade takes the next writer's number", TOKENS, reads_only);
    convicts(
        "file",
        "permits are counted together",
        REFUSED,
        Bytes::of(&[TRIES_ONE, TRIES_ONE]).flaw(Flaw::CountsTogether),
    );
    convicts(
        "file",
        "permits are not counted",
        EXCLUSION,
        Bytes::of(&[TRIES_ONE, TRIES_ALL]).flaw(Flaw::TakesUncounted),
    );
    convicts(
        "file",
        "who waits keeps the counting",
        COUNTING,
        Bytes::of(&[ALL_PERMITS, ONE]).flaw(Flaw::SleepsCounting),
    );
    let outlives = Bytes::of(&[TRIES_ONE, ONE]).deaths(1).flaw(Flaw::LocksOutliveTheirProcess);
    convicts("file", "who dies while it counts keeps the counting", END, outlives);
    convicts(
        "file",
        "locks outlive their process",
        END,
        Bytes::of(&[WRITE, WRITE]).deaths(1).flaw(Flaw::LocksOutliveTheirProcess),
    );
}
