//! A release is with the kernel when a guard's drop returns, whatever the driver does (B5).

use std::future::{Future, poll_fn};
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::{Child, Command as Program, Stdio};
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::task::{Context, Poll};
use std::time::Duration;

use super::super::native::Native;
use super::super::opened::{Opened as _, Server};
use super::super::options::{Address, RedisOptions, RedissonLock, Tls, Wait};
use super::super::pipe::Pipe;
use super::super::resp::Command;
use super::super::script::Which;
use super::interop::{plain, redisson};
use super::server::RedisServer;
use super::support::{PATIENCE, Process, granted, options, patient, until};
use crate::engine::at_exit::AtRisk;
use crate::engine::stream::Stream;
use crate::engine::tls::Files;
use crate::engine::{Answer, End, Engine as _, Released};
use crate::words::claim::Claim;
use crate::words::id::HoldId;
use crate::{Guard, Locks};

/// TLS with servers of this authority.
pub(super) fn trusting(ca: std::path::PathBuf) -> Tls {
    Tls::new(Files { ca: Some(ca), certificate: None }, None)
}

/// No lease ends within a test.
const LONG: Duration = PATIENCE.saturating_mul(5);

/// A server that speaks TLS beside its own port.
struct Secure {
    server: RedisServer,
    port: u16,
    ca: std::path::PathBuf,
    _dir: tempfile::TempDir,
}

impl Secure {
    fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let made = lockkeeper_testkit::servers::certificates::make(dir.path());
        let (server, port) = RedisServer::start_with_tls(&made, &["--tls-auth-clients", "no"]);
        Self { server, port, ca: made.join("ca.pem"), _dir: dir }
    }

    /// These options, over TLS.
    fn over_tls(&self, options: RedisOptions) -> RedisOptions {
        let tls = trusting(self.ca.clone());
        let address = Address::Tcp("localhost".into(), self.port);
        RedisOptions { address, tls: Some(tls), ..options }
    }

    fn url(&self) -> String {
        format!("rediss://localhost:{}?tls_ca={}", self.port, self.ca.display())
    }
}

/// Holds of a process, whose leases end in no test.
fn take(process: &Process, names: &[String]) -> Vec<HoldId> {
    let take = |name: &String| {
        let claim = Claim { ttl: LONG, ..process.exclusive(name) };
        granted(process.attempt(&claim));
        claim.id
    };
    names.iter().map(take).collect()
}

/// Gives holds back one after the other while the thread that drives the connection stands still,
/// and waits meanwhile until none of these keys is there.
fn give_back(process: &Process, holds: &[HoldId], server: &RedisServer, keys: &[String]) {
    let stalled = process.stall();
    let released: Vec<Answer<Released>> =
        holds.iter().map(|hold| process.engine.release(&[*hold], None)).collect();
    until_free(server, keys);
    drop(stalled);
    for answer in released {
        let Released { ends, .. } = process.wait(answer);
        assert!(matches!(ends.as_slice(), [End::Freed]), "{ends:?}");
    }
}

fn until_free(server: &RedisServer, keys: &[String]) {
    let mut exists = vec!["EXISTS"];
    exists.extend(keys.iter().map(String::as_str));
    until("the server has freed them all", || server.command(&exists) == ["0"]);
}

fn names(count: usize) -> Vec<String> {
    (0..count).map(|n| format!("n{n}")).collect()
}

pub(super) fn native_keys(names: &[String]) -> Vec<String> {
    names.iter().map(|name| format!("lockkeeper:{{lock:{name}}}")).collect()
}

/// The keys of names.
type KeysOf = fn(&[String]) -> Vec<String>;

#[test]
fn r6_b5_releases_in_a_row_reach_a_server_that_has_not_seen_them_while_the_driver_stands_still() {
    for transport in ["TCP", "unix", "TLS"] {
        let secure = Secure::start();
        let server = &secure.server;
        let over = |options: RedisOptions| match transport {
            "TCP" => options,
            "unix" => RedisOptions { address: Address::Unix(server.socket()), ..options },
            _ => secure.over_tls(options),
        };
        let layouts: [(RedisOptions, KeysOf); 3] = [
            (options(server.port()), native_keys),
            (plain(server), <[String]>::to_vec),
            (redisson(server, RedissonLock::Plain), <[String]>::to_vec),
        ];
        for (options, keys_of) in layouts {
            let process = Process::with(over(patient(options)));
            // The first time the server has no script that gives back, and the second time it has.
            // Other names then: whoever had one for long lets others pass.
            for names in names(10).chunks(5) {
                let (holds, keys) = (take(&process, names), keys_of(names));
                assert_ne!(server.command(&["EXISTS", &keys[0]]), ["0"]);
                give_back(&process, &holds, server, &keys);
            }
        }
    }
}

