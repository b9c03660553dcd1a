//! Lines that break between words where a terminal ends.

use std::env;
use std::io::stdout;

use super::width::columns;
use crate::supervise::terminal;

/// How wide help is where no terminal says it.
const USUAL: usize = 80;
/// Longer lines are hard to read, however wide the terminal is.
const WIDEST: usize = 100;
/// A narrower terminal gets lines of this length.
const NARROWEST: usize = 40;
/// What stands in front of a gap in this part of a line is a head, and its text hangs beside it.
const HEAD: usize = 44;

/// How wide the terminal on stdout is, as COLUMNS says or it says itself; `None` without one.
pub fn terminal_width() -> Option<usize> {
    let terminal = terminal::width(stdout())?;
    let columns = env::var("COLUMNS").ok().and_then(|text| text.parse().ok());
    Some(columns.filter(|columns| *columns > 0).unwrap_or(terminal))
}

/// Help, as wide as the terminal; programs that read it get the usual width.
pub fn help(text: &str) -> String {
    wrapped(text, terminal_width().unwrap_or(USUAL).min(WIDEST))
}

/// What is told about an engine or a lock, where people read it: programs get whole lines.
pub fn told(text: &str) -> String {
    terminal_width().map_or_else(|| text.to_owned(), |width| wrapped(text, width))
}

/// The paragraphs of a text, a line each.
pub fn unfilled(text: &str) -> String {
    let joined = |paragraph: &str| paragraph.split('\n').collect::<Vec<_>>().join(" ");
    text.split("\n\n").map(joined).collect::<Vec<_>>().join("\n\n")
}

/// The text with every line broken between words where it is wider. What goes on below hangs under
/// the text beside its head, or is indented further. A line to type stays whole.
pub fn wrapped(text: &str, width: usize) -> String {
    let width = width.max(NARROWEST);
    text.split('\n').map(|line| one(line, width)).collect::<Vec<_>>().join("\n")
}

fn one(line: &str, width: usize) -> String {
    let is_typed = ["  lockkeeper ", "  ./"].iter().any(|typed| line.starts_with(typed));
    if columns(line) <= width || is_typed {
        return line.to_owned();
    }
    let hang = hang(line).min(width / 2);
    let (mut out, mut used) = (String::new(), 0);
    // The first word brings the spaces before it.
    for word in line.split_inclusive(' ') {
        let bare = columns(word.trim_end());
        if used > hang && used + bare > width && !word.trim().is_empty() {
            out.truncate(out.trim_end().len());
            out += "\n";
            out += &" ".repeat(hang);
            used = hang;
        }
        out += word;
        used += columns(word);
    }
    out
}

/// Where the lines below the first begin.
fn hang(line: &str) -> usize {
    let indent = line.len() - line.trim_start().len();
    let head = line.get(indent..).unwrap_or_default();
    let beside = head.find("  ").map(|gap| {
        let rest = head.get(gap..).unwrap_or_default();
        indent + columns(head.get(..gap).unwrap_or_default()) + rest.len() - rest.trim_start().len()
    });
    match beside {
        Some(beside) if beside <= HEAD => beside,
        _ if indent > 0 => indent + 2,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn q7_no_word_is_broken_and_what_goes_on_hangs_beside_its_head() {
        let option = "  -w, --wait <D>  Wait at most this long: 2.5 (seconds), 500ms, 2m; 0 is -n";
        let lines: Vec<String> = wrapped(option, 50).split('\n').map(str::to_owned).collect();
        assert!(lines.iter().all(|line| columns(line) <= 50), "{lines:#?}");
        assert!(lines[1].starts_with(&" ".repeat(18)) && !lines[1].starts_with(&" ".repeat(19)));
        let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(words(&lines.join("\n")), words(option));
        assert!(lines.iter().all(|line| line.trim_end() == line), "{lines:#?}");
    }

    #[test]
    fn a_line_to_type_a_long_word_and_what_has_room_stay_as_they_are() {
        let typed = format!("  lockkeeper run NAME -- {}", "word ".repeat(30));
        let long = "x".repeat(200);
        for text in [typed.as_str(), &long, "short", "", "  indented\n\nand more\n"] {
            assert_eq!(wrapped(text, 60), text);
        }
        let held = wrapped(&format!("  held by {}", "somebody ".repeat(12)), 60);
        assert!(held.lines().skip(1).all(|line| line.starts_with("    s")), "{held}");
    }

    #[test]
    fn a_paragraph_is_filled_anew() {
        assert_eq!(unfilled("one\ntwo\n\nthree"), "one two\n\nthree");
        let wide = wrapped("日本 日本 日本 日本 日本 日本 日本 日本 日本 日本", 40);
        assert!(
            wide.lines().all(|line| columns(line) <= 40) && wide.lines().count() == 2,
            "{wide}"
        );
    }
}
