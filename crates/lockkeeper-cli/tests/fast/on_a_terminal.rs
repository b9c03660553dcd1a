//! The rules of `run` that need a terminal.

use lockkeeper_testkit::redis::server::RedisServer;
use nix::sys::signal::Signal;

use crate::common::terminal::Terminal;
use crate::common::{self, Place, group, is_alive, json, number, state, until, until_true};

/// A session whose leader is a script with lockkeeper in `$LK`.
fn script(place: &Place, text: &str) -> Terminal {
    Terminal::start(place.sh(text))
}

fn is_stopped(pid: i32) -> bool {
    state(pid) == Some('T')
}

#[test]
fn the_first_line_on_a_terminal_says_that_other_hosts_do_not_see_a_lock_of_the_default_engine() {
    const SAYS: &str = "other hosts do not see it";
    let place = Place::new();
    for (words, says) in [
        ("run a -- true", true),
        ("acquire a --for 10ms", true),
        ("elect a -- true", true),
        ("run -q a -- true", false),
        ("--url \"file://$PWD/locks\" run a -- true", false),
    ] {
        let nothing = "unset LOCKKEEPER_DIR; export XDG_STATE_HOME=$PWD/state";
        let mut terminal = script(&place, &format!("{nothing}; \"$LK\" {words}; echo code $?"));
        let seen = terminal.expect("code 0");
        assert_eq!(terminal.leader.wait(), 0);
        let first = seen.lines().find(|line| !line.trim().is_empty()).unwrap_or_default();
        assert_eq!((first.contains(SAYS), seen.contains(SAYS)), (says, says), "{words}: {seen}");
        assert!(!seen.contains("warning"), "it is said once: {words}: {seen}");
    }
    // cron would mail it every night.
    let ran = place.run(["run", "a", "--", "true"]);
    assert_eq!((ran.code, ran.err.as_str()), (0, ""));
}

#[test]
fn rule_2_on_a_terminal_the_command_is_in_front() {
    let place = Place::new();
    let mut terminal = script(
        &place,
        "\"$LK\" run a -- sh -c 'echo $$ > pid; read line; echo \"got $line\"'; echo code $?",
    );
    let pid = number(&place.read("pid"));
    assert_eq!((group(pid), terminal.front()), (pid, pid));
    terminal.type_in("words\n");
    terminal.expect("got words");
    terminal.expect("code 0");
    assert_eq!(terminal.leader.wait(), 0);
}

#[test]
fn rule_2_the_front_comes_back_when_the_command_has_ended() {
    let place = Place::new();
    let mut terminal =
        script(&place, "\"$LK\" run a -- true; echo $$ > pid; read line; echo \"got $line\"");
    let pid = number(&place.read("pid"));
    assert_eq!(terminal.front(), group(pid));
    terminal.type_in("words\n");
    terminal.expect("got words");
    assert_eq!(terminal.leader.wait(), 0);
}

#[test]
fn rule_2_the_front_comes_back_when_the_command_could_not_be_started() {
    let place = Place::new();
    let mut terminal = script(
        &place,
        "\"$LK\" run a -- /no/such/program; echo code $?; read line; echo \"got $line\"",
    );
    terminal.expect("code 127");
    terminal.type_in("words\n");
    terminal.expect("got words");
    assert_eq!(terminal.leader.wait(), 0);
}

#[test]
fn rule_2_the_keyboards_int_and_quit_end_the_script_around_us_as_under_flock() {
    for (shell, key, signal) in [
        ("sh", "\x03", Signal::SIGINT),
        ("bash", "\x03", Signal::SIGINT),
        ("sh", "\x1c", Signal::SIGQUIT),
    ] {
        let place = Place::new();
        let mut sh = place.program(shell);
        sh.args([
            "-c",
            "\"$LK\" run a --report report -- sh -c 'echo $$ > pid; exec sleep 1000'; echo after",
        ]);
        let mut terminal = Terminal::start(sh);
        let pid = number(&place.read("pid"));
        until_true("the command is in front", || terminal.front() == pid);
        terminal.type_in(key);
        let code = terminal.leader.wait();
        assert_eq!(code, 1_000 + signal as i32, "{shell} {signal}: {}", terminal.seen());
        assert!(!terminal.seen().contains("after") && !is_alive(pid), "{shell} {signal}");
        assert_eq!(
            common::json(&place.read("report"))["command_signal"].as_str(),
            Some(signal.as_str())
        );
    }
}

