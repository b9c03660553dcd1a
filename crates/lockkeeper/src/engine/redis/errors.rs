//! What a server's error means to the one who reads it: what happened, and what to do.

use super::options::{Address, Layout, RedisOptions};
use super::pipe::Broken;
use super::script::{Call, Which};
use crate::error::{Error, ErrorKind};
use crate::guarantee::Warning;

/// The layout's number that this release writes (R17).
const LAYOUT_VERSION: &str = "1";

/// A grant whose answer was read when its lease was over: whether the lock is still ours is not
/// known (R1).
pub(super) fn read_late() -> Error {
    Error::new(ErrorKind::Unknown, "it was granted, and read only when its lease was over")
}

/// An answer to a claim that is held already: its lease decides.
pub(super) fn crossed() -> Error {
    Error::new(ErrorKind::Unknown, "it was granted while it was asked about")
}

/// Why nothing was sent, or why it is not known what became of it.
pub(in crate::engine) fn broken(options: &RedisOptions, broken: &Broken) -> Error {
    let at = &options.address;
    match broken {
        Broken::NotSent(why) => {
            Error::new(ErrorKind::Unreachable, format!("Redis at {at} cannot be reached: {why}"))
        }
        Broken::Unacknowledged(why) => {
            let text = format!("Redis at {at} did it, and it does not count: {why}");
            Error::new(ErrorKind::Unreachable, text).temporary(true)
        }
        Broken::Unknown(why) => Error::new(
            ErrorKind::Unknown,
            format!(
                "Redis at {at} did not answer, so it is not known whether the request was carried \
                 out: {why}"
            ),
        ),
    }
}

/// A connection that could not be made.
pub(in crate::engine) fn unreachable(address: &Address, why: impl std::fmt::Display) -> Error {
    #[cfg(feature = "sentinel")]
    if let Address::Service(_) = address {
        let text = format!("Redis at {address} cannot be reached: {why}");
        return Error::new(ErrorKind::Unreachable, text);
    }
    Error::new(
        ErrorKind::Unreachable,
        format!(
            "Redis at {address} cannot be reached: {why}; check that it runs and that host and \
             port are right"
        ),
    )
}

/// What the error of a script means: as [`server`], and with the keys or commands that it can be
/// about.
pub(in crate::engine) fn script(options: &RedisOptions, call: &Call, text: &str) -> Error {
    const KEYS_NAMED: usize = 4;
    if text.contains("WRONGTYPE ") && call.keys.len() <= KEYS_NAMED {
        let which = match call.keys.as_slice() {
            [key] => format!("the key {key} is"),
            keys => format!("one of the keys {} is", keys.join(", ")),
        };
        return another_type(options, &which);
    }
    if text.contains("user executing the script can't") {
        let why = text.trim_start_matches("ERR ").split(" script: ").next().unwrap_or_default();
        let commands = call.script.get().commands().collect::<Vec<_>>().join(", ");
        let message = format!(
            "Redis at {} does not let {} do that: {}; the script uses {commands}, and {}",
            options.address,
            who(options),
            lower(why),
            needed(options, "EVALSHA")
        );
        return Error::new(ErrorKind::Refused, message);
    }
    if call.script == Which::Together && text.contains("CROSSSLOT") {
        let message = format!(
            "several locks at once are one script, and the Redis Cluster at {} runs none over keys \
             of several slots: take them one after the other, everywhere in the same order, or \
             keep them on a server that is no cluster",
            options.address
        );
        return Error::new(ErrorKind::Unsupported, message);
    }
    let error = server(options, "EVALSHA", text);
    // The layouts of others have no namespace that a rule could name.
    if options.layout != Layout::Native && text.contains("NOPERM ") && call.keys.len() <= KEYS_NAMED
    {
        return Error::new(
            error.kind(),
            format!("{}; the keys are {}", error.message(), call.keys.join(", ")),
        );
    }
    error
}

fn another_type(options: &RedisOptions, which: &str) -> Error {
    // A lock of the one layout is no lock of the other, and its key has another type.
    let (layout, other) = match options.layout {
        Layout::Native => (None, "namespace"),
        Layout::Redisson => (Some(("redis-py, or of another program", Layout::Plain)), "name"),
        Layout::Plain => (Some(("Redisson", Layout::Redisson)), "name"),
    };
    let lock = layout.map_or(String::new(), |(of, layout)| {
        format!("if it is a lock of {of}, give the URL layout={}; else ", layout.as_str())
    });
    Error::new(
        ErrorKind::Corrupt,
        format!(
            "{which} of another type than lockkeeper writes{}: {lock}rename or delete it, or use \
             another {other}",
            layout.map_or(String::new(), |_| format!(" in layout={}", options.layout.as_str()))
        ),
    )
}

