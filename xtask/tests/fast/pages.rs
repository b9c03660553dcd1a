//! What the pages say of the repository is true: the tests, files and commands they name exist.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

fn walk(folder: &Path, ending: &str, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        let name = entry.file_name().to_string_lossy().into_owned();
        if path.is_dir() && name != "target" && !name.starts_with('.') {
            walk(&path, ending, found);
        } else if name.ends_with(ending) {
            found.push(path);
        }
    }
}

fn files(folders: &[&str], ending: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for folder in folders {
        walk(&root().join(folder), ending, &mut found);
    }
    found.sort();
    assert!(!found.is_empty(), "no {ending} under {folders:?}");
    found
}

fn read(page: &str) -> String {
    fs::read_to_string(root().join(page)).unwrap()
}

/// What stands between backticks in a page, outside blocks of code, with the number of its line.
fn quoted(page: &str) -> Vec<(usize, &str)> {
    let mut inside = false;
    let mut found = Vec::new();
    for (line, text) in page.lines().enumerate() {
        if text.trim_start().starts_with("```") {
            inside = !inside;
        } else if !inside {
            found.extend(text.split('`').skip(1).step_by(2).map(|word| (line + 1, word)));
        }
    }
    found
}

/// A test is cited by the name of its function: words in lower case, four or more.
fn is_test_name(word: &str) -> bool {
    let plain = |part: &str| {
        !part.is_empty() && part.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit())
    };
    word.split('_').count() >= 4 && word.split('_').all(plain)
}

fn functions() -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for path in files(&["crates", "xtask", "interop"], ".rs") {
        for line in fs::read_to_string(path).unwrap().lines() {
            // A macro that makes tests has a line for each.
            if let Some((name, given)) = line.trim().split_once(": \"")
                && is_test_name(name)
                && given.ends_with("\",")
            {
                names.insert(name.to_owned());
            }
            let Some((before, after)) = line.split_once("fn ") else { continue };
            if before
                .split_whitespace()
                .all(|word| matches!(word, "pub" | "async" | "pub(crate)" | "pub(super)"))
            {
                names.insert(
                    after.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect(),
                );
            }
        }
    }
    names
}

#[test]
fn every_test_that_a_page_cites_exists() {
    let functions = functions();
    assert!(functions.contains("every_test_that_a_page_cites_exists"));
    let mut missing = Vec::new();
    // The pages on data formats quote names of fields, which look the same.
    let of_formats = |path: &PathBuf| {
        ["docs/json.md", "docs/history.md"].iter().any(|page| path.ends_with(page))
    };
    for path in files(&["."], ".md").into_iter().filter(|path| !of_formats(path)) {
        let page = fs::read_to_string(&path).unwrap();
        for (line, word) in quoted(&page).into_iter().filter(|(_, word)| is_test_name(word)) {
            if !functions.contains(word) {
                missing.push(format!("{}:{line}: `{word}`", path.display()));
            }
        }
    }
    assert!(missing.is_empty(), "cited and not there:\n{}", missing.join("\n"));
}

#[test]
fn what_is_left_out_of_the_gate_by_its_name_says_so_at_the_beginning_of_it() {
    // The gate leaves out whatever has one of these anywhere in its name.
    let elsewhere = |name: &String| {
        ["timed_", "needs_root_"].iter().any(|it| !name.starts_with(it) && name.contains(it))
    };
    let elsewhere: Vec<String> = functions().into_iter().filter(elsewhere).collect();
    assert!(elsewhere.is_empty(), "rename {elsewhere:?}: the gate would leave them out");
}

#[test]
fn every_line_of_a_promise_names_its_test_or_says_why_there_is_none() {
    let mut pages = files(&["docs/engines"], ".md");
    pages.extend(["docs/run.md", "docs/library.md"].map(|page| root().join(page)));
    for path in pages {
        let page = fs::read_to_string(&path).unwrap();
        let mut rows = 0;
        let mut head = "";
        for (number, line) in page.lines().enumerate() {
            if !line.starts_with('|') {
                head = "";
            } else if head.is_empty() {
                head = line;
            } else if head.trim_end().ends_with("held by |") && !line.starts_with("|--") {
                let last = line.trim_end().trim_end_matches('|').rsplit('|').next().unwrap();
                let named = quoted(last).iter().any(|(_, word)| is_test_name(word));
                assert!(
                    named || last.contains("no test:"),
                    "{}:{}: names no test and says no `no test: why`: {line}",
                    path.display(),
                    number + 1
                );
                rows += 1;
            }
        }
        assert!(rows > 0, "{} has no table whose last column is `held by`", path.display());
    }
}

