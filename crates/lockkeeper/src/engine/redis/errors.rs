//! What a server's error means to the one who reads it: what happened, and what to do.

use super::options::{Address, Layout, RedisOptions};
use super::pipe::Broken;
use super::script::{Call, Which};
use crate::open::table::scheme_hint;
use crate::words::error::{Error, ErrorKind};
use crate::words::guarantee::Warning;

/// The layout that this release knows where a script does not name it: of latches and of a quorum
/// (R17).
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
    let (Broken::NotSent(why) | Broken::Unknown(why) | Broken::Unacknowledged(why)) = broken;
    if let Some((kind, is_outage)) = why.message_of {
        let error = Error::new(kind, why.to_string());
        return if is_outage { error.waited_out() } else { error };
    }
    let at = why.at.as_ref().unwrap_or(&options.address);
    match broken {
        Broken::NotSent(why) => {
            Error::new(ErrorKind::Unreachable, format!("Redis at {at} cannot be reached: {why}"))
        }
        Broken::Unacknowledged(why) => {
            let text =
                format!("the write on Redis at {at} does not count: {why}; look at its replicas");
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

/// Of several servers none can be used: one that is full can be reached, and refuses us.
#[cfg(feature = "cluster")]
pub(in crate::engine) fn refused_by_one(errors: &[Error], text: String) -> Error {
    let full = |error: &&Error| error.kind() == ErrorKind::Refused && error.is_outage();
    if let Some(full) = errors.iter().find(full) {
        return Error::new(full.kind(), text).no_room();
    }
    Error::new(ErrorKind::Unreachable, text)
}

/// What the error of a script means: as [`server`], and with the keys or commands that it can be
/// about.
pub(in crate::engine) fn script(options: &RedisOptions, call: &Call, text: &str) -> Error {
    const KEYS_NAMED: usize = 4;
    if text.contains("WRONGTYPE ") && call.keys.len() <= KEYS_NAMED {
        let keys: Vec<&str> = call.keys.iter().collect();
        let which = match keys[..] {
            [key] => format!("the key {key} is"),
            _ => format!("one of the keys {} is", keys.join(", ")),
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
        let keys: Vec<&str> = call.keys.iter().collect();
        return Error::new(
            error.kind(),
            format!("{}; the keys are {}", error.message(), keys.join(", ")),
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

/// Whether this answer of a server may come of a script that ran half: on a node of a cluster a key
/// that a script deletes while its slot is being moved counts as moved.
pub(in crate::engine) fn ran_half(text: &str) -> bool {
    text.contains("attempted to access a non local key")
}

/// Whether a server answers so that takes no writes for now, and did nothing.
pub(in crate::engine) fn takes_no_writes(text: &str) -> bool {
    let words = ["OOM ", "MISCONF ", "NOREPLICAS ", "maximum memory"];
    words.iter().any(|word| text.contains(word))
}

/// Whether a greeting was refused for its password, for want of one, or for one too many.
pub(in crate::engine) fn is_about_password(text: &str) -> bool {
    let begins = ["WRONGPASS ", "NOAUTH "].iter().any(|code| text.starts_with(code));
    begins || text.contains("without any password configured")
}

/// What an answer that is an error means. `doing` is the command's name, for permissions.
pub(in crate::engine) fn server(options: &RedisOptions, doing: &str, text: &str) -> Error {
    let at = &options.address;
    if let Some((_, ours)) = text.split_once("LOCKKEEPER ") {
        return of_our_script(ours);
    }
    if ran_half(text) {
        let text = format!(
            "the slot of this name is being moved away from the Redis at {at}, so it is not known \
             whether the request was carried out: {text}"
        );
        return Error::new(ErrorKind::Unknown, text);
    }
    let (code, rest) = text.split_once(' ').unwrap_or((text, ""));
    let refused = |message: String| Error::new(ErrorKind::Refused, message);
    match code {
        "NOAUTH" => {
            let login = options.spelling.login;
            refused(format!(
                "Redis at {at} wants a password: put it into the URL ({login}) or use \
                 password_file"
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
        // Both pass: whoever waits goes on waiting, as where it takes no more clients.
        "OOM" => out_of_memory(at),
        "MISCONF" => refused(format!(
            "Redis at {at} refuses writes because it cannot save to its disk: {}",
            lower(rest)
        ))
        .no_room(),
        "NOREPLICAS" => {
            let text = format!(
                "Redis at {at} refuses writes because too few replicas are connected \
                 (min-replicas-to-write)"
            );
            // After a failover replicas come back by themselves: callers wait for that.
            let away = options.moves();
            let kind = if away { ErrorKind::Unreachable } else { ErrorKind::Refused };
            Error::new(kind, text).temporary(true)
        }
        "LOADING" | "BUSY" | "MASTERDOWN" | "TRYAGAIN" => Error::new(
            ErrorKind::Unreachable,
            format!("Redis at {at} is not ready: {}", lower(rest)),
        ),
        "WRONGTYPE" => another_type(options, "a key is"),
        "CROSSSLOT" if options.in_cluster => Error::new(
            ErrorKind::InvalidArgument,
            format!(
                "the keys of this name are in several slots of the Redis Cluster at {at}, and no \
                 script is about several: leave braces out of the name"
            ),
        ),
        "MOVED" | "CLUSTERDOWN" | "ASK" if options.in_cluster => Error::new(
            ErrorKind::Unreachable,
            format!("the cluster's node at {at} is not ready: {}", lower(rest)),
        ),
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
            out_of_memory(at)
        }
        _ if text.contains("max number of clients") => {
            refused(format!("Redis at {at} has as many clients as it takes (maxclients)")).no_room()
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

fn out_of_memory(at: &Address) -> Error {
    let text = format!("Redis at {at} is out of memory (maxmemory): free some or raise the limit");
    Error::new(ErrorKind::Refused, text).no_room()
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

/// The record that a key belongs to.
fn record_of(key: &str) -> &str {
    let beside = [":line", ":last"].iter().find_map(|rest| key.strip_suffix(rest));
    beside.filter(|record| record.ends_with('}')).unwrap_or(key)
}

pub(in crate::engine) fn of_our_script(text: &str) -> Error {
    let mut words = text.split(' ');
    let (what, about) = (words.next(), words.next());
    // Behind it Redis says which script it was.
    let known = words.next().filter(|word| word.bytes().all(|b| b.is_ascii_digit()));
    let known = known.unwrap_or(LAYOUT_VERSION);
    match (what, about) {
        (Some("NEWER"), Some(version)) => Error::new(
            ErrorKind::NewerLayout,
            format!(
                "the record was written with layout {version} and this release knows {known}: use \
                 a newer lockkeeper"
            ),
        ),
        (Some("OLDER"), Some(version)) => Error::new(
            ErrorKind::Corrupt,
            format!(
                "the record was written with layout {version} by an older lockkeeper, and this \
                 release knows {known}: use the older one here, too, or stop it everywhere and \
                 delete the keys {record}, {record}:line and {record}:last",
                record = record_of(words.next().unwrap_or("of that name")),
            ),
        ),
        (Some("FULL"), Some(key)) => {
            let those = if key.ends_with(":readers") { "readers hold" } else { "claims wait for" };
            let text = format!("16384 {those} this name already: ask later");
            Error::new(ErrorKind::Refused, text).temporary(true)
        }
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

/// What each of several servers said, in one line. What several say alike is said once.
#[cfg(any(feature = "sentinel", feature = "redlock", feature = "cluster"))]
pub(in crate::engine) fn each_once(said: &[(Address, Error)]) -> String {
    /// In place of an address; no message has it.
    const HERE: &str = "\0";
    let mut groups: Vec<(String, Vec<(String, &str)>)> = Vec::new();
    for (at, error) in said {
        let (at, message) = (at.to_string(), error.message());
        let alike = message.replace(&at, HERE);
        match groups.iter_mut().find(|(known, _)| *known == alike) {
            Some((_, those)) => those.push((at, message)),
            None => groups.push((alike, vec![(at, message)])),
        }
    }
    let told = groups.iter().map(|(_, those)| {
        let more: Vec<&str> = those.iter().skip(1).map(|(at, _)| at.as_str()).collect();
        let first = those.first().map(|(_, message)| *message).unwrap_or_default();
        match more.as_slice() {
            [] => first.to_owned(),
            more => format!("{first}; the same at {}", more.join(", ")),
        }
    });
    told.collect::<Vec<_>>().join("; ")
}

/// The URL to use for a node of a cluster.
pub(in crate::engine) fn cluster(at: &Address) -> Error {
    let hint = scheme_hint("redis+cluster", &format!("redis+cluster://{at}"));
    let text = format!("the server at {at} is a node of a Redis Cluster: {hint}");
    Error::new(ErrorKind::InvalidArgument, text)
}

/// A server that listens where a node of the cluster was.
#[cfg(feature = "cluster")]
pub(in crate::engine) fn no_node(at: &Address) -> Error {
    let text = format!(
        "the server at {at} is no node of a Redis Cluster: it has the address of one, and is not \
         used until the nodes say where else the slots are"
    );
    Error::new(ErrorKind::Unreachable, text).temporary(true)
}

/// A node that is not the one that was there.
#[cfg(feature = "cluster")]
pub(in crate::engine) fn another_node(at: &Address) -> Error {
    let text = format!(
        "the server at {at} is another node than the one that the cluster has there: it is not \
         used until the nodes say that it is theirs"
    );
    Error::new(ErrorKind::Unreachable, text).temporary(true)
}

/// The URL to use for a sentinel.
pub(in crate::engine) fn sentinel(at: &Address) -> Error {
    let hint = scheme_hint("redis+sentinel", &format!("redis+sentinel://{at}/SERVICE"));
    let text = format!("the server at {at} is a Sentinel: {hint} with the service's name");
    Error::new(ErrorKind::InvalidArgument, text)
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

/// Who waits for a key that any program may delete is not told of that.
pub(in crate::engine) fn untold(options: &RedisOptions) -> Warning {
    let text = format!(
        "{} may not have CLIENT TRACKING, so a waiter is not woken and finds a free lock up to \
         5 s late: {}",
        who(options),
        rule(options)
    );
    Warning { id: "tracking-refused", text }
}

/// Whoever waits cannot listen, and ends with that error.
pub(in crate::engine) fn listens_to_nobody(error: &Error) -> Warning {
    let text = format!("locks can be had here, and nobody can wait for one: {}", error.message());
    Warning { id: "subscribe-refused", text }
}

/// The same of a member of a quorum, whose others let words through.
#[cfg(feature = "redlock")]
pub(in crate::engine) fn unheard_at_one(options: &RedisOptions) -> Warning {
    let text = format!(
        "{} may not publish on the member {}: without another one a waiter is not woken, and finds \
         a free lock up to 5 s late: {}",
        who(options),
        options.address,
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
mod tests;
