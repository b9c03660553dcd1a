use super::super::options::Spelling;
use super::*;
use crate::words::error::ErrorKind;

#[test]
fn a_script_that_ran_half_is_not_refused() {
    let options = RedisOptions::new(Address::Tcp("h".into(), 1));
    for text in [
        "ERR Script attempted to access a non local key in a cluster node script: 5e2, on \
         @user_script:1.",
        "ERR Error running script (call to f_5e2): @user_script:1: @user_script: 1: Script \
         attempted to access a non local key in a cluster node",
    ] {
        assert!(ran_half(text));
        assert_eq!(server(&options, "EVALSHA", text).kind(), ErrorKind::Unknown);
    }
    assert!(!ran_half("WRONGTYPE Operation against a key holding the wrong kind of value"));
}

#[test]
fn every_refusal_says_which_it_is_and_what_to_do() {
    let options = RedisOptions::new(Address::Tcp("h".into(), 1));
    let cases = [
        ("NOAUTH Authentication required.", ErrorKind::Refused, "password"),
        (
            "WRONGPASS invalid username-password pair or user is disabled.",
            ErrorKind::Refused,
            "does not accept",
        ),
        (
            "NOPERM this user has no permissions to run the 'evalsha' command",
            ErrorKind::Refused,
            "'evalsha'",
        ),
        ("READONLY You can't write against a read only replica.", ErrorKind::Refused, "primary"),
        (
            "OOM command not allowed when used memory > 'maxmemory'.",
            ErrorKind::Refused,
            "maxmemory",
        ),
        (
            "ERR Error running script: -OOM command not allowed when used memory > \
             'maxmemory'.",
            ErrorKind::Refused,
            "maxmemory",
        ),
        ("MISCONF Redis is configured to save RDB snapshots", ErrorKind::Refused, "disk"),
        (
            "WRONGTYPE Operation against a key holding the wrong kind of value",
            ErrorKind::Corrupt,
            "of another type",
        ),
        ("MOVED 3999 127.0.0.1:6381", ErrorKind::InvalidArgument, "redis+cluster://h:1"),
        ("LOADING Redis is loading the dataset in memory", ErrorKind::Unreachable, "not ready"),
        (
            "ERR LOCKKEEPER NEWER 2 script: abc, on @user_script:30.",
            ErrorKind::NewerLayout,
            "layout 2",
        ),
        ("LOCKKEEPER NEWER 3 2 script: abc", ErrorKind::NewerLayout, "knows 2:"),
        ("LOCKKEEPER NEWER 3 script: abc", ErrorKind::NewerLayout, "knows 1:"),
        (
            "LOCKKEEPER OLDER 1 2 lockkeeper:{lock:a}:last script: abc",
            ErrorKind::Corrupt,
            "delete the keys lockkeeper:{lock:a}, lockkeeper:{lock:a}:line and \
             lockkeeper:{lock:a}:last",
        ),
        ("LOCKKEEPER CORRUPT lockkeeper:{lock:a}", ErrorKind::Corrupt, "lockkeeper:{lock:a}"),
        (
            "LOCKKEEPER TYPE lockkeeper:{lock:a}:last",
            ErrorKind::Corrupt,
            "lockkeeper:{lock:a}:last is of another type",
        ),
        (
            "ERR LOCKKEEPER FENCE {a}:fence holds no tokens script: abc",
            ErrorKind::Corrupt,
            "the key {a}:fence holds no tokens",
        ),
        ("ERR something else", ErrorKind::Refused, "something else"),
    ];
    for (text, kind, says) in cases {
        let error = server(&options, "EVALSHA", text);
        assert_eq!(error.kind(), kind, "{text}: {error}");
        assert!(error.message().contains(says), "{text}: {error}");
    }
}

#[test]
fn b7_a_server_that_takes_no_writes_for_now_is_waited_for() {
    let options = RedisOptions::new(Address::Tcp("h".into(), 1));
    for text in [
        "OOM command not allowed when used memory > 'maxmemory'.",
        "ERR Error running script: -OOM command not allowed when used memory > 'maxmemory'.",
        "MISCONF Redis is configured to save RDB snapshots",
    ] {
        let error = server(&options, "EVALSHA", text);
        assert!(error.is_outage() && error.is_temporary(), "{text}: {error}");
        assert_eq!(error.kind(), ErrorKind::Refused, "{text}");
    }
    let denied = server(&options, "EVALSHA", "NOPERM this user has no permissions");
    assert!(!denied.is_outage(), "{denied}");
}

#[test]
fn a_password_that_is_wanted_is_put_into_a_url_of_the_same_scheme() {
    let mut options = RedisOptions::new(Address::Tcp("h".into(), 1));
    for spelling in [Spelling::SERVER, Spelling::SECURE_SERVER, Spelling::SOCKET] {
        options.spelling = spelling;
        let error = server(&options, "HELLO", "NOAUTH Authentication required.");
        let url = format!("the URL ({}) or", spelling.login);
        assert!(error.message().contains(&url), "{url}: {error}");
        assert!(spelling.login.contains("://user:password@"), "{url}");
    }
}

#[test]
fn a_refused_key_of_another_layout_is_named_and_no_placeholder_is_advised() {
    let mut options = RedisOptions::new(Address::Tcp("h".into(), 1));
    let call = Call { keys: ["fleet/a"].into(), ..Call::new(Which::PlainAcquire) };
    let denied = "NOPERM No permissions to access a key";
    let error = script(&options, &call, denied);
    assert!(
        error.message().contains("ACL SETUSER default ~lockkeeper:* &lockkeeper:* +@scripting"),
        "{error}"
    );
    for layout in [Layout::Plain, Layout::Redisson] {
        options.layout = layout;
        let error = script(&options, &call, denied);
        assert_eq!(error.kind(), ErrorKind::Refused);
        let advice = "ACL SETUSER default +@scripting +@read +@write +@pubsub +@connection \
                      +time, and with ~ and & patterns";
        assert!(
            error.message().contains(advice) && error.message().ends_with("; the keys are fleet/a"),
            "{error}"
        );
    }
}

#[test]
fn the_error_of_a_script_names_its_keys_and_what_its_user_may_lack() {
    let mut options = RedisOptions::new(Address::Tcp("h".into(), 1));
    options.user = Some("ann".into());
    let keys = ["lockkeeper:{lock:a}", "lockkeeper:{lock:a}:line"].into();
    let call = Call { keys, ..Call::new(Which::Acquire) };
    let error = script(
        &options,
        &call,
        "WRONGTYPE Operation against a key holding the wrong kind of value script: abc",
    );
    assert!(
        error.kind() == ErrorKind::Corrupt
            && error.message().contains("lockkeeper:{lock:a}, lockkeeper:{lock:a}:line"),
        "{error}"
    );
    let denied = "ERR The user executing the script can't run this command or subcommand \
                  script: 4c27, on @user_script:37.";
    let error = script(&options, &call, denied);
    assert_eq!(error.kind(), ErrorKind::Refused);
    for part in ["user ann", "can't run this command", "MGET", "ZADD", "+@write", "~lockkeeper:*"] {
        assert!(error.message().contains(part), "{part}: {error}");
    }
    assert!(!error.message().contains("4c27"), "{error}");
}
