use std::cell::Cell;
use std::io::Write as _;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::process::Command;

use super::*;
use crate::guardian::{Line, Sheet, Times};
use crate::kill_after::KillAfter;

/// One who has hired a guardian, and that one's end of the line.
fn hired(command: bool) -> (Box<Hired>, UnixStream) {
    let (line, its_end) = Line::pair().unwrap();
    let (child, sheet) = (Command::new("true").spawn().unwrap(), Sheet::new().unwrap());
    let guardian = Guardian {
        child,
        _minded: None,
        line,
        sheet,
        gone: Cell::new(false),
        is_waited_for: Cell::new(false),
    };
    let care = Care {
        command,
        kill_after: KillAfter(None),
        on_lost: OnLost::Term,
        nested: false,
        leave_children: false,
        at_least: Duration::ZERO,
    };
    (Box::new(Hired::new(guardian, care)), its_end.into())
}

fn say(mut line: &UnixStream, tell: &Tell) {
    line.write_all(&serde_json::to_vec(tell).unwrap()).unwrap();
}

fn granted() -> Tell {
    Tell::Granted { token: Some(1), hold: None, kill_after: Duration::from_secs(5) }
}

/// Closes it, also while a child that another test starts still has it.
fn close(line: UnixStream) {
    line.shutdown(Shutdown::Both).unwrap();
}

#[test]
fn r5_a_turn_that_was_taken_back_is_missed_also_if_nothing_was_heard_of_it() {
    let (hired, its_end) = hired(true);
    assert!(hired.guardian.sheet.take_back());
    close(its_end);
    assert!(matches!(hired.finish(), Ok(Got::Missed)));
    for says in [Tell::Released { how: Release::Clean }, Tell::Lost { why: Why::Alone }] {
        let (hired, its_end) = self::hired(true);
        say(&its_end, &says);
        close(its_end);
        assert!(matches!(hired.finish(), Ok(Got::Missed)), "{says:?}");
    }
    let (hired, its_end) = self::hired(true);
    close(its_end);
    assert!(hired.finish().is_err(), "it was never granted");
}

#[test]
fn r5_a_grant_is_missed_where_its_guardian_or_its_lease_is_gone() {
    let (hour, now) = (Duration::from_secs(3_600), moment());
    let over = Times { term: now, end: now + hour };
    for (command, times, is_missed) in [
        (true, Times::of(now + hour * 2, hour), false),
        (true, over, true),
        // Nothing would be stopped.
        (false, over, false),
        (false, Times::of(now, Duration::ZERO), true),
    ] {
        let (hired, its_end) = hired(command);
        hired.guardian.sheet.write(times);
        say(&its_end, &granted());
        let got = hired.finish();
        close(its_end);
        assert_eq!(matches!(got, Ok(Got::Missed)), is_missed, "{command} {times:?}");
        assert_eq!(matches!(got, Ok(Got::Held(_))), !is_missed, "{command} {times:?}");
    }
    let (hired, its_end) = hired(true);
    say(&its_end, &granted());
    close(its_end);
    assert!(matches!(hired.finish(), Ok(Got::Missed)), "nobody keeps it");
}
