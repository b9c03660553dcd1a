//! What a shell offers where the name of a lock is wanted, and where completions are installed.

use std::io::Write as _;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;
use std::process::{Command, Stdio};

use crate::common::{PROGRAM, Place, Ran, Reaped, finish};

/// What the program offers at the end of a line.
fn asked(place: &Place, line: &str) -> Ran {
    let mut asked = place.lk(["__complete"]);
    asked.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = Reaped::spawn(&mut asked);
    let mut stdin = child.0.stdin.take().unwrap();
    writeln!(stdin, "{line}").unwrap();
    drop(stdin);
    child.output()
}

/// Programs in `bin` that are called like our subcommands: a shell that asks one of them for names
/// leaves a file.
fn decoys(place: &Place) -> String {
    let bin = place.path("bin");
    std::fs::create_dir_all(&bin).unwrap();
    std::os::unix::fs::symlink(PROGRAM, bin.join("lockkeeper")).unwrap();
    for name in ["run", "ls", "watch", "status", "release"] {
        let decoy = bin.join(name);
        std::fs::write(&decoy, "#!/bin/sh\necho \"$0\" >> \"$DECOYED\"\n").unwrap();
        std::fs::set_permissions(&decoy, std::fs::Permissions::from_mode(0o755)).unwrap();
    }
    place.text("bin")
}

/// A shell that finds lockkeeper, and the decoys, first.
fn shell(place: &Place, name: &str) -> Command {
    let path = std::env::var("PATH").unwrap_or_default();
    let mut shell = place.program(name);
    shell
        .env("PATH", format!("{}:{path}", place.text("bin")))
        .env("DECOYED", place.path("decoyed"));
    shell
}

/// Asks again while nothing is offered: who completes waits for two tenths of a second, which are
/// little on a busy machine.
fn in_time(mut ask: impl FnMut() -> Vec<String>) -> Vec<String> {
    (0..20).map(|_| ask()).find(|offered| !offered.is_empty()).unwrap_or_default()
}

/// What bash offers at the end of a line.
fn offered(place: &Place, line: &str) -> Vec<String> {
    let bin = std::path::Path::new(PROGRAM).parent().unwrap().display().to_string();
    let script = format!(
        r#"source <(lockkeeper completions bash)
        COMP_LINE='{line}' COMP_POINT={}
        read -ra COMP_WORDS <<< "$COMP_LINE"
        [[ $COMP_LINE == *' ' ]] && COMP_WORDS+=('')
        COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))
        _lockkeeper_named lockkeeper "${{COMP_WORDS[COMP_CWORD]}}" "${{COMP_WORDS[COMP_CWORD-1]}}"
        printf '%s\n' "${{COMPREPLY[@]}}""#,
        line.len()
    );
    let path = std::env::var("PATH").unwrap_or_default();
    in_time(|| {
        let mut bash = place.program("bash");
        let ran = finish(bash.args(["-c", &script]).env("PATH", format!("{bin}:{path}")));
        assert_eq!((ran.code, ran.err.as_str()), (0, ""), "{line}: {ran:?}");
        ran.out.lines().filter(|line| !line.is_empty()).map(str::to_owned).collect()
    })
}

#[test]
fn names_are_offered_where_one_is_wanted() {
    let place = Place::new();
    let _held = ["shop/a", "shop/b", "a:b", "two words"].map(|name| place.hold(name));
    assert_eq!(offered(&place, "lockkeeper run "), ["a:b", "shop/a", "shop/b"]);
    assert_eq!(offered(&place, "lockkeeper run -w 3s shop/"), ["shop/a", "shop/b"]);
    assert_eq!(offered(&place, "lockkeeper ls sh"), ["shop/a", "shop/b"]);
    // Readline replaces what follows the colon.
    assert_eq!(offered(&place, "lockkeeper status a:"), ["b"]);
    // Where no name is wanted, everything is as clap made it.
    assert_eq!(offered(&place, "lockkeeper stat"), ["status"]);
    assert_eq!(offered(&place, "lockkeeper run --nonb"), ["--nonblock"]);
    assert!(!offered(&place, "lockkeeper doctor ").contains(&"shop/a".to_owned()));
    // A command is completed behind `--`.
    assert!(offered(&place, "lockkeeper run shop/a -- lockk").contains(&"lockkeeper".to_owned()));
}

#[test]
fn a_program_that_is_named_below_the_home_is_asked_there() {
    let place = Place::new();
    let _held = place.hold("shop/a");
    std::os::unix::fs::symlink(PROGRAM, place.path("home").join("lk")).unwrap();
    for program in ["~/lk", "$HOME/lk"] {
        assert_eq!(offered(&place, &format!("{program} run sh")), ["shop/a"], "{program}");
    }
}

