//! The subcommands that look, and the small ones.

use crate::common::{Place, finish, json};

#[test]
fn ls_shows_names_that_are_held_or_waited_for_and_no_other() {
    let place = Place::new();
    place.run(["run", "idle", "--", "true"]);
    assert_eq!((place.run(["ls"]).out.as_str(), place.run(["ls"]).code), ("", 0));
    let (stock, odd) =
        (place.hold_with("stock/42", &["--label", "import"]), place.hold("odd\u{1b}[2J name"));
    let ran = place.run(["ls"]);
    let lines: Vec<_> = ran.out.lines().collect();
    assert_eq!((ran.code, lines.len()), (0, 3), "{ran:?}");
    assert!(
        lines[0].starts_with("NAME") && lines[0].contains("HELD BY") && lines[0].contains("TOKEN"),
        "{ran:?}"
    );
    assert!(
        ran.out.contains("stock/42")
            && ran.out.contains(&format!("pid {}", stock.pid()))
            && ran.out.contains("import"),
        "{ran:?}"
    );
    assert!(!ran.out.contains('\u{1b}'), "a name cannot clear the screen: {ran:?}");
    let ran = place.run(["ls", "stock/"]);
    assert!(ran.out.contains("stock/42") && !ran.out.contains("odd"), "{ran:?}");
    stock.end();
    odd.end();
}

#[test]
fn status_says_who_holds_and_where_the_engine_was_chosen() {
    let place = Place::new();
    let free = place.run(["status", "a"]);
    assert_eq!(free.code, 0);
    assert!(
        free.out.contains("a (lock, file): free") && free.out.contains("LOCKKEEPER_DIR"),
        "{free:?}"
    );
    assert_eq!(place.run(["status", "a", "--exit-code"]).code, 1, "nobody holds it");
    let holder = place.hold("a");
    let held = place.run(["status", "a", "--exit-code"]);
    assert_eq!(held.code, 0, "{held:?}");
    assert!(
        held.out.contains("held by")
            && held.out.contains(&holder.pid().to_string())
            && held.out.contains("token "),
        "{held:?}"
    );
    assert_eq!(
        json(place.run(["status", "a", "--json"]).out.trim_end())["state"].as_str(),
        Some("held")
    );
    holder.end();
}

#[test]
fn release_needs_force_and_says_when_nobody_has_it_or_it_cannot_be() {
    let place = Place::new();
    let ran = place.run(["release", "a"]);
    assert_eq!(ran.code, 64);
    assert!(ran.err.contains("lockkeeper release --force a"), "{ran:?}");
    let ran = place.run(["release", "--force", "a"]);
    assert_eq!(ran.code, 1);
    assert!(ran.err.contains("a: nobody holds it"), "{ran:?}");
    let holder = place.hold("a");
    let ran = place.run(["release", "--force", "a"]);
    assert_eq!(ran.code, 1, "a kernel lock cannot be taken from a living process: {ran:?}");
    assert!(ran.err.contains(&format!("pid {}", holder.pid())), "{ran:?}");
    holder.end();
}

#[test]
fn doctor_says_what_the_engine_is_and_promises() {
    let place = Place::new();
    let ran = place.run(["doctor"]);
    for word in [
        "file://",
        "LOCKKEEPER_DIR",
        "CORRECTNESS (one kernel)",
        "this machine only",
        "recovery",
        "limits    names and labels of 1 KiB, 65535 permits\n",
        "stopped",
    ] {
        assert!(ran.out.contains(word), "{word}: {ran:?}");
    }
    assert_eq!(ran.code, 0, "{ran:?}");
    let other = format!("file://{}", place.text("other"));
    let ran = place.run(["doctor", &other]);
    assert!(ran.out.contains(&other), "{ran:?}");
    let memory = place.run(["doctor", "--no-probe", "memory:"]);
    assert!(memory.out.contains("server    this process, not shared"), "{memory:?}");
    let nowhere = format!("file://{}", place.text("no/such/parent"));
    assert_eq!(place.run(["doctor", &nowhere]).code, 69);
    assert_eq!(place.run(["doctor", "gopher://host"]).code, 64);
}

#[test]
fn permits_run_so_many_at_once_and_the_stored_limit_holds_until_it_is_changed() {
    let place = Place::new();
    let (one, two) = (
        place.hold_with("gpu", &["--permits", "1/3"]),
        place.hold_with("gpu", &["--permits", "2/3"]),
    );
    assert_eq!(place.run(["run", "gpu", "-n", "--permits", "1/3", "--", "true"]).code, 75);
    assert_eq!(
        place.run(["run", "gpu", "-n", "--", "true"]).code,
        0,
        "the lock of that name is another thing"
    );
    let other = place.run(["run", "gpu", "-n", "--permits", "1/4", "--", "true"]);
    assert_eq!(other.code, 64);
    assert!(
        other.err.contains('3') && other.err.contains('4') && other.err.lines().count() == 1,
        "{other:?}"
    );
    two.end();
    assert_eq!(
        place
            .run([
                "run",
                "gpu",
                "-n",
                "--permits",
                "2/3",
                "--",
                "sh",
                "-c",
                "test -z \"$LOCKKEEPER_TOKEN\""
            ])
            .code,
        0
    );
    assert_eq!(place.run(["permits", "gpu", "4"]).out, "gpu: 4 permits\n");
    assert_eq!(place.run(["run", "gpu", "-n", "--permits", "3/4", "--", "true"]).code, 0);
    one.end();
}