/// What an answer that is an error means. `doing` is the command's name, for permissions.
pub(in crate::engine) fn server(options: &RedisOptions, doing: &str, text: &str) -> Error {
    let at = &options.address;
    if let Some((_, ours)) = text.split_once("LOCKKEEPER ") {
        return of_our_script(ours);
    }
    let (code, rest) = text.split_once(' ').unwrap_or((text, ""));
    let refused = |message: String| Error::new(ErrorKind::Refused, message);
    match code {
        "NOAUTH" => {
            let scheme = if options.resolve.is_some() { "redis+sentinel" } else { "redis" };
            refused(format!(
                "Redis at {at} wants a password: put it into the URL \
                 ({scheme}://user:password@host) or use password_file"
            ))
        }
        "WRONGPASS" => refused(format!(
            "Redis at {at} does not accept this user and password{}",
            user_of(options)
        )),
        "ERR" if rest.contains("AUTH") && rest.contains("without any password configured") => {
            refused(format!(
                "Redis at {at} has no password for the default user, but the URL gives one: take \
                 it out, or name the user it belongs to"
            ))
        }
        "NOPERM" => refused(format!(
            "Redis at {at} does not let {} do that: {}; {}",
            who(options),
            lower(rest),
            needed(options, doing)
        )),
        "READONLY" => {
            refused(format!("Redis at {at} is a read-only replica: give the URL of its primary"))
        }
        "OOM" => refused(format!(
            "Redis at {at} is out of memory (maxmemory): free some or raise the limit"
        ))
        .temporary(true),
        "MISCONF" => refused(format!(
            "Redis at {at} refuses writes because it cannot save to its disk: {}",
            lower(rest)
        ))
        .temporary(true),
        "NOREPLICAS" => {
            let text = format!(
                "Redis at {at} refuses writes because too few replicas are connected \
                 (min-replicas-to-write)"
            );
            // After a failover replicas come back by themselves: callers wait for that.
            let away = options.resolve.is_some();
            let kind = if away { ErrorKind::Unreachable } else { ErrorKind::Refused };
            Error::new(kind, text).temporary(true)
        }
        "LOADING" | "BUSY" | "MASTERDOWN" | "TRYAGAIN" => Error::new(
            ErrorKind::Unreachable,
            format!("Redis at {at} is not ready: {}", lower(rest)),
        ),
        "WRONGTYPE" => another_type(options, "a key is"),
        "MOVED" | "CLUSTERDOWN" | "CROSSSLOT" | "ASK" => cluster(at),
        _ if rest.contains("unknown command") && doing.starts_with("EVAL") => refused(format!(
            "Redis at {at} does not know {doing}, and every lock is a script: allow EVALSHA and \
             EVAL (rename-command in its configuration)"
        )),
        _ if rest.contains("unknown command") => Error::new(
            ErrorKind::Unsupported,
            format!(
                "the server at {at} does not know {doing}: lockkeeper needs Redis or Valkey 6 or \
                 newer"
            ),
        ),
        _ if rest.contains("maximum memory") || rest.contains("OOM command not allowed") => {
            refused(format!(
                "Redis at {at} is out of memory (maxmemory): free some or raise the limit"
            ))
            .temporary(true)
        }
        _ if text.contains("max number of clients") => {
            refused(format!("Redis at {at} has as many clients as it takes (maxclients)"))
                .temporary(true)
        }
        _ if text.contains("protected mode") => refused(format!(
            "Redis at {at} is in protected mode: it has no password and takes connections from its \
             own machine only"
        )),
        // Errors inside a script carry the inner code somewhere in their text.
        _ => inner(options, doing, text).unwrap_or_else(|| {
            refused(format!("Redis at {at} answered {doing} with an error: {text}"))
        }),
    }
}

fn inner(options: &RedisOptions, doing: &str, text: &str) -> Option<Error> {
    let codes = [
        "WRONGTYPE",
        "READONLY",
        "OOM",
        "MISCONF",
        "NOREPLICAS",
        "CLUSTERDOWN",
        "MOVED",
        "NOPERM",
        "CROSSSLOT",
    ];
    let at = codes.iter().filter_map(|code| text.find(&format!("{code} "))).min()?;
    if at == 0 { None } else { Some(server(options, doing, text.get(at..)?)) }
}

