//! `cargo xtask dist`: what users install, in target/dist, and a trial of each.

mod compare;
mod crates;
mod deb;
mod files;
mod image;
mod names;
mod sbom;
pub mod target;
mod texts;
mod trial;

use std::path::{Path, PathBuf};
use std::process::Command;

pub use names::answer as answer_names;

use crate::packages::ensure;
use crate::project::{COLD, root, workspace_version};
use crate::stage::Workshop;
use crate::tools::{Need, needed};
use crate::{Outcome, known};
use files::{output, write};
use target::Target;

/// What is printed by the binary and installed beside it.
struct Page {
    /// Where a package has it, from the root.
    installed: &'static str,
    contents: String,
}

/// What every kind of package is made from.
struct Made {
    version: String,
    target: Target,
    binary: PathBuf,
    pages: Vec<Page>,
    sbom: String,
    /// The licences of what is linked in.
    third_party: String,
    /// The time of the commit, in seconds and as mail has it: packages of one commit are equal.
    epoch: u64,
    date: String,
}

/// The words that print each page, and where it goes.
const PAGES: [(&[&str], &str); 5] = [
    (&["completions", "bash"], "usr/share/bash-completion/completions/lockkeeper"),
    (&["completions", "zsh"], "usr/share/zsh/vendor-completions/_lockkeeper"),
    (&["completions", "fish"], "usr/share/fish/vendor_completions.d/lockkeeper.fish"),
    (&["man"], "usr/share/man/man1/lockkeeper.1"),
    (&["man", "run"], "usr/share/man/man1/lockkeeper-run.1"),
];

/// Where everything is put.
const FOLDER: &str = "target/dist";

/// `cargo xtask dist [--check] [--compare] [--yes]`: everything that is installed, in target/dist.
pub fn run(words: &[String]) -> Outcome {
    let flags = known(words, &["--check", "--yes", "--compare"])?;
    if flags.get(2) == Some(&true) {
        return compare::run(Target::ensure());
    }
    let check = flags.first() == Some(&true);
    if check {
        ensure(&needed(&[Need::Test, Need::Dist]), flags.get(1) == Some(&true))?;
    }
    let target = Target::ensure();
    crate::project::must(&mut target.build("target"))?;
    let place = make(target, "target", FOLDER)?;
    let note = |text| println!("{text}");
    if check { trial::all(&place, target, "target", &note) } else { Ok(()) }
}

/// The same as a stage, from the cold release build.
pub fn stage(workshop: &Workshop) -> Outcome {
    let target = Target::ensure();
    let place = make(target, COLD, FOLDER)?;
    let note = |text| workshop.note(text);
    trial::all(&place, target, COLD, &note).map_err(|message| workshop.explain(message))
}

/// The root of what goes into packages.
fn packaging() -> PathBuf {
    root().join("packaging")
}

/// Makes every package from the binary in `target_dir`; answers what and where.
fn make(target: Target, target_dir: &str, folder: &str) -> Result<Place, String> {
    let _mask = files::Umask::usual();
    let folder = root().join(folder);
    if folder.exists() {
        std::fs::remove_dir_all(&folder)
            .map_err(|error| format!("{}: {error}", folder.display()))?;
    }
    let made = gather(target, target_dir, &folder)?;
    let archive = archive(&made, &folder)?;
    let deb = deb::build(&made, &folder)?;
    let rootfs = image::build(&made, &folder)?;
    let [bill, texts] = ["sbom.cdx.json", THIRD_PARTY].map(|name| folder.join(name));
    write(&bill, &made.sbom, 0o644)?;
    write(&texts, &made.third_party, 0o644)?;
    let files = [made.binary.clone(), archive, deb.clone(), bill, texts];
    sums(&folder, &files)?;
    table(&made, &files, &rootfs);
    Ok(Place { folder, deb, rootfs })
}

/// The file of the licences of others, in each package.
const THIRD_PARTY: &str = "THIRD-PARTY";

/// What was made, and where.
struct Place {
    folder: PathBuf,
    deb: PathBuf,
    rootfs: PathBuf,
}

fn gather(target: Target, target_dir: &str, folder: &Path) -> Result<Made, String> {
    let binary = folder.join("lockkeeper");
    let built = target.folder(target_dir).join("lockkeeper");
    write(&binary, files::read(&built)?, 0o755)?;
    // Symbols are of no use without the build's own folder.
    output(Command::new("strip").arg(&binary))?;
    let mut pages = Vec::new();
    for (words, installed) in PAGES {
        let contents = output(Command::new(&binary).args(words))?;
        let contents = String::from_utf8(contents).map_err(|error| error.to_string())?;
        if contents.is_empty() {
            return Err(format!("lockkeeper {} prints nothing", words.join(" ")));
        }
        pages.push(Page { installed, contents });
    }
    let version = workspace_version()?;
    let (epoch, date) = time()?;
    let packages = sbom::packages(target)?;
    let sbom = sbom::sbom(target, &packages, &version)?;
    let third_party = texts::third_party(target, &packages)?;
    Ok(Made { target, binary, pages, sbom, third_party, epoch, date, version })
}

