//! The packages for crates.io: made, and installed from.

use std::path::Path;
use std::process::Command;

use super::files::output;
use crate::Outcome;
use crate::project::{cargo, root, workspace_version};

/// The packages that are published, in order.
const PUBLISHED: [&str; 4] =
    ["lockkeeper-testkit", "lockkeeper", "lockkeeper-lab", "lockkeeper-cli"];

/// Packs them and installs the command line from what was packed, and from nothing else of this
/// checkout.
///
/// # Errors
/// One cannot be packed, is packed with a warning, or does not build from its package.
pub fn install(folder: &Path, target_dir: &str) -> Outcome {
    // What they are verified by is the installation below.
    let mut pack = cargo(&["package", "--workspace", "--no-verify", "--locked"]);
    // A checkout that somebody works in can be tried as well.
    pack.args(["--allow-dirty", "--target-dir", target_dir]);
    let said = pack.output().map_err(|error| format!("cargo package: {error}"))?;
    let text = String::from_utf8_lossy(&said.stderr);
    if !said.status.success() || text.contains("warning:") {
        return Err(format!("cargo package is not clean: {text}"));
    }
    let version = workspace_version()?;
    let unpacked = folder.join("crates");
    std::fs::create_dir_all(&unpacked).map_err(|error| error.to_string())?;
    for name in PUBLISHED {
        let file = root().join(target_dir).join(format!("package/{name}-{version}.crate"));
        output(Command::new("tar").arg("-xzf").arg(file).current_dir(&unpacked))?;
        for brought in ["LICENSE-MIT", "LICENSE-APACHE", "README.md"] {
            let path = unpacked.join(format!("{name}-{version}")).join(brought);
            if !path.is_file() {
                return Err(format!("the package {name} comes without {brought}"));
            }
        }
    }
    let at = |name: &str| unpacked.join(format!("{name}-{version}")).display().to_string();
    let mut install = cargo(&["install", "--debug", "--locked", "--no-track", "--path"]);
    // Where the tests are built, too: most of what it needs is there.
    install.arg(at("lockkeeper-cli")).arg("--target-dir").arg(root().join("target"));
    // Backtraces are of no use here.
    install.env("CARGO_PROFILE_DEV_DEBUG", "false");
    for name in PUBLISHED.into_iter().filter(|name| *name != "lockkeeper-cli") {
        install.args(["--config", &format!("patch.crates-io.{name}.path={:?}", at(name))]);
    }
    install.arg("--root").arg(folder.join("installed")).current_dir(folder);
    output(&mut install)?;
    let said = output(Command::new(folder.join("installed/bin/lockkeeper")).arg("--version"))?;
    println!("cargo install, from the packaged crates: {}", String::from_utf8_lossy(&said).trim());
    for left in ["crates", "installed"] {
        std::fs::remove_dir_all(folder.join(left)).map_err(|error| format!("{left}: {error}"))?;
    }
    Ok(())
}
