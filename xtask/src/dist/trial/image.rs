//! The container image: its root file system under unshare, and the image with podman.

use std::process::Command;

use super::script;
use crate::Outcome;
use crate::dist::Place;
use crate::dist::files::output;

/// As a container runtime starts it: the first process of its own namespace, no user of a name, no
/// HOME, a read-only root, no network.
///
/// # Errors
/// With what was said.
pub fn image(place: &Place) -> Outcome {
    let text = r#"
        within() {
            unshare --mount --pid --fork --net --kill-child env -i sh -ec '
                mount --bind "$0" "$0"
                mount -t tmpfs -o mode=1777 tmpfs "$0/run"
                mount -o remount,ro,bind "$0"
                exec chroot --userspec=65532:65532 "$0" "$@"' "$ROOTFS" "$@"
        }
        mkdir "$ROOTFS/run"
        within /usr/bin/lockkeeper --version
        # Without a home it says what to give, and does not guess.
        code=0; within /usr/bin/lockkeeper run a -- /usr/bin/lockkeeper ls 2>said || code=$?
        cat said; test $code = 64 || test $code = 69; grep -q 'LOCKKEEPER_DIR\|--url' said
        export URL=file:///run/locks
        within /usr/bin/lockkeeper run --url $URL a -- /usr/bin/lockkeeper --version
        code=0
        within /usr/bin/lockkeeper run --url $URL a -- /usr/bin/lockkeeper no 2>/dev/null || code=$?
        test $code = 64
        code=0
        within /usr/bin/lockkeeper run --url $URL a -- /no/such/program 2>/dev/null || code=$?
        test $code = 127
        rm said; rmdir "$ROOTFS/run"
    "#;
    script(text, &place.folder, &[("ROOTFS", &place.rootfs)])?;
    stopped(place)?;
    reaped(place)
}

/// TERM to the first process ends it and what it runs.
fn stopped(place: &Place) -> Outcome {
    let text = r#"
        mkdir "$ROOTFS/run"
        # Our own /proc shows the processes of the namespace.
        unshare --mount --pid --fork --kill-child env -i sh -ec '
            mount -t tmpfs tmpfs "$0/run"
            exec chroot "$0" /usr/bin/lockkeeper run --url file:///run/locks a -- \
                /usr/bin/lockkeeper acquire --url file:///run/locks b --for 1h' "$ROOTFS" \
            > granted &
        outer=$!
        set +x
        until grep -q granted granted 2>/dev/null; do kill -0 $outer; sleep 0.02; done
        set -x
        first=$(pgrep --parent $outer)
        kill -TERM $first
        code=0; wait $outer || code=$?
        cat granted; rmdir "$ROOTFS/run"
        # What ran was told, gave its own lock back, and ended as it does.
        test $code = 0
        grep -q '"release":"clean","why":"SIGTERM"' granted
        rm granted
        test ! -e /proc/$first
    "#;
    script(text, &place.folder, &[("ROOTFS", &place.rootfs)])
}

/// Processes that nobody waits for are left to the first one, which ends what is left of them.
fn reaped(place: &Place) -> Outcome {
    let text = r#"
        mkdir "$ROOTFS/run" "$ROOTFS/proc" "$ROOTFS/dev" "$ROOTFS/host"
        # The image has no shell: the machine's, with the machine's libraries.
        unshare --mount --pid --fork --kill-child env -i sh -euc '
            mount -t tmpfs tmpfs "$0/run"
            mount -t proc proc "$0/proc"
            mount --bind /dev "$0/dev"
            mount --bind / "$0/host"
            loader=$(readlink -f /lib64/ld-linux-x86-64.so.2)
            libraries=/host/lib/x86_64-linux-gnu:/host/usr/lib/x86_64-linux-gnu
            exec chroot "$0" /usr/bin/lockkeeper run --url file:///run/locks a -- \
                "/host$loader" --library-path $libraries /host/bin/sh -euc "
                    ( ( exit 7 ) & )
                    # An orphan that nobody reaps stays, as state Z, below the first process.
                    left=yes
                    while [ \$left ]; do
                        left=
                        for stat in /proc/[0-9]*/stat; do
                            read -r pid name state parent rest < \$stat || continue
                            if [ \$state = Z ] && [ \$parent = 1 ]; then left=\$pid; fi
                        done 2> /dev/null # A process may be gone by now.
                    done
                    echo nobody is left"' "$ROOTFS"
        rmdir "$ROOTFS/run" "$ROOTFS/proc" "$ROOTFS/dev" "$ROOTFS/host"
    "#;
    script(text, &place.folder, &[("ROOTFS", &place.rootfs)])
}

/// What a runtime says that may build or run no containers on this machine.
const MAY_NOT: [&str; 4] = ["setrlimit", "Operation not permitted", "cgroup", "permission denied"];

/// Builds the image with podman and runs it, where podman may do that.
///
/// # Errors
/// It is not built, or does not run, for another reason than that podman may not.
pub fn podman(place: &Place, note: &dyn Fn(String)) -> Outcome {
    match tried(place) {
        Err(why) if MAY_NOT.iter().any(|words| why.contains(words)) => {
            let why = why.lines().last().unwrap_or_default();
            let ran = "the image ran under unshare alone";
            note(format!("NOT TRIED: podman may not do that here, so {ran}: {why}"));
            Ok(())
        }
        outcome => outcome,
    }
}

fn tried(place: &Place) -> Outcome {
    const TAG: &str = "lockkeeper-trial";
    let image = place.folder.join("image");
    output(Command::new("podman").args(["build", "--quiet", "--tag", TAG]).arg(image))?;
    println!("podman has built it");
    let run = |words: &[&str]| {
        let mut run = Command::new("podman");
        run.args(["run", "--rm", "--read-only", "--network=none", "--ulimit=host", TAG]);
        output(run.args(words))
    };
    let outcome = run(&["--version"]).and_then(|said| {
        println!("podman runs it: {}", String::from_utf8_lossy(&said).trim());
        match run(&["run", "a", "--", "/usr/bin/lockkeeper"]) {
            Err(why) if why.contains("exit status: 64") || why.contains("exit status: 69") => {
                Ok(())
            }
            Err(why) => Err(why),
            Ok(_) => Err("it locks without a place for locks".to_owned()),
        }
    });
    output(Command::new("podman").args(["image", "rm", "--force", TAG])).and(outcome)
}