#[test]
fn rule_2_a_command_that_takes_the_keyboards_int_as_its_own_ends_nobody() {
    let place = Place::new();
    let mut terminal = script(
        &place,
        "\"$LK\" run a -- sh -c 'trap \"exit 3\" INT; echo $$ > pid; while :; do sleep 0.02; \
         done'; echo code $?",
    );
    let pid = number(&place.read("pid"));
    until_true("the command is in front", || terminal.front() == pid);
    terminal.type_in("\x03");
    terminal.expect("code 3");
    assert_eq!(terminal.leader.wait(), 0);
}

#[test]
fn rule_2_an_int_that_somebody_sent_is_an_exit_code() {
    let place = Place::new();
    let mut terminal =
        script(&place, "\"$LK\" run a -- sh -c 'echo $PPID > lk; exec sleep 1000'; echo code $?");
    common::kill(number(&place.read("lk")), Signal::SIGINT);
    terminal.expect("code 130");
    assert_eq!(terminal.leader.wait(), 0);
}

#[test]
fn rule_2_in_a_pipeline_it_stays_in_our_group_and_the_keyboard_ends_all_of_it() {
    let place = Place::new();
    let mut terminal = script(
        &place,
        "\"$LK\" run a -- sh -c 'echo $$ > pid; exec sleep 1000' | sh -c 'echo $$ > reader; \
         exec cat'; echo after",
    );
    let (pid, reader) = (number(&place.read("pid")), number(&place.read("reader")));
    assert_eq!((group(pid), group(reader)), (terminal.front(), terminal.front()));
    terminal.type_in("\x03");
    assert_eq!(terminal.leader.wait(), 1_000 + Signal::SIGINT as i32);
    until_true("all of it is gone", || !is_alive(pid) && !is_alive(reader));
}

#[test]
fn rule_2_with_foreground_the_keyboard_reaches_us_and_the_command_once() {
    let place = Place::new();
    let inner = "n=0; trap \"echo int >> ints\" INT; echo $$ > pid; while [ ! -e stop ]; \
                 do sleep 0.02; done";
    let mut terminal = script(
        &place,
        &format!("trap '' QUIT; \"$LK\" run --foreground a -- sh -c '{inner}'; echo code $?"),
    );
    let pid = number(&place.read("pid"));
    assert_eq!(group(pid), terminal.front());
    // The script around us would end on the key too: only the two below us are to get it here.
    let front = terminal.front();
    assert_eq!(front, terminal.leader.pid());
    terminal.type_in("\x03");
    until_true("it came", || place.path("ints").exists());
    std::fs::write(place.path("stop"), "").unwrap();
    terminal.leader.wait();
    until_true("the command ended", || !is_alive(pid));
    assert_eq!(place.read("ints"), "int\n");
}

#[test]
fn rule_2_job_control_works() {
    let place = Place::new();
    let terminal = Terminal::shell(&place);
    terminal.type_in(
        "\"$LK\" run a -- sh -c 'echo $$ > pid; while read line; do echo \"got $line\"; done'\n",
    );
    let pid = number(&place.read("pid"));
    until_true("the command is in front", || terminal.front() == pid);
    terminal.type_in("\x1a");
    terminal.expect("Stopped");
    terminal.expect("ready> ");
    assert!(is_stopped(pid));
    // Stopped is held: nobody else gets it, and the shell is usable.
    terminal.type_in("\"$LK\" run a -n -q -- true; echo code $?\n");
    terminal.expect("code 75");
    terminal.expect("ready> ");
    // In the background it goes on, and is stopped again when it reads.
    terminal.type_in("bg\n");
    terminal.expect("ready> ");
    until_true("it is stopped by its read", || is_stopped(pid));
    until("the shell says so", || {
        terminal.type_in("jobs\n");
        std::thread::sleep(std::time::Duration::from_millis(50));
        terminal.seen().contains("Stopped").then_some(())
    });
    terminal.type_in("fg\n");
    until_true("the command is in front again", || terminal.front() == pid && !is_stopped(pid));
    terminal.type_in("words\n");
    terminal.expect("got words");
    terminal.type_in("\x04");
    terminal.expect("ready> ");
    terminal.type_in("echo code $?\n");
    terminal.expect("code 0");
    terminal.type_in("exit\n");
}