/// The time of the commit, or what SOURCE_DATE_EPOCH says, also as mail has it.
fn time() -> Result<(u64, String), String> {
    let given = std::env::var("SOURCE_DATE_EPOCH").ok();
    let epoch = given.map_or_else(
        || {
            let mut git = Command::new("git");
            git.args(["log", "-1", "--format=%ct"]).current_dir(root());
            let said = output(&mut git);
            let said = said.map_err(|error| format!("{error}; or set SOURCE_DATE_EPOCH"))?;
            Ok::<_, String>(String::from_utf8_lossy(&said).into_owned())
        },
        Ok,
    )?;
    let epoch = epoch.trim().parse().map_err(|_| format!("`{epoch}` are no seconds since 1970"))?;
    let mut date = Command::new("date");
    date.args(["--utc", "--rfc-email", &format!("--date=@{epoch}")]).env("LC_ALL", "C");
    output(&mut date).map(|date| (epoch, String::from_utf8_lossy(&date).trim().to_owned()))
}

/// The archive for machines of other kinds: the binary, its pages, documents and examples.
fn archive(made: &Made, folder: &Path) -> Result<PathBuf, String> {
    let name = format!("lockkeeper-{}-x86_64-linux", made.version);
    let tree = folder.join(&name);
    write(&tree.join("lockkeeper"), files::read(&made.binary)?, 0o755)?;
    for page in &made.pages {
        let file = Path::new(page.installed).file_name().unwrap_or_default();
        let file = match file.to_str() {
            Some("lockkeeper") => "lockkeeper.bash".as_ref(),
            _ => file,
        };
        write(&tree.join(file), &page.contents, 0o644)?;
    }
    for file in ["LICENSE-MIT", "LICENSE-APACHE", "README.md", "CHANGELOG.md"] {
        write(&tree.join(file), files::read(&root().join(file))?, 0o644)?;
    }
    write(&tree.join("sbom.cdx.json"), &made.sbom, 0o644)?;
    write(&tree.join(THIRD_PARTY), &made.third_party, 0o644)?;
    write(&tree.join("config.toml"), files::read(&packaging().join("config.toml"))?, 0o644)?;
    documents(&tree)?;
    files::copy_tree(&packaging().join("systemd"), &tree.join("packaging/systemd"))?;
    let archive = folder.join(format!("{name}.tar.gz"));
    let mut tar = Command::new("tar");
    tar.args([
        "--sort=name",
        "--owner=0",
        "--group=0",
        "--numeric-owner",
        "--mode=go=rX",
        "--format=gnu",
        "--create",
        "--gzip",
    ])
    .arg(format!("--mtime=@{}", made.epoch))
    .arg("--file")
    .arg(&archive)
    .arg(&name);
    output(tar.current_dir(folder).env("GZIP", "-n"))?;
    std::fs::remove_dir_all(&tree).map_err(|error| format!("{}: {error}", tree.display()))?;
    Ok(archive)
}

/// What README.md leads to, and the examples, at the paths by which they name each other.
fn documents(to: &Path) -> Outcome {
    for file in ["ARCHITECTURE.md", "SAFETY.md"] {
        write(&to.join(file), files::read(&root().join(file))?, 0o644)?;
    }
    files::copy_tree(&root().join("docs"), &to.join("docs"))?;
    files::copy_tree(&packaging().join("kubernetes"), &to.join("packaging/kubernetes"))
}

fn sums(folder: &Path, files: &[PathBuf]) -> Outcome {
    let names = files.iter().filter_map(|file| file.file_name());
    let sums = output(Command::new("sha256sum").args(names).current_dir(folder))?;
    write(&folder.join("SHA256SUMS"), sums, 0o644)
}

fn table(made: &Made, files: &[PathBuf], rootfs: &Path) {
    println!("lockkeeper {} for {}, in target/dist:", made.version, made.target.triple());
    let row = |name: &str, bytes: u64| println!("  {name:<44} {:>8} KiB", bytes.div_ceil(1024));
    for file in files {
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        row(&name, file.metadata().map_or(0, |meta| meta.len()));
    }
    row("image/ (its root file system)", files::size(rootfs));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_readme_installs_the_packages_of_this_version() {
        let readme = files::text(&root().join("README.md")).unwrap();
        let version = workspace_version().unwrap();
        for line in [
            format!("apt install ./lockkeeper_{version}_amd64.deb "),
            format!("tar -xzf lockkeeper-{version}-x86_64-linux.tar.gz "),
        ] {
            assert!(readme.contains(&line), "README.md does not have: {line}");
        }
    }
}
