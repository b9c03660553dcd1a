//! The static binary in a root with a resolv.conf, a passwd, and no library of the machine.

use std::path::Path;

use super::script;
use crate::Outcome;
use crate::dist::files::{self, write};
use crate::dist::{Place, names};

/// Finds users by /etc/passwd and hosts by DNS.
///
/// # Errors
/// With what was said.
pub fn surroundings(place: &Place) -> Outcome {
    let root = place.folder.join("root");
    let binary = files::read(&place.rootfs.join("usr/bin/lockkeeper"))?;
    write(&root.join("lockkeeper"), binary, 0o755)?;
    write(&root.join("etc/resolv.conf"), "nameserver 127.0.0.1\n", 0o644)?;
    write(&root.join("etc/passwd"), "keeper:x:1234:1234::/home/keeper:/bin/sh\n", 0o644)?;
    // The file behind our own path may be gone: cargo replaces it while the stages run.
    let us = files::read(Path::new("/proc/self/exe"))?;
    write(&place.folder.join("xtask"), us, 0o755)?;
    let text = format!(
        r#"
        mkdir -p root/home/keeper root/proc root/dev
        chown 1234:1234 root/home/keeper
        env -i "$(command -v chroot)" --userspec=1234:1234 root \
            /lockkeeper run -v a -- /lockkeeper --version
        ls -d root/home/keeper/.local/state/lockkeeper
        # A lease needs a guardian, and that needs the /proc that every container has.
        unshare --net --mount --pid --fork --kill-child sh -euc '
            trap "cat servers" EXIT
            await() {{ until "$@" > /dev/null 2>&1; do kill -0 $names $redis; sleep 0.02; done; }}
            within() {{ env -i "$(command -v chroot)" root /lockkeeper run "$@"; }}
            mount -t proc proc root/proc
            mount --bind /dev root/dev
            ip link set lo up
            ./xtask __names >> servers 2>&1 & names=$!
            redis-server --port 6379 --save "" --loglevel warning >> servers 2>&1 & redis=$!
            await grep {ANSWERING} servers
            await redis-cli ping
            set -x
            within -v --url redis://{NAME} a -- /lockkeeper --version
            code=0
            within -n --url redis://other.example a -- /lockkeeper || code=$?
            test $code = 69'
        rm -r root servers xtask
    "#,
        ANSWERING = names::ANSWERING,
        NAME = names::NAME
    );
    script(&text, &place.folder, &[])
}
