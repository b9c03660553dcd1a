//! Runs what the pages show: their `lockkeeper …` lines, as they stand there.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::Outcome;
use crate::project::root;
use crate::stage::Workshop;

/// What is not run, by how it begins, and why.
const LEFT_OUT: [(&str, &str); 5] = [
    ("lockkeeper check run-directory", "a folder of the reader's"),
    ("lockkeeper demo oversell --url 'postgres://me@db/", "a server of the reader's"),
    ("lockkeeper torture redis://test-server", "a server of the reader's"),
    ("lockkeeper torture redis:auto --client exec:./my-lock", "a lock of the reader's"),
    ("lockkeeper torture redis:auto --client exec:'target/interop/", "the stage interop has it"),
];

/// Runs every line that starts with `lockkeeper`, with the binary in `bin` and a stand-in for each
/// program it names.
///
/// # Errors
/// The README has no such line, or one fails.
pub fn run(workshop: &Workshop, bin: &Path) -> Outcome {
    let place = workshop.sandbox.folder("readme").map_err(|error| error.to_string())?;
    fs::create_dir_all(place.join("reports")).map_err(|error| error.to_string())?;
    let path = std::env::var_os("PATH").unwrap_or_default();
    let path = std::env::join_paths(
        std::iter::once(PathBuf::from(bin)).chain(std::env::split_paths(&path)),
    )
    .map_err(|error| error.to_string())?;
    for (page, text) in pages()? {
        let lines = commands(&text);
        if lines.is_empty() && page == "README.md" {
            return Err("README.md shows no `lockkeeper` command".to_owned());
        }
        for line in lines.into_iter().filter(|line| left_out(line).is_none()) {
            for program in stand_ins(line) {
                stand_in(&place.join(program)).map_err(|error| format!("{program}: {error}"))?;
            }
            println!("{page}: $ {line}");
            let mut shell = Command::new("sh");
            shell.args(["-c", &script(line)]).current_dir(&place).env("PATH", &path);
            // The two engines of a page that moves from one to the other.
            for name in ["OLD", "NEW"] {
                shell.env(name, format!("file://{}", place.join(name).display()));
            }
            workshop.run(&mut shell)?;
        }
    }
    Ok(())
}

/// The README and the pages in docs, with their names.
fn pages() -> Result<Vec<(String, String)>, String> {
    let mut paths = vec![PathBuf::from("README.md")];
    for folder in ["docs", "docs/engines"] {
        let files = fs::read_dir(root().join(folder)).map_err(|e| format!("{folder}: {e}"))?;
        let files = files.flatten().map(|file| Path::new(folder).join(file.file_name()));
        paths.extend(files.filter(|path| path.extension().is_some_and(|end| end == "md")));
    }
    paths.sort();
    let read = |path: PathBuf| {
        let text = fs::read_to_string(root().join(&path));
        let name = path.display().to_string();
        text.map(|text| (name.clone(), text)).map_err(|error| format!("{name}: {error}"))
    };
    paths.into_iter().map(read).collect()
}

fn commands(page: &str) -> Vec<&str> {
    let blocks = page.split("```sh\n").skip(1).filter_map(|rest| rest.split("```").next());
    blocks.flat_map(str::lines).filter(|line| line.starts_with("lockkeeper ")).collect()
}

/// Why a line is not run, if it is not.
fn left_out(line: &str) -> Option<&'static str> {
    LEFT_OUT.iter().find(|(begins, _)| line.starts_with(begins)).map(|(_, why)| *why)
}

/// A line without its comment, briefly: a torture has three seconds, in which it may see too
/// little, a bench one for a row, and what would not end is ended.
fn script(line: &str) -> String {
    let line = line.split(" # ").next().unwrap_or(line).trim();
    let sub = line.split_whitespace().nth(1);
    let allow = |line: String, codes: &str| {
        format!("{line}\ncode=$?\ncase $code in {codes}) exit 0;; esac\nexit $code")
    };
    match sub {
        // 1 is a conviction, 2 too weak a try.
        Some("torture") => allow(format!("{line} --seconds 3"), "0|1|2"),
        Some("bench") => format!("{line} --seconds 1"),
        Some("watch") => allow(format!("timeout 1 {line}"), "0|124"),
        _ => line.to_owned(),
    }
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

    #[test]
    fn a_line_is_run_as_it_stands_but_for_what_takes_long() {
        let same = "lockkeeper run a -- ./b.sh c";
        assert_eq!(script(&format!("{same}   # why")), same);
        assert!(
            script("lockkeeper torture redis:auto")
                .starts_with("lockkeeper torture redis:auto --seconds 3\n")
        );
        assert!(script("lockkeeper watch  # a screen").starts_with("timeout 1 lockkeeper watch\n"));
    }

    #[test]
    fn what_is_left_out_stands_on_a_page_and_most_lines_are_run() {
        let pages = pages().unwrap();
        let lines: Vec<&str> = pages.iter().flat_map(|(_, page)| commands(page)).collect();
        for (begins, why) in LEFT_OUT {
            assert!(lines.iter().any(|line| line.starts_with(begins)), "{begins}: {why}");
        }
        assert!(lines.len() > 30, "{lines:?}");
    }
}