#[test]
fn the_safety_page_fits_on_a_few_screens_and_has_a_row_for_each_engine_with_its_page() {
    let page = read("SAFETY.md");
    assert!(page.len() <= 8 * 1024, "{} bytes", page.len());
    for path in files(&["docs/engines"], ".md") {
        let file = path.file_name().unwrap().to_string_lossy().into_owned();
        assert!(page.contains(&format!("(docs/engines/{file})")), "{file}");
        let text = fs::read_to_string(&path).unwrap();
        let heads: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("## ")).collect();
        let same = [
            "Promise",
            "What breaks it",
            "Options",
            "Layouts",
            "Costs",
            "Connections and threads",
            "How to operate it",
        ];
        assert_eq!(heads, same, "{file}");
    }
}

#[test]
fn every_failure_that_a_test_is_named_after_has_its_line() {
    let page = read("docs/failures.md");
    let lines: BTreeSet<String> = page
        .lines()
        .filter_map(|line| line.strip_prefix("| ")?.split(' ').next())
        .map(str::to_lowercase)
        .collect();
    assert!(lines.contains("g1") && lines.contains("z11"), "{lines:?}");
    let is_number = |part: &&str| {
        let digits = part.strip_prefix(['d', 'f', 'g', 'l', 'p', 's', 'z']);
        digits.is_some_and(|rest| !rest.is_empty() && rest.chars().all(|c| c.is_ascii_digit()))
    };
    // A function of a few letters, such as a percentile, is no test.
    for name in functions().iter().filter(|name| is_test_name(name)) {
        for number in name.split('_').take(3).take_while(|part| part.len() < 4).filter(is_number) {
            assert!(lines.contains(number), "docs/failures.md has no line {number}: {name}");
        }
    }
}

/// Rules (R1), failures (G4) and the like, outside of blocks of code and backticks.
fn codes(text: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut block = false;
    for line in text.lines() {
        block ^= line.trim_start().starts_with("```");
        let plain = line.split('`').step_by(2).filter(|_| !block);
        let words = plain.flat_map(|part| part.split(|c: char| !c.is_alphanumeric()));
        found.extend(words.filter(|word| is_code(word)).map(str::to_owned));
    }
    found
}

fn is_code(word: &str) -> bool {
    let digits = word.strip_prefix(|c| "RDFGLPSZBNQW".contains(c));
    digits.is_some_and(|rest| {
        (1..=2).contains(&rest.len()) && rest.chars().all(|c| c.is_ascii_digit())
    })
}

#[test]
fn every_page_that_cites_a_rule_or_a_failure_by_its_number_links_to_the_list_of_them() {
    let mut lost = Vec::new();
    let mut seen = 0;
    let mut pages = files(&["docs"], ".md");
    pages.extend(["README.md", "SAFETY.md"].map(|page| root().join(page)));
    for path in pages.iter().filter(|path| !path.ends_with("failures.md")) {
        let page = fs::read_to_string(path).unwrap();
        for code in codes(&page) {
            seen += 1;
            let list =
                if code.starts_with('R') { "ARCHITECTURE.md#the-rules)" } else { "failures.md)" };
            let known = !code.starts_with(['B', 'N', 'Q', 'W']);
            if !known || !page.contains(list) {
                lost.push(format!("{}: {code}", path.display()));
            }
        }
    }
    assert!(seen > 40, "{seen}");
    assert!(lost.is_empty(), "cited, and no link says what it is:\n{}", lost.join("\n"));
}

#[test]
fn no_public_documentation_of_the_library_cites_a_rule_or_a_failure_by_its_number() {
    let mut rooms = files(
        &["open", "primitives", "words", "observe", "test_util"]
            .map(|room| format!("crates/lockkeeper/src/{room}"))
            .each_ref()
            .map(String::as_str),
        ".rs",
    );
    let alone = ["lib.rs", "engine/mod.rs", "engine/events.rs", "engine/registration.rs"];
    rooms.extend(alone.map(|file| root().join("crates/lockkeeper/src").join(file)));
    let mut cited = Vec::new();
    for path in rooms {
        for (number, line) in fs::read_to_string(&path).unwrap().lines().enumerate() {
            let text = line.trim_start();
            let doc = text.strip_prefix("///").or_else(|| text.strip_prefix("//!"));
            for code in doc.map(codes).unwrap_or_default() {
                cited.push(format!("{}:{}: {code}", path.display(), number + 1));
            }
        }
    }
    assert!(cited.is_empty(), "readers of docs.rs know none of these:\n{}", cited.join("\n"));
}