#[test]
fn fish_offers_names_and_no_files_beside_them() {
    let place = Place::new();
    decoys(&place);
    let _held = ["shop/a", "shop/b"].map(|name| place.hold(name));
    std::fs::write(place.path("shop-file"), "").unwrap();
    let offered = |line: &str| {
        let script = "lockkeeper completions fish | source; complete --do-complete $LINE";
        in_time(|| {
            let mut fish = shell(&place, "fish");
            let ran = finish(fish.args(["--no-config", "-c", script]).env("LINE", line));
            assert_eq!((ran.code, ran.err.as_str()), (0, ""), "{line}: {ran:?}");
            let words = ran.out.lines().filter_map(|line| line.split('\t').next());
            words.map(str::to_owned).collect()
        })
    };
    assert_eq!(offered("lockkeeper run sho"), ["shop/a", "shop/b"]);
    assert_eq!(offered("lockkeeper run -w 3s shop/"), ["shop/a", "shop/b"]);
    assert_eq!(offered("lockkeeper ls shop/b"), ["shop/b"]);
    assert_eq!(offered("lockkeeper check sho"), ["shop-file"]);
    assert!(offered("lockkeeper run a -- lockk").contains(&"lockkeeper".to_owned()));
    assert!(!place.path("decoyed").exists(), "{}", place.read("decoyed"));
}

#[test]
fn zsh_offers_names_and_runs_no_program_called_like_a_subcommand() {
    let place = Place::new();
    decoys(&place);
    let _held = ["shop/a", "shop/b", "till/x"].map(|name| place.hold(name));
    // A shell on a terminal of its own, whose line is printed instead of run.
    let script = r#"
        zmodload zsh/zpty
        zpty shell zsh -f -i
        mkdir .functions
        lockkeeper completions zsh > .functions/_lockkeeper
        zpty -w shell 'fpath=($PWD/.functions $fpath); autoload -U compinit; compinit -u -D'
        zpty -w shell 'unsetopt beep; LISTMAX=0; zle -N show; bindkey "^X" show'
        zpty -w shell 'show() { print -r -- "line=<$BUFFER>" >> shown; BUFFER=; }'
        zpty -w shell 'print ready > ready'
        until [[ -s ready ]]; do sleep 0.02; done
        for line in "$@"; do
            # Nothing is offered where that takes longer than two tenths of a second.
            for again in {1..20}; do
                lines=$(( $(wc -l < shown 2> /dev/null) + 1 ))
                zpty -w -n shell "$line"$'	'
                until (( $(wc -l < shown 2> /dev/null) >= lines )); do
                    # What it writes has to be read, or it waits.
                    zpty -r -t shell ignored
                    sleep 0.02
                done
                [[ $(tail -n 1 shown) == "line=<$line>" ]] || break
                sed -i '$d' shown
            done
        done
        zpty -d shell"#;
    let lines = [
        "lockkeeper run ti",
        "lockkeeper --json ls ti",
        "lockkeeper watch ti",
        "lockkeeper run -w 3s shop",
        "lockkeeper run a -- lockke",
    ];
    std::fs::write(place.path("shown"), "").unwrap();
    let ran = finish(shell(&place, "zsh").args(["-f", "-c", script, "zsh"]).args(lines));
    assert_eq!(ran.code, 0, "{ran:?}");
    let shown = place.read("shown");
    let shown: Vec<&str> = shown.lines().collect();
    assert_eq!(
        shown,
        [
            "line=<lockkeeper run till/x >",
            "line=<lockkeeper --json ls till/x >",
            "line=<lockkeeper watch till/x >",
            "line=<lockkeeper run -w 3s shop/>",
            "line=<lockkeeper run a -- lockkeeper >",
        ]
    );
    assert!(!place.path("decoyed").exists(), "{}", place.read("decoyed"));
}

#[test]
fn an_engine_that_does_not_answer_delays_nobody_and_says_nothing() {
    let place = Place::new();
    // Accepts, and never answers.
    let server = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let address = server.local_addr().unwrap();
    // Whoever waits for it waits for longer than the test.
    let url = format!("redis://{address}?connect_timeout=10m&request_timeout=10m");
    for engine in [url.as_str(), "redis://127.0.0.1:1", "nosuch://x", "file:relative"] {
        let ran = asked(&place, &format!("lockkeeper run --url {engine} "));
        assert_eq!((ran.code, ran.out.as_str(), ran.err.as_str()), (0, "", ""), "{engine}");
    }
}

#[test]
fn completions_are_installed_where_each_shell_looks() {
    let place = Place::new();
    let home = place.text("home");
    for (shell, file, first) in [
        ("bash", ".local/share/bash-completion/completions/lockkeeper", "_lockkeeper() {"),
        ("fish", ".config/fish/completions/lockkeeper.fish", "# Print an optspec"),
        ("zsh", ".zfunc/_lockkeeper", "#compdef lockkeeper"),
    ] {
        let install = || {
            let mut install = place.lk(["completions", shell, "--install"]);
            install.env("HOME", &home).env_remove("XDG_DATA_HOME").env_remove("XDG_CONFIG_HOME");
            finish(&mut install)
        };
        // A second time replaces it.
        for ran in [install(), install()] {
            assert_eq!((ran.code, ran.err.as_str()), (0, ""), "{ran:?}");
            assert_eq!(ran.out.lines().next(), Some(format!("{home}/{file}").as_str()));
        }
        let script = std::fs::read_to_string(format!("{home}/{file}")).unwrap();
        assert!(script.starts_with(first), "{shell}: {script}");
    }
    let ran = place.run(["completions", "elvish", "--install"]);
    assert_eq!((ran.code, ran.err.lines().count()), (64, 1), "{ran:?}");
    let ran = finish(
        place.lk(["completions", "bash", "--install"]).env_remove("HOME").env("XDG_DATA_HOME", "x"),
    );
    assert_eq!(ran.code, 64, "{ran:?}");
}
