//! What a later engine touches in the laboratory: its own folder, and one line of the table.

use std::path::{Path, PathBuf};

fn files(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files(&path, found);
        } else if path.extension().is_some_and(|end| end == "rs") && !path.ends_with("tests.rs") {
            found.push(path);
        }
    }
}

/// Whether the code of a line names an engine. `file` and `memory` are words of other things, too:
/// there only a text counts that is such a name, or a URL.
fn names(line: &str) -> bool {
    let code = if line.trim_start().starts_with("//") { "" } else { line };
    let words = code.to_ascii_lowercase();
    let mut texts = code.split('"').skip(1).step_by(2).zip(code.split('"').skip(2).step_by(2));
    words.contains("redis")
        || words.contains("zookeeper")
        || texts.any(|(text, after)| {
            ["file", "memory", "zk"].iter().any(|name| {
                let is_key = after.starts_with(':');
                text == *name && !is_key || text.contains(&format!("{name}:"))
            })
        })
}

#[test]
fn no_engine_is_named_outside_of_its_folder_and_the_table() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let (mut all, mut named) = (Vec::new(), Vec::new());
    files(&src, &mut all);
    // The suite's own subject in memory is there for tests.
    let ours =
        |path: &Path| ["engines", "conformance"].iter().any(|dir| path.starts_with(src.join(dir)));
    assert!(all.iter().any(|path| ours(path)), "the folders are where they were");
    for path in all.iter().filter(|path| !ours(path)) {
        let text = std::fs::read_to_string(path).unwrap();
        let code = text.split("#[cfg(test)]").next().unwrap_or_default();
        let lines = code.lines().enumerate().filter(|(_, line)| names(line));
        named.extend(lines.map(|(at, line)| format!("{}:{}: {line}", path.display(), at + 1)));
    }
    assert!(named.is_empty(), "{}", named.join("\n"));
}
