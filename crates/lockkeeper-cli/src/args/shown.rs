//! The commands that the pages show: what they name exists.

use std::fs;
use std::path::{Path, PathBuf};

use clap::Command;

use super::command;

/// The options of `check`, which reads its words itself.
const JUDGES: [&str; 7] =
    ["--recovery", "--linger", "--skew", "--allow", "--fenced", "--classes", "--list-clients"];

/// The pages that users read, with their names.
fn pages() -> Vec<(PathBuf, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut paths: Vec<PathBuf> =
        ["README.md", "SAFETY.md", "CHANGELOG.md"].map(|page| root.join(page)).to_vec();
    for folder in ["docs", "docs/engines"] {
        let files = fs::read_dir(root.join(folder)).unwrap();
        paths.extend(files.map(|file| file.unwrap().path()));
    }
    // It is about cargo's commands.
    paths.retain(|path| {
        path.extension().is_some_and(|e| e == "md") && !path.ends_with("releasing.md")
    });
    paths.into_iter().map(|path| (path.clone(), fs::read_to_string(path).unwrap())).collect()
}

/// The words between backticks and the lines of blocks, with their lines' numbers.
fn quoted(page: &str) -> Vec<(usize, &str)> {
    let mut found = Vec::new();
    let mut block = false;
    for (number, line) in page.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            block = !block;
        } else if block {
            found.push((number + 1, line));
        } else {
            found.extend(line.split('`').skip(1).step_by(2).map(|word| (number + 1, word)));
        }
    }
    found
}

/// What a command line says that does not exist, if anything.
fn unknown(whole: &Command, line: &str) -> Option<String> {
    let line = line.trim().strip_prefix("lockkeeper ")?;
    let comment = line.find(" # ").unwrap_or(line.len());
    let mut words = line[..comment].split_whitespace();
    let mut at = whole;
    while let Some(word) = words.next() {
        let option = word.split('=').next().unwrap();
        if word == "--" || matches!(word, "|" | ">" | "&&" | ";") {
            return None;
        } else if at.get_name() == "check" && JUDGES.contains(&option) {
            continue;
        } else if word.starts_with('-') && word.len() > 1 {
            let Some(takes) = takes_a_value(whole, at, option) else {
                return Some(option.to_owned());
            };
            if takes && !word.contains('=') && !is_short_with_value(word) {
                words.next();
            }
        } else if at.has_subcommands() {
            let Some(sub) = at.find_subcommand(word) else {
                // A word of the page for any of them, and what a process list shows.
                let any = word == "__guardian"
                    || word.chars().all(|c| c.is_ascii_uppercase() || c == '…');
                return (!any).then(|| word.to_owned());
            };
            at = sub;
        }
    }
    None
}

fn is_short_with_value(word: &str) -> bool {
    !word.starts_with("--") && word.len() > 2
}

/// Whether an option takes a value; `None` if there is none of this name.
fn takes_a_value(whole: &Command, at: &Command, option: &str) -> Option<bool> {
    let of = |command: &Command| {
        command.get_arguments().find_map(|arg| {
            let long = option.strip_prefix("--").is_some_and(|name| {
                arg.get_long() == Some(name)
                    || arg.get_all_aliases().unwrap_or_default().contains(&name)
            });
            let short = !option.starts_with("--")
                && option.chars().nth(1).is_some_and(|letter| {
                    arg.get_short() == Some(letter)
                        || arg.get_all_short_aliases().unwrap_or_default().contains(&letter)
                });
            (long || short).then(|| arg.get_action().takes_values())
        })
    };
    let everywhere = matches!(option, "--help" | "-h" | "--version" | "-V").then_some(false);
    of(at).or_else(|| of(whole)).or(everywhere)
}

#[test]
fn every_command_that_a_page_shows_exists_with_its_options() {
    let mut whole = command();
    whole.build();
    let (mut seen, mut wrong) = (0, Vec::new());
    for (path, page) in pages() {
        for (line, text) in quoted(&page) {
            seen += usize::from(text.trim().starts_with("lockkeeper "));
            if let Some(word) = unknown(&whole, text) {
                wrong.push(format!("{}:{line}: {word} in: {text}", path.display()));
            }
        }
    }
    assert!(seen > 50, "{seen}");
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
    for (line, word) in [
        ("lockkeeper rum a -- true", "rum"),
        ("lockkeeper run --nowait a -- true", "--nowait"),
        ("lockkeeper demo oversel", "oversel"),
        ("lockkeeper --url memory: ls --forse", "--forse"),
    ] {
        assert_eq!(unknown(&whole, line).as_deref(), Some(word), "{line}");
    }
}

#[test]
fn every_option_that_a_page_names_by_itself_belongs_to_a_command() {
    // Of cargo and its tasks.
    const OTHERS: [&str; 2] = ["--check", "--path"];
    let mut whole = command();
    whole.build();
    let demos = whole.find_subcommand("demo").unwrap();
    let all: Vec<&Command> =
        whole.get_subcommands().chain(demos.get_subcommands()).chain([&whole]).collect();
    let (mut seen, mut wrong) = (0, Vec::new());
    for (path, page) in pages() {
        for (line, text) in quoted(&page) {
            let option = text.split([' ', '=']).next().unwrap();
            if !option.starts_with("--")
                || option.len() < 3
                || OTHERS.contains(&option)
                || JUDGES.contains(&option)
            {
                continue;
            }
            seen += 1;
            if all.iter().all(|command| takes_a_value(&whole, command, option).is_none()) {
                wrong.push(format!("{}:{line}: {text}", path.display()));
            }
        }
    }
    assert!(seen > 50, "{seen}");
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

#[cfg(all(feature = "postgres", feature = "redlock", feature = "sentinel", feature = "zookeeper"))]
#[test]
fn every_broken_client_that_a_page_names_exists() {
    use lockkeeper_lab::torture::Subject;
    let (mut seen, mut wrong) = (0, Vec::new());
    for (path, page) in pages() {
        for rest in page.split("broken:").skip(1) {
            let end = rest.find(|c: char| !c.is_ascii_lowercase() && c != '-').unwrap_or(0);
            let name = rest[..end].trim_end_matches('-');
            if !name.is_empty() {
                seen += 1;
                let found = Subject::parse(&format!("broken:{name}"));
                wrong.extend(found.err().map(|why| format!("{}: {why}", path.display())));
            }
        }
    }
    assert!(seen > 20, "{seen}");
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

#[test]
fn every_step_of_the_articles_says_how_to_see_it_or_which_test_shows_it() {
    let (_, page) = pages().into_iter().find(|(path, _)| path.ends_with("articles.md")).unwrap();
    let mut steps = 0;
    let mut lines = page.lines();
    while let Some(head) = lines.next() {
        if !head.ends_with("| see it | shown by |") {
            continue;
        }
        let rows: Vec<&str> = lines.by_ref().skip(1).take_while(|l| l.starts_with('|')).collect();
        for row in rows {
            let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
            let [.., see, shown] = cells[..] else { panic!("{row}") };
            assert!(!see.is_empty() || !shown.is_empty(), "{row}");
            steps += 1;
        }
    }
    assert!(steps > 45, "{steps}");
}