#[test]
fn r6_b5_a_release_brings_its_script_along_where_the_server_lacks_it_and_nowhere_else() {
    let server = RedisServer::start();
    let (names, sha) = (names(3), Which::Release.get().sha());
    let keys = native_keys(&names);
    let calls = || {
        let counts = server.command_counts();
        let of = |command: &str| counts.get(command).copied().unwrap_or(0);
        (of("eval"), of("evalsha"))
    };
    let gives_back = |process: &Process, (in_full, by_name): (u64, u64), what: &str| {
        let holds = take(process, &names);
        let before = calls();
        give_back(process, &holds, &server, &keys);
        let after = calls();
        assert_eq!((after.0 - before.0, after.1 - before.1), (in_full, by_name), "{what}");
    };
    let process = || Process::with(patient(options(server.port())));
    let first = process();
    gives_back(&first, (1, 2), "the first brings it along for those behind it");
    gives_back(&first, (0, 3), "from then on the server has it");
    let other = process();
    gives_back(&other, (0, 3), "the greeting says that it has it");
    server.command(&["SCRIPT", "FLUSH"]);
    server.command(&["CLIENT", "KILL", "SKIPME", "yes"]);
    other.link(false);
    other.link(true);
    assert_eq!(server.command(&["SCRIPT", "EXISTS", sha]), ["0"]);
    gives_back(&other, (1, 2), "and that of the next connection that it has it not");
    // Behind its back: one more round trip tells, and that is all.
    server.command(&["SCRIPT", "FLUSH"]);
    let holds = take(&other, &names[..1]);
    assert!(matches!(other.release(holds[0]), End::Freed));
    assert_eq!(server.command(&["SCRIPT", "EXISTS", sha]), ["1"]);
}

#[test]
fn the_first_release_that_is_awaited_is_one_message_where_the_server_lacks_the_script() {
    let server = RedisServer::start();
    let process = Process::of(&server);
    let calls = || {
        let counts = server.command_counts();
        ["eval", "evalsha"].map(|name| counts.get(name).copied().unwrap_or(0))
    };
    for (hold, sent) in take(&process, &names(2)).into_iter().zip([[1, 0], [0, 1]]) {
        let before = calls();
        let Released { ends, .. } = process.wait(process.engine.release_awaited(&[hold], None));
        assert!(matches!(ends.as_slice(), [End::Freed]), "{ends:?}");
        let after = calls();
        assert_eq!(
            [after[0] - before[0], after[1] - before[1]],
            sent,
            "with its text, and without"
        );
    }
}

#[test]
fn r6_b5_a_release_does_not_wait_behind_replicas_nor_for_the_second_connection() {
    let server = RedisServer::start();
    let wait = Some(Wait { replicas: 0, timeout: Duration::from_millis(100) });
    let options = RedisOptions { wait, ..patient(options(server.port())) };
    let engine = Arc::new(Server::<Native>::new(options, None, ()));
    let process = Process::around(engine.clone()).unwrap();
    let names = names(5);
    let holds = take(&process, &names);
    // As before it was connected.
    engine.opened().unwrap().links().side().close();
    let stalled = process.stall();
    let released: Vec<_> =
        holds.iter().map(|hold| process.engine.release(&[*hold], None)).collect();
    until_free(&server, &native_keys(&names));
    drop((stalled, released));
    assert!(engine.inlet().is_some());
    assert!(engine.inlet_of_releases().is_none(), "their answers come in elsewhere");
}

#[test]
fn r6_b5_a_release_that_went_over_the_first_connection_is_followed_there() {
    for replicas in [0, 1] {
        let server = RedisServer::start();
        let port = server.port().to_string();
        let replica = RedisServer::start_with(&["--replicaof", "127.0.0.1", &port]);
        let follows = || replica.command(&["INFO", "replication"]).concat();
        until("it follows", || follows().contains("master_link_status:up"));
        let wait = Some(Wait { replicas, timeout: Duration::from_secs(2) });
        let options = RedisOptions { wait, request_timeout: PATIENCE, ..options(server.port()) };
        let engine = Arc::new(Server::<Native>::new(options, None, ()));
        let process = Process::around(engine.clone()).unwrap();
        let holds = take(&process, &names(2));
        // From here on a WAIT for it fails.
        drop(replica);
        engine.opened().unwrap().links().side().close();
        assert!(matches!(process.release(holds[0]), End::Freed), "it brings its script along");
        // Nothing is run by a name that the server has lost, so it is sent once more.
        server.command(&["SCRIPT", "FLUSH"]);
        let end = process.release(holds[1]);
        assert!(matches!(end, End::Freed), "{replicas}: {end:?}");
    }
}

