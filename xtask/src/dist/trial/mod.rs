//! Each package tried as a user would, in roots of its own.

mod image;
mod surroundings;

use std::io::stdout;
use std::path::Path;
use std::process::Command;

use super::files::{Umask, output, read, text, write};
use super::target::{Target, builders_paths, commit};
use super::{Place, crates, make, packaging};
use crate::Outcome;
use crate::closing;
use crate::project::{is_root, must, root};

/// How long a script of a trial may take, as timeout(1) has it.
const SCRIPT_MAX: &str = "120s";

/// Tries everything, and says at the end what failed; `note` is told what could not be tried.
///
/// # Errors
/// Whatever did not work: the trials in the first line, then what each of them said.
pub fn all(place: &Place, target: Target, target_dir: &str, note: &dyn Fn(String)) -> Outcome {
    let (mut failed, mut said) = (Vec::new(), String::new());
    let mut trial = |what: &str, outcome: Outcome| match outcome {
        Ok(()) => println!("ok: {what}"),
        Err(message) => {
            println!("FAILED: {what}: {message}");
            said += &format!("\n--- {what}: {message}");
            failed.push(what.to_owned());
        }
    };
    trial("checksums", checksums(place));
    trial("the same bytes again, and nothing of who made them", again(place, target, target_dir));
    trial("the commit, and the licences of others", origins(place));
    trial("no errors of lintian", lintian(place));
    trial("the Kubernetes examples, by the schemas", manifests());
    if is_root() {
        trial("the archive, unpacked by a user", archive(place));
        trial("the image's root file system, as the first process", image::image(place));
        trial("the image, with podman", image::podman(place, note));
        trial("host names by DNS, users by /etc/passwd", surroundings::surroundings(place));
        trial("the package: install, upgrade, remove, purge", package(place));
    } else {
        let what = "archive, image, DNS, the installation of the package";
        note(format!("NOT TRIED without root: {what}"));
    }
    trial("cargo install from the packaged crates", crates::install(&place.folder, target_dir));
    if failed.is_empty() { Ok(()) } else { Err(format!("failed: {}{said}", failed.join("; "))) }
}

fn checksums(place: &Place) -> Outcome {
    let mut check = Command::new("sha256sum");
    output(check.args(["--check", "--strict", "SHA256SUMS"]).current_dir(&place.folder)).map(|_| ())
}

/// Makes everything once more under a strict umask, and looks for the builder's paths.
fn again(place: &Place, target: Target, target_dir: &str) -> Outcome {
    const FOLDER: &str = "target/dist-again";
    let second = {
        let _mask = Umask::set(0o077);
        make(target, target_dir, FOLDER)?
    };
    let [first, second] = [&place.folder, &second.folder].map(|at| text(&at.join("SHA256SUMS")));
    let (first, second) = (first?, second?);
    if first != second {
        return Err(format!("these differ from each other:\n{first}\n{second}"));
    }
    std::fs::remove_dir_all(root().join(FOLDER)).map_err(|error| format!("{FOLDER}: {error}"))?;
    let binary = read(&place.folder.join("lockkeeper"))?;
    for (path, _) in builders_paths() {
        if binary.windows(path.len()).any(|part| part == path.as_bytes()) {
            return Err(format!("the binary has {path} in it"));
        }
    }
    Ok(())
}

/// Each package says which commit it is, and has a licence for all that is linked in.
fn origins(place: &Place) -> Outcome {
    let text = r#"
        tar -xzf lockkeeper-*-x86_64-linux.tar.gz --one-top-level=inside --strip-components=1
        dpkg-deb -x "$DEB" inside/deb
        doc=usr/share/doc/lockkeeper
        gunzip inside/deb/$doc/THIRD-PARTY.gz inside/deb/$doc/sbom.cdx.json.gz
        for made in inside inside/deb/$doc image/rootfs/$doc; do
            cmp THIRD-PARTY $made/THIRD-PARTY
            cmp sbom.cdx.json $made/sbom.cdx.json
        done
        for binary in inside/lockkeeper inside/deb/usr/bin/lockkeeper \
            image/rootfs/usr/bin/lockkeeper; do
            cmp lockkeeper $binary
        done
        for path in LICENSE-MIT LICENSE-APACHE packaging/kubernetes/sidecar.yaml \
            packaging/systemd/lockkeeper-run@.service docs/operating.md docs/engines/redlock.md; do
            test -s inside/$path
        done
        rm -r inside
        ./lockkeeper version --json
        if [ "$COMMIT" ]; then
            ./lockkeeper version --json | grep -F "\"commit\":\"$COMMIT\""
        fi
        # Every package of the bill is in the list of licences, with its version.
        set +x
        sed -n 's,.*"purl": "pkg:cargo/\([^@]*\)@\([^"]*\)".*,\1 \2,p' sbom.cdx.json > bill
        test "$(wc -l < bill)" -gt 50
        while read -r package; do
            grep -q "^  $package: " THIRD-PARTY || { echo "no licence of $package"; exit 1; }
        done < bill
        rm bill
    "#;
    // As version prints it: twelve digits.
    let commit = commit().unwrap_or_default();
    let (hex, dirty) = commit.split_once('-').map_or((&*commit, ""), |(hex, _)| (hex, "-dirty"));
    let commit: String = hex.chars().take(12).chain(dirty.chars()).collect();
    script(text, &place.folder, &[("DEB", &place.deb), ("COMMIT", commit.as_ref())])
}

