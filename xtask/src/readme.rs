//! Runs what the README shows: its `lockkeeper …` lines, as they stand there.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::Outcome;
use crate::project::root;
use crate::stage::Workshop;

/// Runs every line that starts with `lockkeeper`, with the binary in `bin` and a stand-in for each
/// program it names.
///
/// # Errors
/// There is no such line, or one fails.
pub fn run(workshop: &Workshop, bin: &Path) -> Outcome {
    let path = root().join("README.md");
    let readme =
        fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    let lines = commands(&readme);
    if lines.is_empty() {
        return Err("README.md shows no `lockkeeper` command".to_owned());
    }
    let place = workshop.sandbox.folder("readme").map_err(|error| error.to_string())?;
    for program in lines.iter().flat_map(|line| stand_ins(line)) {
        stand_in(&place.join(program)).map_err(|error| format!("{program}: {error}"))?;
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let path = std::env::join_paths(
        std::iter::once(PathBuf::from(bin)).chain(std::env::split_paths(&path)),
    )
    .map_err(|error| error.to_string())?;
    for line in lines {
        println!("$ {line}");
        workshop
            .run(Command::new("sh").args(["-c", line]).current_dir(&place).env("PATH", &path))?;
    }
    Ok(())
}

fn commands(readme: &str) -> Vec<&str> {
    let blocks = readme.split("```sh\n").skip(1).filter_map(|rest| rest.split("```").next());
    blocks.flat_map(str::lines).filter(|line| line.starts_with("lockkeeper ")).collect()
}

/// The programs `./x` of a line.
fn stand_ins(line: &str) -> impl Iterator<Item = &str> {
    line.split_whitespace()
        .filter_map(|word| word.strip_prefix("./"))
        .filter(|name| !name.contains('/'))
}

fn stand_in(path: &Path) -> std::io::Result<()> {
    fs::write(path, "#!/bin/sh\necho \"$0 $*: token ${LOCKKEEPER_TOKEN:-none}\"\n")?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o755))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_our_own_commands_in_shell_blocks_are_run() {
        let readme = "x\n```sh\nlockkeeper run a -- ./b.sh c   # why\ncargo xtask \
                      test\n```\nlockkeeper no\n```rust\nlockkeeper no\n```\n";
        assert_eq!(commands(readme), ["lockkeeper run a -- ./b.sh c   # why"]);
        assert_eq!(stand_ins("lockkeeper run a -- ./b.sh c ../d").collect::<Vec<_>>(), ["b.sh"]);
    }
}