#[test]
fn rule_2_a_stopped_script_around_us_stops_with_us() {
    let place = Place::new();
    // A shell that starts programs may be stopped between vfork and exec, where it cannot be seen
    // to stop: this one reads.
    std::fs::write(
        place.path("script"),
        "\"$LK\" run a -- sh -c 'echo $$ > pid; read line'\necho script $?\n",
    )
    .unwrap();
    let terminal = Terminal::shell(&place);
    terminal.type_in("sh ./script\n");
    let pid = number(&place.read("pid"));
    until_true("the command is in front", || terminal.front() == pid);
    terminal.type_in("\x1a");
    terminal.expect("Stopped");
    terminal.expect("ready> ");
    assert!(is_stopped(pid));
    terminal.type_in("fg\n");
    until_true("the command is in front again", || terminal.front() == pid && !is_stopped(pid));
    terminal.type_in("words\n");
    terminal.expect("script 0");
    terminal.type_in("exit\n");
}

#[test]
fn rule_2_a_stop_that_somebody_sent_to_the_command_is_for_it_alone() {
    let place = Place::new();
    let terminal = script(
        &place,
        "echo $$ > script; \"$LK\" run a -- sh -c 'echo $$ > pid; exec sleep 1000'; echo code $?",
    );
    let (around, pid) = (number(&place.read("script")), number(&place.read("pid")));
    let lk = parent(pid);
    common::kill(pid, Signal::SIGSTOP);
    until_true("the command is stopped", || is_stopped(pid));
    // It passes this on only after it has seen the stop, and it waits in the stopped command.
    common::kill(lk, Signal::SIGUSR1);
    until_true("lockkeeper is at work", || pending(pid) & (1 << (Signal::SIGUSR1 as u64 - 1)) != 0);
    assert!(!is_stopped(lk) && !is_stopped(around) && is_stopped(pid));
    common::kill(pid, Signal::SIGCONT);
    terminal.expect(&format!("code {}", 128 + Signal::SIGUSR1 as i32));
}

#[test]
fn rule_2_a_command_that_nobody_can_bring_to_the_front_waits_for_it_and_burns_nothing() {
    let place = Place::new();
    // lockkeeper's group has no parent in this session any more, and another one is in front.
    let orphan = "while [ ! -e go ]; do sleep 0.02; done; exec \"$LK\" run a -- sh -c \"echo \
                  \\$\\$ > pid; read line < /dev/tty\"";
    let mut bash = place.program("bash");
    bash.args(["-c", &format!("set -m; (sh -c '{orphan}' &); touch go; read line; echo over")]);
    let terminal = Terminal::start(bash);
    let pid = number(&place.read("pid"));
    until_true("it is stopped by its read", || is_stopped(pid));
    let switches = || {
        std::fs::read_to_string(format!("/proc/{pid}/status")).map(|s| {
            s.lines().filter(|l| l.contains("ctxt")).map(str::to_owned).collect::<Vec<_>>()
        })
    };
    let before = switches().unwrap();
    std::thread::sleep(std::time::Duration::from_millis(300));
    assert_eq!(switches().unwrap(), before, "it was let go on, only to be stopped again");
    assert!(is_stopped(pid));
    common::kill(pid, Signal::SIGKILL);
    terminal.type_in("\n");
    terminal.expect("over");
}

/// The signals that wait for a process.
fn pending(pid: i32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    u64::from_str_radix(status.lines().find_map(|l| l.strip_prefix("ShdPnd:")).unwrap().trim(), 16)
        .unwrap()
}