#[test]
fn gc_removes_idle_files_and_leaves_held_ones() {
    let place = Place::new();
    place.run(["run", "idle", "--", "true"]);
    let holder = place.hold("held");
    let files = || std::fs::read_dir(place.path("locks")).unwrap().count();
    assert_eq!(files(), 2);
    let ran = place.run(["gc"]);
    assert_eq!((ran.code, ran.out.as_str()), (0, "idle lock files removed: 1\n"), "{ran:?}");
    assert_eq!((files(), place.run(["run", "held", "-n", "--", "true"]).code), (1, 75));
    holder.end();
}

#[test]
fn check_is_the_laboratorys() {
    let place = Place::new();
    assert_eq!(place.run(["check", "--classes"]).code, 0);
    assert!(place.run(["check", "--help"]).out.contains("Usage: lockkeeper check"));
    std::fs::write(place.path("history.lkh"), "no history").unwrap();
    for args in [&["check"][..], &["check", "history.lkh"], &["--json", "check", "history.lkh"]] {
        let ran = place.run(args);
        assert_eq!((ran.code, ran.err.lines().count()), (64, 1), "{ran:?}");
        assert_eq!(ran.err.starts_with('{'), args.contains(&"--json"), "{ran:?}");
    }
    let missing = json(place.run(["check", "nowhere.lkh", "--json"]).err.trim_end());
    assert_eq!(
        (missing["error"].as_str(), missing["exit"].as_i64()),
        (Some("usage"), Some(64)),
        "{missing}"
    );
    assert!(missing["message"].as_str().unwrap().ends_with(": there is no such file"), "{missing}");
    let classes = place.run(["check", "--json", "--classes"]).out;
    assert!(classes.lines().all(|line| json(line)["class"].is_string()), "{classes}");
}

#[test]
fn what_nobody_reads_ends_like_any_filter() {
    let place = Place::new();
    let ran = finish(
        &mut place.sh("{ \"$LK\" man; echo $? > code; } | head -c 10 > /dev/null; sleep 0.1"),
    );
    assert_eq!((ran.code, ran.err.as_str()), (0, ""));
    // Either all of it fitted into the pipe before the reader left, or it ended by SIGPIPE.
    assert!(["0", "141"].contains(&place.read("code").trim()));
}

#[test]
fn completions_and_the_manual_come_from_the_definition() {
    let place = Place::new();
    for shell in ["bash", "zsh", "fish"] {
        let ran = place.run(["completions", shell]);
        assert_eq!(ran.code, 0);
        for word in ["run", "acquire", "hold-at-least", "status", "force"] {
            assert!(ran.out.contains(word), "{shell}: {word}");
        }
    }
    assert_eq!(place.run(["completions", "cobol"]).code, 64);
    let man = place.run(["man"]);
    assert_eq!(man.code, 0);
    for word in
        [".TH lockkeeper 1", "LOCKKEEPER RUN", "LOCKKEEPER DOCTOR", "EXIT STATUS", "LOCKKEEPER_URL"]
    {
        assert!(man.out.contains(word), "{word}");
    }
}

#[test]
fn the_engine_is_the_options_then_the_variables_then_the_files_then_the_default() {
    let place = Place::new();
    let url = |dir: &str| format!("file://{}", place.text(dir));
    let chosen = |options: &[&str], variable: Option<&str>, dir: bool| {
        let mut lk = place.lk([&["status", "a"], options].concat());
        variable.map(|v| lk.env("LOCKKEEPER_URL", v));
        if !dir {
            lk.env_remove("LOCKKEEPER_DIR");
        }
        let ran = finish(&mut lk);
        ran.out.lines().last().unwrap_or_else(|| panic!("{ran:?}")).to_owned()
    };
    let config = place.path("home/.config/lockkeeper");
    assert!(chosen(&[], None, false).contains("home/.local/state/lockkeeper"));
    assert!(chosen(&[], None, true).contains("in LOCKKEEPER_DIR"));
    std::fs::create_dir_all(&config).unwrap();
    std::fs::write(config.join("config.toml"), format!("url = \"{}\"\n", url("configured")))
        .unwrap();
    assert!(chosen(&[], None, true).starts_with(&format!("engine {} (from ", url("configured"))));
    assert!(
        chosen(&[], Some(&url("variable")), true)
            .starts_with(&format!("engine {} (from LOCKKEEPER_URL", url("variable")))
    );
    assert!(
        chosen(&["--url", &url("option")], Some(&url("variable")), true)
            .starts_with(&format!("engine {} (from --url", url("option")))
    );
    for wrong in ["uri = \"redis://h\"", "url = 3", "url", "url = \"\""] {
        std::fs::write(config.join("config.toml"), wrong).unwrap();
        let ran = place.run(["run", "a", "--", "true"]);
        assert!(ran.code == 64 && ran.err.contains("config.toml, line 1, "), "{wrong}: {ran:?}");
    }
    std::fs::write(config.join("config.toml"), "require = \"hosts\"").unwrap();
    let ran = place.run(["run", "a", "--", "true"]);
    assert_eq!(ran.code, 64, "{ran:?}");
    assert!(ran.err.contains("hosts was required"), "{ran:?}");
}