/// Not a test of its own: what the other processes of the tests below do. Run as a test it has
/// nothing to do.
#[test]
fn helper() {
    let Ok(role) = std::env::var("LOCKKEEPER_TEST_ROLE") else { return };
    let at = std::env::var("LOCKKEEPER_TEST_AT").unwrap();
    match role.as_str() {
        "full" => {
            let (pipe, _thread) = over_socket(&at);
            let word = "w".repeat(100_000);
            for _ in 0..FILLING {
                drop(pipe.send(&[Command::new(["ECHO", &word])]));
            }
            drop(pipe.send_now(&[Command::new(["GIVE", "BACK"])]));
            say("given back");
            std::process::exit(0);
        }
        "exit" => {
            let (_runtime, _locks, guards) = hold(&at, 5);
            drop(guards);
            std::process::exit(0);
        }
        "exit in a crowd" => {
            let (_runtime, _locks, guards) = hold(&at, 50);
            drop(guards);
            std::process::exit(0);
        }
        "exit while releases are awaited" => {
            let (runtime, _locks, guards) = hold(&at, 50);
            say("held");
            // Until it is told to go on, or waited for.
            std::io::stdin().read_line(&mut String::new()).unwrap();
            runtime.block_on(begin(guards.into_iter().map(Guard::release)));
            std::process::exit(0);
        }
        "leave awaited releases while the keeper stands still" => {
            let (runtime, locks, guards) = hold(&at, 50);
            crowd(&runtime, &locks, "other");
            stall(&locks);
            runtime.block_on(begin(guards.into_iter().map(Guard::release)));
            say("left");
            std::thread::park();
        }
        "exit while the keeper stands still" => {
            let (_runtime, locks, guards) = hold(&at, 1);
            stall(&locks);
            drop(guards);
            std::process::exit(0);
        }
        "end of main" => {
            let (runtime, locks, guards) = hold(&at, 1);
            stall(&locks);
            drop(guards);
            std::mem::forget((runtime, locks));
        }
        "fork" => {
            let (runtime, _locks, guards) = hold(&at, 1);
            let _at_risk = AtRisk::begin();
            // SAFETY: the child has this thread alone. It drops a guard of its parent's, which does
            // nothing there, and ends.
            match unsafe { nix::unistd::fork() }.unwrap() {
                nix::unistd::ForkResult::Child => {
                    drop(guards);
                    // SAFETY: what runs at the end takes no lock that a thread of the parent had.
                    unsafe { nix::libc::exit(0) }
                }
                nix::unistd::ForkResult::Parent { child } => {
                    nix::sys::wait::waitpid(child, None).unwrap();
                    for guard in &guards {
                        runtime.block_on(guard.verify()).unwrap();
                    }
                    say("still held");
                    // SAFETY: ends the process at once, and nothing is given back.
                    unsafe { nix::libc::_exit(0) }
                }
            }
        }
        other => panic!("{other}"),
    }
}

/// More than a socket takes.
pub(super) const FILLING: usize = 100;

fn over_socket(path: &str) -> (Pipe, std::thread::JoinHandle<String>) {
    let stream = UnixStream::connect(path).unwrap();
    stream.set_nonblocking(true).unwrap();
    let (tell, told) = channel();
    let thread = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let stream = Stream::Unix(tokio::net::UnixStream::from_std(stream).unwrap());
            let (pipe, driver) = Pipe::new(stream, PATIENCE, Arc::new(|_, _| {}));
            tell.send(pipe).unwrap();
            driver.await
        })
    });
    (told.recv().unwrap(), thread)
}

fn hold(url: &str, count: usize) -> (tokio::runtime::Runtime, Locks, Vec<Guard>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    #[cfg(feature = "redlock")]
    if url.starts_with("redlock-lab:") {
        Locks::register(crate::redlock_laboratory()).unwrap();
    }
    let (locks, guards) = runtime.block_on(async {
        let locks = Locks::builder().io_enabled().open(url).await.unwrap();
        let mut guards = Vec::new();
        for name in names(count) {
            guards.push(locks.mutex(&name).lock().ttl(LONG).await.unwrap());
        }
        (locks, guards)
    });
    (runtime, locks, guards)
}

/// Asks with each of them once, and leaves all of them then.
async fn begin<F: Future>(futures: impl Iterator<Item = F>) {
    let mut futures: Vec<_> = futures.map(Box::pin).collect();
    let mut poll = |context: &mut Context<'_>| {
        futures.iter_mut().for_each(|future| _ = future.as_mut().poll(context));
        Poll::Ready(())
    };
    poll_fn(&mut poll).await;
}

/// The keeper's thread sees a crowd, and that callers read.
fn crowd(runtime: &tokio::runtime::Runtime, locks: &Locks, word: &str) {
    runtime.block_on(async {
        let mut tasks = tokio::task::JoinSet::new();
        for n in 0..64 {
            let mutex = locks.mutex(format!("{word}/{n}"));
            tasks.spawn(async move { _ = mutex.lock().await.unwrap().release().await });
        }
        tasks.join_all().await;
    });
}