#[test]
fn rule_2_started_in_the_background_it_leaves_the_terminal_alone_until_it_is_brought_to_the_front()
{
    let place = Place::new();
    let terminal = Terminal::shell(&place);
    terminal.type_in(
        "\"$LK\" run a -- sh -c 'echo $$ > pid; while [ ! -e go ]; do sleep 0.02; done; read line; \
         echo \"got $line\"' &\n",
    );
    let pid = number(&place.read("pid"));
    terminal.type_in("echo still $((40 + 2))\n");
    terminal.expect("still 42");
    assert!(terminal.front() != pid && !is_stopped(pid));
    terminal.type_in("fg\n");
    std::fs::write(place.path("go"), "").unwrap();
    // The shell tells nobody that a running job is in front now: the command's read does.
    until_true("the command is in front", || terminal.front() == pid);
    terminal.type_in("words\n");
    terminal.expect("got words");
    terminal.expect("ready> ");
    terminal.type_in("exit\n");
}

#[test]
fn rule_2_the_keyboards_int_reaches_a_command_that_was_brought_to_the_front() {
    let place = Place::new();
    let terminal = Terminal::shell(&place);
    terminal.type_in("\"$LK\" run a -- sh -c 'echo $$ > pid; exec sleep 1000' &\n");
    let pid = number(&place.read("pid"));
    terminal.expect("ready> ");
    terminal.type_in("fg\n");
    terminal.expect("run a");
    until_true("lockkeeper is in front", || terminal.front() == group(parent(pid)));
    terminal.type_in("\x03");
    terminal.expect("ready> ");
    terminal.type_in("echo code $?\n");
    terminal.expect("code 130");
    assert!(!is_alive(pid));
    terminal.type_in("exit\n");
}

/// A process's parent.
fn parent(pid: i32) -> i32 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    number(status.lines().find_map(|l| l.strip_prefix("PPid:")).unwrap())
}

#[test]
fn rule_1_the_keyboards_int_ends_the_wait_and_the_script_around_us() {
    for shell in ["sh", "bash"] {
        let place = Place::new();
        let holder = place.hold("a");
        let mut sh = place.program(shell);
        sh.args(["-c", "\"$LK\" run a --report report -- true; echo after"]);
        let mut terminal = Terminal::start(sh);
        terminal.expect("waiting for a");
        terminal.type_in("\x03");
        assert_eq!(terminal.leader.wait(), 1_000 + Signal::SIGINT as i32, "{shell}");
        assert!(!terminal.seen().contains("after"), "{shell}");
        assert_eq!(common::json(&place.read("report"))["exit"].as_i64(), Some(130));
        holder.end();
    }
}

#[test]
fn rule_8_the_line_of_a_wait_rewrites_itself_and_goes() {
    let place = Place::new();
    let holder = place.hold_with("a", &["--label", "nightly"]);
    let pid = holder.pid();
    let mut terminal = script(&place, "\"$LK\" run a -- true; echo code $?");
    let words = format!("(pid {pid}, nightly) for ");
    terminal.expect("\rwaiting for a: held by ");
    terminal.expect(&words);
    terminal.expect("\x1b[K");
    let between = terminal.expect(&words);
    assert!(
        between.contains("\rwaiting for a: held by ") && !between.contains('\n'),
        "{between:?}"
    );
    terminal.expect("\x1b[K");
    holder.end();
    let after = terminal.expect("code 0");
    assert!(after.ends_with("\r\x1b[K"), "{after:?}");
    assert_eq!(terminal.leader.wait(), 0);
}

#[test]
fn rule_8_a_long_name_does_not_break_the_line() {
    let place = Place::new();
    let name = "long/".repeat(60);
    let holder = place.hold(&name);
    let terminal = script(
        &place,
        &format!("\"$LK\" run {name} -w 600ms -q -- true; \"$LK\" run {name} -w 600ms -- true"),
    );
    let line = terminal.expect("\x1b[K");
    let shown = line.rsplit('\r').next().unwrap().chars().count();
    assert!(shown < 100, "{shown}: {line:?}");
    holder.end();
}

#[test]
fn rule_8_nothing_is_written_over_what_the_user_types() {
    let place = Place::new();
    let holder = place.hold("a");
    let terminal = Terminal::shell(&place);
    terminal.type_in("\"$LK\" run a -- echo granted &\n");
    terminal.expect("ready> ");
    // In the background it is the plain lines that are said.
    let said = terminal.expect("waiting for a: held by ");
    assert!(!said.contains('\r') || !said.contains("\x1b[K"), "{said:?}");
    holder.end();
    terminal.expect("granted after");
    terminal.type_in("exit\n");
}