#[test]
fn every_link_between_pages_leads_somewhere() {
    let mut broken = Vec::new();
    for path in files(&["."], ".md") {
        let page = fs::read_to_string(&path).unwrap();
        for target in page.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let file = target.split('#').next().unwrap();
            if !file.is_empty()
                && !file.contains("://")
                && !path.parent().unwrap().join(file).exists()
            {
                broken.push(format!("{}: {target}", path.display()));
            }
        }
        for (line, word) in quoted(&page) {
            let ours = ["crates/", "docs/", "xtask/", "interop/", ".ci/"]
                .iter()
                .any(|start| word.starts_with(start));
            // A pattern or a name to be filled in is no path.
            if ours
                && !word.contains(['*', '<', ' '])
                && !word.contains("NAME")
                && !root().join(word).exists()
            {
                broken.push(format!("{}:{line}: `{word}`", path.display()));
            }
        }
    }
    assert!(broken.is_empty(), "broken:\n{}", broken.join("\n"));
}

#[test]
fn the_readme_starts_with_the_demo_on_two_engines_and_the_tests() {
    let readme = read("README.md");
    let first: Vec<&str> = readme
        .lines()
        .filter(|line| line.trim_start().starts_with("cargo "))
        .map(str::trim)
        .collect();
    for (at, words) in [
        "cargo run --release -- demo oversell   #",
        "cargo run --release -- demo oversell --url redis:auto",
        "cargo xtask test",
    ]
    .iter()
    .enumerate()
    {
        assert!(first.get(at).is_some_and(|line| line.starts_with(words)), "{first:?}");
    }
}

#[test]
fn every_warning_that_the_code_gives_is_in_the_table_of_its_ids() {
    let (page, mut ids) = (read("docs/json.md"), BTreeSet::new());
    for path in files(&["crates/lockkeeper/src", "crates/lockkeeper-cli/src"], ".rs") {
        let text = fs::read_to_string(&path).unwrap();
        let text = text.split("#[cfg(test)]").next().unwrap_or_default();
        let given = text.split("Warning {").skip(1).filter_map(|rest| {
            rest.trim_start().strip_prefix("id: \"")?.split('"').next().map(str::to_owned)
        });
        let warned = text.split("warn(").skip(1).filter_map(|rest| {
            rest.trim_start().strip_prefix('"')?.split_once("\",").map(|(id, _)| id.to_owned())
        });
        let is_id = |id: &String| id.chars().all(|c| c.is_ascii_lowercase() || c == '-');
        ids.extend(given.chain(warned).filter(is_id));
    }
    assert!(ids.len() > 30, "{ids:?}");
    let unknown: Vec<_> = ids.iter().filter(|id| !page.contains(&format!("`{id}`"))).collect();
    assert!(unknown.is_empty(), "docs/json.md does not have {unknown:?}");
}

#[test]
fn the_changelog_knows_the_version_of_the_workspace() {
    let (manifest, changelog) = (read("Cargo.toml"), read("CHANGELOG.md"));
    let version = manifest
        .lines()
        .find_map(|line| line.strip_prefix("version = "))
        .unwrap()
        .trim_matches('"');
    let newest = changelog.lines().find_map(|line| line.strip_prefix("## ")).unwrap();
    assert!(
        newest == "Unreleased" || newest.starts_with(version),
        "Cargo.toml says {version}, CHANGELOG.md {newest}"
    );
}

#[test]
fn the_table_of_tools_says_what_tests_may_call() {
    // Programs that a test starts by name have a row, or come with every Debian system and with
    // Rust.
    let tools = read("xtask/src/tools.rs");
    let base = [
        "sh",
        "bash",
        "true",
        "false",
        "sleep",
        "cat",
        "kill",
        "cargo",
        "id",
        "echo",
        "test",
        "env",
        "prlimit",
        "sudo",
        "lockkeeper",
    ];
    let mut strangers = Vec::new();
    let row = |program: &str| tools.split_once(&format!("file: \"{program}\"")).map(|(_, row)| row);
    // These are installed for the campaign alone: a test of the gate would pass only where they
    // happen to be.
    let of_interop = |program: &str| {
        let need = row(program).and_then(|row| row.split("need: Need::").nth(1));
        need.is_some_and(|need| need.starts_with("Interop"))
    };
    for path in files(&["crates", "interop"], ".rs") {
        let text = fs::read_to_string(&path).unwrap();
        let heavy = path.components().any(|part| {
            let name = part.as_os_str().to_string_lossy();
            name == "interop" || name.starts_with("long_")
        });
        let calls = ["Command::new(\"", " outside(\""];
        let called = calls.iter().flat_map(|call| text.split(call).skip(1));
        for program in called.filter_map(|rest| rest.split('"').next()) {
            let known = base.contains(&program)
                || row(program).is_some() && (heavy || !of_interop(program));
            // A path belongs to the test; an empty or upper-case word is a name in an example.
            if !known
                && !program.contains('/')
                && program.chars().all(|c| c.is_ascii_lowercase() || c == '-')
                && !program.is_empty()
            {
                strangers.push(format!("{}: {program}", path.display()));
            }
        }
    }
    assert!(strangers.is_empty(), "add rows to xtask/src/tools.rs:\n{}", strangers.join("\n"));
}