/// The thread of the keeper does nothing any more.
fn stall(locks: &Locks) {
    let (stalled, began) = channel();
    locks.keeper.run(async move {
        stalled.send(()).unwrap();
        std::thread::park();
        unreachable!("nobody wakes it");
    });
    began.recv().unwrap();
}

fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    writeln!(out, "\n{line}").unwrap();
    out.flush().unwrap();
}

/// Another process.
pub(in crate::engine) fn program(role: &str, at: &str) -> Program {
    let mut program = Program::new(std::env::current_exe().unwrap());
    program
        .args(["--exact", "engine::redis::tests::releases::helper", "--nocapture"])
        .env("LOCKKEEPER_TEST_ROLE", role)
        .env("LOCKKEEPER_TEST_AT", at)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    program
}

/// Another process, which waits at its end for as long as something is at risk.
pub(in crate::engine) fn start(role: &str, at: &str) -> Child {
    program(role, at).env("LOCKKEEPER_TEST_WAITS_AT_EXIT", "1").spawn().unwrap()
}

/// Reads what the process says until it says this.
pub(in crate::engine) fn hear(child: &mut Child, what: &str) {
    let mut out = BufReader::new(child.stdout.as_mut().unwrap());
    let mut line = String::new();
    while line.trim() != what {
        line.clear();
        assert!(out.read_line(&mut line).unwrap() > 0, "it ended before it said {what:?}");
    }
}

#[test]
fn r6_b5_what_the_socket_did_not_take_when_a_guard_was_dropped_is_written_before_exit_ends() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("socket");
    let listener = UnixListener::bind(&path).unwrap();
    let mut child = start("full", path.to_str().unwrap());
    let (mut server, _) = listener.accept().unwrap();
    server.set_read_timeout(Some(PATIENCE)).unwrap();
    // It has dropped its guard, and nothing was read.
    hear(&mut child, "given back");
    let mut last = Vec::new();
    Command::new(["GIVE", "BACK"]).encode(&mut last);
    let (mut got, mut some) = (Vec::new(), vec![0; 1 << 20]);
    while !got.ends_with(&last) {
        let count = server.read(&mut some).unwrap();
        assert!(count > 0, "it ended with {} bytes, and without the release", got.len());
        got.extend_from_slice(&some[..count]);
    }
    // It waits for the answers to what came before: a server that cannot give them may end the
    // connection before it reads the rest.
    assert_eq!(child.try_wait().unwrap(), None);
    server.write_all("$1\r\nw\r\n".repeat(FILLING).as_bytes()).unwrap();
    assert!(child.wait().unwrap().success());
}

#[test]
fn r6_b5_a_server_that_reads_nothing_keeps_no_process_from_ending() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("socket");
    let listener = UnixListener::bind(&path).unwrap();
    let mut child = program("full", path.to_str().unwrap()).spawn().unwrap();
    let server = listener.accept().unwrap();
    hear(&mut child, "given back");
    assert!(child.wait().unwrap().success());
    drop(server);
}

#[test]
fn r6_b5_a_process_that_ends_right_after_a_drop_leaves_nothing_held() {
    let secure = Secure::start();
    let keys = native_keys(&names(50));
    for url in [secure.server.url(), secure.url()] {
        let roles = [
            "exit",
            "exit in a crowd",
            "exit while releases are awaited",
            "exit while the keeper stands still",
            "end of main",
        ];
        for role in roles {
            // Neither knows the server the script.
            secure.server.command(&["SCRIPT", "FLUSH"]);
            let mut child = start(role, &url);
            assert!(child.wait().unwrap().success(), "{role} of {url}");
            until_free(&secure.server, &keys);
        }
    }
}

#[test]
fn r5_awaited_releases_that_are_left_are_written_though_the_keeper_stands_still() {
    let server = RedisServer::start();
    for round in 0..5 {
        let (runtime, locks, guards) = hold(&server.url(), 50);
        crowd(&runtime, &locks, &format!("other{round}"));
        stall(&locks);
        runtime.block_on(begin(guards.into_iter().map(Guard::release)));
        until_free(&server, &native_keys(&names(50)));
        std::mem::forget((runtime, locks));
    }
}

#[test]
fn r15_b5_a_forked_child_gives_nothing_back_and_waits_for_nothing_when_it_ends() {
    let server = RedisServer::start();
    let mut child = start("fork", &server.url());
    hear(&mut child, "still held");
    assert!(child.wait().unwrap().success());
    assert_eq!(server.command(&["EXISTS", &native_keys(&names(1))[0]]), ["1"]);
}