/// A script with `set -eux`, whose transcript is printed; a failure has its last lines.
fn script(text: &str, dir: &Path, more: &[(&str, &Path)]) -> Outcome {
    let mut shell = Command::new("timeout");
    let text = format!("umask 022{text}");
    shell.args(["--kill-after=5s", SCRIPT_MAX, "sh", "-euxc", &text]);
    shell.current_dir(dir).env_remove("LOCKKEEPER_URL");
    for (name, value) in more {
        shell.env(name, value);
    }
    let ended = closing::run_into(stdout(), &mut shell, || false, || {})?;
    match ended.status {
        Some(status) if status.success() => Ok(()),
        status => {
            let how = status.map_or_else(|| "no status".to_owned(), |status| status.to_string());
            Err(format!("{how}; it said last:\n{}", ended.why.join("\n")))
        }
    }
}

/// By somebody without any right, on a disk of nothing else.
fn archive(place: &Place) -> Outcome {
    let text = r#"
        unshare --mount sh -euc '
            mount -t tmpfs -o mode=755 tmpfs /mnt
            cp lockkeeper-*-x86_64-linux.tar.gz /mnt
            install -d -o 65534 -g 65534 /mnt/home
            cd /mnt/home
            exec setpriv --reuid=65534 --regid=65534 --clear-groups \
                env -i HOME=/mnt/home PATH=/usr/bin:/bin sh -eux' << 'USER'
            id -u
            tar -xzf ../lockkeeper-*-x86_64-linux.tar.gz --strip-components=1
            ls
            ./lockkeeper run --require fenced nightly -- sh -c 'test "$LOCKKEEPER_TOKEN" -gt 0'
            test -d .local/state/lockkeeper
            mkdir bin
            mv lockkeeper bin
            PATH=$PATH:$HOME/bin
            lockkeeper completions bash --install
            bash -n .local/share/bash-completion/completions/lockkeeper
            bash -n lockkeeper.bash
            lockkeeper man | cmp - lockkeeper.1
            lockkeeper man run | cmp - lockkeeper-run.1
USER
    "#;
    script(text, &place.folder, &[])
}

/// Each example fits the schemas of Kubernetes, and one with a misspelt field does not.
fn manifests() -> Outcome {
    let text = r#"
        [ -x kubernetes/bin/pip ] || python3 -m venv kubernetes
        kubernetes/bin/pip install --quiet --disable-pip-version-check "$VALIDATOR"
        for file in "$EXAMPLES"/*.yaml; do
            kubernetes/bin/kubernetes-validate --strict "$file"
        done
        sed 's/concurrencyPolicy:/concurencyPolicy:/' "$EXAMPLES/cronjob.yaml" > misspelt.yaml
        if kubernetes/bin/kubernetes-validate --strict misspelt.yaml; then exit 1; fi
        rm misspelt.yaml
    "#;
    // It has the schemas with it.
    const VALIDATOR: &str = "kubernetes-validate==1.37.0";
    let examples = packaging().join("kubernetes");
    let more = [("VALIDATOR", VALIDATOR.as_ref()), ("EXAMPLES", examples.as_ref())];
    script(text, &root().join("target"), &more)
}

fn lintian(place: &Place) -> Outcome {
    let mut lintian = Command::new("lintian");
    lintian.args(["--fail-on", "error", "--allow-root", "--no-cfg"]).arg(&place.deb);
    must(&mut lintian)
}

/// On a copy of this machine's root, of which nothing stays.
fn package(place: &Place) -> Outcome {
    let inside = text(&root().join("packaging/debian/trial.sh"))?;
    write(&place.folder.join("trial.sh"), inside, 0o644)?;
    let text = r#"
        mkdir next
        dpkg-deb -R "$DEB" next
        sed -i 's/^Version: .*/&+next/' next/DEBIAN/control
        echo '# The next release says more.' >> next/etc/lockkeeper/config.toml
        dpkg-deb --build --root-owner-group -Zgzip next next.deb >/dev/null
        rm -r next
        unshare --mount sh -euc '
            mount -t tmpfs tmpfs /mnt
            mkdir /mnt/upper /mnt/work /mnt/root
            mount -t overlay -o lowerdir=/,upperdir=/mnt/upper,workdir=/mnt/work overlay /mnt/root
            mount --bind /dev /mnt/root/dev
            mount -t proc proc /mnt/root/proc
            cp "$DEB" /mnt/root/tmp/lockkeeper.deb
            cp next.deb trial.sh /mnt/root/tmp
            chroot /mnt/root env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root \
                sh -eu /tmp/trial.sh'
        rm next.deb trial.sh
    "#;
    script(text, &place.folder, &[("DEB", &place.deb)])
}