pub(in crate::engine) fn of_our_script(text: &str) -> Error {
    let mut words = text.split(' ');
    match (words.next(), words.next()) {
        (Some("NEWER"), Some(version)) => Error::new(
            ErrorKind::NewerLayout,
            format!(
                "the record was written with layout {version} and this release knows \
                 {LAYOUT_VERSION}: use a newer lockkeeper"
            ),
        ),
        (Some("CORRUPT"), Some(key)) => Error::new(
            ErrorKind::Corrupt,
            format!(
                "the record in the key {key} cannot be read: look at it, then delete it to repair \
                 the lock"
            ),
        ),
        (Some("TYPE"), Some(key)) => Error::new(
            ErrorKind::Corrupt,
            format!(
                "the key {key} is of another type than lockkeeper writes: rename or delete it, or \
                 use another namespace"
            ),
        ),
        (Some("FENCE"), Some(key)) => Error::new(
            ErrorKind::Corrupt,
            format!(
                "the key {key} holds no tokens, so every request is refused: look at it, then \
                 delete it"
            ),
        ),
        _ => Error::new(ErrorKind::Corrupt, format!("a script failed: {text}")),
    }
}

/// The URL to use for a node of a cluster.
pub(in crate::engine) fn cluster(at: &Address) -> Error {
    Error::new(
        ErrorKind::InvalidArgument,
        format!("the server at {at} is a node of a Redis Cluster: use redis+cluster://{at}"),
    )
}

/// The URL to use for a sentinel.
pub(in crate::engine) fn sentinel(at: &Address) -> Error {
    Error::new(
        ErrorKind::InvalidArgument,
        format!(
            "the server at {at} is a Sentinel: use redis+sentinel://{at}/SERVICE with the \
             service's name"
        ),
    )
}

/// What came back is nothing that our script says.
pub(in crate::engine) fn garbage(options: &RedisOptions) -> Error {
    Error::new(
        ErrorKind::Corrupt,
        format!("Redis at {} gave an answer that cannot be understood", options.address),
    )
}

fn user_of(options: &RedisOptions) -> String {
    options.user.as_ref().map(|user| format!(" (user {user})")).unwrap_or_default()
}

fn who(options: &RedisOptions) -> String {
    options
        .user
        .as_ref()
        .map_or_else(|| "the default user".to_owned(), |user| format!("user {user}"))
}

/// Nobody hears of a lock that is free again.
pub(in crate::engine) fn unheard(options: &RedisOptions) -> Warning {
    let text = format!(
        "{} may not publish, so a waiter is not woken and finds a free lock up to 5 s late: {}",
        who(options),
        rule(options)
    );
    Warning { id: "publish-refused", text }
}

/// The rule that lets a user do all that a layout needs.
fn rule(options: &RedisOptions) -> String {
    let user = options.user.as_deref().unwrap_or("default");
    let commands = "+@scripting +@read +@write +@pubsub +@connection +time";
    match options.layout {
        Layout::Native => {
            format!("allow it with ACL SETUSER {user} ~{0}:* &{0}:* {commands}", options.namespace)
        }
        Layout::Redisson | Layout::Plain => {
            format!(
                "allow it with ACL SETUSER {user} {commands}, and with ~ and & \
                 patterns that match its names' keys and channels"
            )
        }
    }
}

/// "This user has no permissions to run the 'evalsha' command" names the command; the help says
/// what all is needed.
fn needed(options: &RedisOptions, doing: &str) -> String {
    let keys = match options.layout {
        Layout::Native => {
            format!("the keys and channels of the namespace (~{0}:* &{0}:*)", options.namespace)
        }
        Layout::Redisson | Layout::Plain => "the names' keys and channels".to_owned(),
    };
    format!("{doing} needs {keys}: {}", rule(options))
}

fn lower(text: &str) -> String {
    let mut chars = text.trim_end_matches('.').chars();
    chars.next().map(|c| c.to_lowercase().chain(chars).collect()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

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
            (
                "READONLY You can't write against a read only replica.",
                ErrorKind::Refused,
                "primary",
            ),
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
    fn a_refused_key_of_another_layout_is_named_and_no_placeholder_is_advised() {
        let mut options = RedisOptions::new(Address::Tcp("h".into(), 1));
        let call = Call {
            script: Which::PlainAcquire,
            keys: vec!["fleet/a".into()],
            arguments: Vec::new(),
        };
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
                error.message().contains(advice)
                    && error.message().ends_with("; the keys are fleet/a"),
                "{error}"
            );
        }
    }

    #[test]
    fn the_error_of_a_script_names_its_keys_and_what_its_user_may_lack() {
        let mut options = RedisOptions::new(Address::Tcp("h".into(), 1));
        options.user = Some("ann".into());
        let keys = vec!["lockkeeper:{lock:a}".into(), "lockkeeper:{lock:a}:line".into()];
        let call = Call { script: Which::Acquire, keys, arguments: Vec::new() };
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
        for part in
            ["user ann", "can't run this command", "MGET", "ZADD", "+@write", "~lockkeeper:*"]
        {
            assert!(error.message().contains(part), "{part}: {error}");
        }
        assert!(!error.message().contains("4c27"), "{error}");
    }
}