#[test]
fn release_asks_first_on_a_terminal() {
    let (place, server) = (Place::new(), RedisServer::start());
    let holder = place.hold_with("a", &["--url", &server.url()]);
    let line = format!("\"$LK\" release --force a --url {}; echo code $?", server.url());
    let mut terminal = script(&place, &line);
    terminal.expect("a (lock) is held by ");
    terminal.expect("Take it away? [y/N]");
    terminal.type_in("n\n");
    terminal.expect("code 1");
    assert_eq!(terminal.leader.wait(), 0);
    holder.end();
}

#[test]
fn release_takes_nothing_from_somebody_whom_the_question_did_not_show() {
    let (place, server) = (Place::new(), RedisServer::start());
    let first = place.hold_with("a", &["--url", &server.url(), "--label", "first"]);
    let line = format!("\"$LK\" release --force a --url {}; echo code $?", server.url());
    let mut terminal = script(&place, &line);
    let shown = terminal.expect("Take it away? [y/N]");
    assert!(shown.contains("first"), "{shown}");
    first.end();
    let second = place.hold_with("a", &["--url", &server.url(), "--label", "second"]);
    terminal.type_in("y\n");
    let said = terminal.expect("code 1");
    assert!(
        said.contains("lockkeeper: a: nothing was taken: since the question it is held by ")
            && said.contains("second"),
        "{said}"
    );
    assert_eq!(terminal.leader.wait(), 0);
    let entry = json(place.run(["status", "a", "--url", &server.url(), "--json"]).out.trim());
    assert_eq!(entry["holders"][0]["label"].as_str(), Some("second"), "{entry}");

    // The one that is shown is taken from.
    let mut terminal = script(&place, &line);
    terminal.expect("Take it away? [y/N]");
    terminal.type_in("y\n");
    terminal.expect("a (lock): taken from ");
    let said = terminal.expect("code 0");
    assert!(said.contains(" after ") && !said.contains(" for "), "it held it: {said}");
    assert_eq!(terminal.leader.wait(), 0);
    drop(second);

    // Given back before the answer: there is nothing to take.
    let third = place.hold_with("b", &["--url", &server.url()]);
    let mut terminal = script(&place, &line.replace("force a", "force b"));
    terminal.expect("Take it away? [y/N]");
    third.end();
    terminal.type_in("y\n");
    terminal.expect("b (lock): given back meanwhile by ");
    terminal.expect("code 1");
    assert_eq!(terminal.leader.wait(), 0);
}

#[test]
fn release_does_not_ask_about_what_it_cannot_do() {
    let (place, server) = (Place::new(), RedisServer::start());
    let redisson = format!("{}?layout=redisson", server.url());
    for (url, lock) in [("file:", &[][..]), (&redisson, &["--permits", "1/2"])] {
        let file = format!("file://{}", place.text("locks"));
        let url = if url == "file:" { &file } else { url };
        let options: Vec<&str> =
            ["--url", url, "-q"].into_iter().chain(lock.iter().copied()).collect();
        let holder = place.hold_with("a", &options);
        let line = format!("\"$LK\" release --force a --url '{url}'; echo code $?");
        let mut terminal = script(&place, &line);
        let seen = terminal.expect("code 1");
        assert!(seen.contains("take a") && !seen.contains("[y/N]"), "{seen}");
        assert_eq!(terminal.leader.wait(), 0);
        holder.end();
    }
}

#[test]
fn the_keyboards_stop_works_while_the_lock_is_kept_after_the_command() {
    let place = Place::new();
    let terminal = Terminal::shell(&place);
    terminal.type_in("\"$LK\" run a --hold-at-least 1h -- sh -c 'echo $$ > pid'\n");
    let pid = number(&place.read("pid"));
    until_true("the command has ended", || !is_alive(pid));
    until("it stops", || {
        terminal.type_in("\x1a");
        std::thread::sleep(std::time::Duration::from_millis(50));
        terminal.seen().contains("Stopped").then_some(())
    });
    terminal.type_in("fg\n");
    terminal.expect("fg");
    terminal.expect("run a");
    terminal.type_in("\x03");
    terminal.expect("ready> ");
    terminal.type_in("echo code $?\n");
    terminal.expect("code 0");
    terminal.type_in("exit\n");
}
