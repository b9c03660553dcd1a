//! The Debian package.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::files::{gzip, output, read, size, text, write};
use super::{Made, THIRD_PARTY, documents, packaging};
use crate::Outcome;
use crate::project::root;

/// The paths that are an administrator's, once they are installed.
const CONFIGURATION: &str = "/etc/lockkeeper/config.toml\n";

/// Builds the package from what was made; answers where it is.
///
/// # Errors
/// A file cannot be written, or dpkg-deb is missing or fails.
pub fn build(made: &Made, place: &Path) -> Result<PathBuf, String> {
    let tree = place.join("deb");
    fill(made, &tree)?;
    let package = place.join(format!("lockkeeper_{}_amd64.deb", version(made)));
    let mut pack = Command::new("dpkg-deb");
    pack.args(["--build", "--root-owner-group", "-Zxz"]).arg(&tree).arg(&package);
    output(pack.env("SOURCE_DATE_EPOCH", made.epoch.to_string()))?;
    std::fs::remove_dir_all(&tree).map_err(|error| format!("{}: {error}", tree.display()))?;
    Ok(package)
}

fn fill(made: &Made, tree: &Path) -> Outcome {
    if tree.exists() {
        std::fs::remove_dir_all(tree).map_err(|error| format!("{}: {error}", tree.display()))?;
    }
    let put = |path: &str, contents: &[u8], mode| write(&tree.join(path), contents, mode);
    let ours = |name: &str| read(&packaging().join(name));
    put("usr/bin/lockkeeper", &read(&made.binary)?, 0o755)?;
    for page in &made.pages {
        put(page.installed, page.contents.as_bytes(), 0o644)?;
    }
    for page in ["lockkeeper.1", "lockkeeper-run.1"] {
        gzip(&tree.join("usr/share/man/man1").join(page))?;
    }
    put("etc/lockkeeper/config.toml", &ours("config.toml")?, 0o644)?;
    let unit = "lockkeeper-run@.service";
    put(&format!("usr/lib/systemd/system/{unit}"), &ours(&format!("systemd/{unit}"))?, 0o644)?;

    let doc = "usr/share/doc/lockkeeper";
    put(&format!("{doc}/README.md"), &read(&root().join("README.md"))?, 0o644)?;
    documents(&tree.join(doc))?;
    for (name, contents) in [
        ("CHANGELOG.md", read(&root().join("CHANGELOG.md"))?),
        ("sbom.cdx.json", made.sbom.clone().into_bytes()),
        (THIRD_PARTY, made.third_party.clone().into_bytes()),
        ("changelog", changelog(made).into_bytes()),
    ] {
        put(&format!("{doc}/{name}"), &contents, 0o644)?;
        gzip(&tree.join(doc).join(name))?;
    }
    put(&format!("{doc}/copyright"), copyright()?.as_bytes(), 0o644)?;
    put(
        &format!("{doc}/examples/lockkeeper-nightly.timer"),
        &ours("systemd/lockkeeper-nightly.timer")?,
        0o644,
    )?;
    put("usr/share/lintian/overrides/lockkeeper", &ours("debian/lintian-overrides")?, 0o644)?;

    let kib = (size(tree) / 1024).to_string();
    let control = text(&packaging().join("debian/control"))?;
    let control = control.replace("@VERSION@", &version(made)).replace("@SIZE@", &kib);
    put("DEBIAN/control", control.as_bytes(), 0o644)?;
    put("DEBIAN/conffiles", CONFIGURATION.as_bytes(), 0o644)?;
    for script in ["postinst", "postrm"] {
        put(&format!("DEBIAN/{script}"), &ours(&format!("debian/{script}"))?, 0o755)?;
    }
    let mut sums = Command::new("sh");
    sums.args([
        "-c",
        "find . -type f ! -path './DEBIAN/*' ! -path './etc/*' -printf '%P\\0' |
            LC_ALL=C sort -z | xargs -0 md5sum",
    ]);
    let sums = output(sums.current_dir(tree))?;
    put("DEBIAN/md5sums", &sums, 0o644)
}

/// As Debian orders them: 0.2.0~rc.1 is older than 0.2.0, and 0.2.0-rc.1 would be newer.
fn version(made: &Made) -> String {
    made.version.replacen('-', "~", 1)
}

/// As Debian writes it; what changed is in CHANGELOG.md.
fn changelog(made: &Made) -> String {
    format!(
        "lockkeeper ({}) unstable; urgency=medium\n\n  * What changed for users stands in \
         CHANGELOG.md.gz.\n\n -- The lockkeeper developers \
         <maintainers@lockkeeper.dev>  {}\n",
        version(made),
        made.date
    )
}

/// With the text of the MIT licence, indented as the format wants it.
fn copyright() -> Result<String, String> {
    let licence = text(&root().join("LICENSE-MIT"))?;
    let lines = licence.trim_end().lines().map(|line| match line {
        "" => " .".to_owned(),
        line => format!(" {line}"),
    });
    let template = text(&packaging().join("debian/copyright"))?;
    Ok(template.replace("@MIT@", &lines.collect::<Vec<_>>().join("\n")))
}
