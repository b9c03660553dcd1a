//! Entries as a table for people.

use std::time::{Duration, SystemTime};

use lockkeeper::{Entry, Holder, Kind, Mode, Waiter};

use crate::text::{shown, spoken};

/// The columns.
pub const HEAD: [&str; 7] = ["NAME", "KIND", "MODE", "HELD BY", "FOR", "TOKEN", "WAITING"];

/// One line a holder; one for a name that nobody holds.
pub fn rows(entries: &[Entry]) -> Vec<[String; 7]> {
    entries.iter().flat_map(rows_of).collect()
}

fn rows_of(entry: &Entry) -> Vec<[String; 7]> {
    let name = shown(entry.name.as_str());
    let kind = match (entry.kind, entry.limit) {
        (Kind::Semaphore, Some(limit)) => format!("semaphore of {limit}"),
        (kind, _) => kind.to_string(),
    };
    let waiting = if entry.waiters.is_empty() { String::new() } else { entry.waiters.len().to_string() };
    if entry.holders.is_empty() {
        let readable = || entry.count.map_or_else(|| "free".to_owned(), |count| format!("count {count}"));
        let state = if entry.unreadable.is_some() { "cannot be read".to_owned() } else { readable() };
        return vec![[name, kind, String::new(), state, String::new(), String::new(), waiting]];
    }
    let row = |(at, holder): (usize, &Holder)| {
        let (name, kind, waiting) = if at == 0 { (name.clone(), kind.clone(), waiting.clone()) } else { Default::default() };
        let token = holder.token.map(|t| t.to_string()).unwrap_or_default();
        [name, kind, mode(holder), person(holder), since(holder.since), token, waiting]
    };
    entry.holders.iter().enumerate().map(row).collect()
}

/// How it is held.
pub fn mode(holder: &Holder) -> String {
    match holder.mode {
        Some(Mode::Permits { count: 1, .. }) => "1 permit".to_owned(),
        Some(Mode::Permits { count, .. }) => format!("{count} permits"),
        Some(mode) => mode.as_str().to_owned(),
        None => String::new(),
    }
}

/// Host, process, program, label and, in an election, the leader's id.
fn person(holder: &Holder) -> String {
    let mut words = vec![holder.host.as_deref().map_or_else(|| "somebody".to_owned(), shown)];
    words.extend(holder.pid.map(|pid| format!("pid {pid}")));
    words.extend(holder.program.as_deref().filter(|p| !p.is_empty()).map(shown));
    words.extend(holder.label.as_deref().map(|l| format!("“{}”", shown(l))));
    words.extend(holder.value.as_deref().map(|v| format!("as {}", shown(v))));
    words.join(" ")
}

/// For how long.
fn since(since: Option<SystemTime>) -> String {
    let ago = since.and_then(|since| SystemTime::now().duration_since(since).ok());
    // Whole seconds: a table is looked at, and not measured with.
    ago.map(|ago| if ago.as_secs() == 0 { "0s".to_owned() } else { spoken(Duration::from_secs(ago.as_secs())) }).unwrap_or_default()
}

/// One name with everybody, in lines.
pub fn story(entry: &Entry, engine: &str) -> String {
    let state = match (entry.count, entry.holders.len()) {
        (Some(count), _) => format!("count {count}"),
        (None, 0) => "free".to_owned(),
        (None, _) => "held".to_owned(),
    };
    let limit = entry.limit.map(|l| format!(" of {l} permits")).unwrap_or_default();
    let mut text = format!("{} ({}{limit}, {engine}): {state}\n", shown(entry.name.as_str()), entry.kind);
    for holder in &entry.holders {
        let mut words = vec![format!("  held by {}", person(holder))];
        let for_how_long = since(holder.since);
        words.extend((!for_how_long.is_empty()).then(|| format!("for {for_how_long}")));
        let mut more = vec![mode(holder)];
        more.extend(holder.token.map(|t| format!("token {t}")));
        more.extend(holder.expires_in.map(|left| format!("lease ends in {}", spoken(left))));
        // A key that another program left: it ends by nothing but a forced release.
        let left_for_ever =
            engine == "redis" && holder.host.is_none() && holder.mode == Some(Mode::Exclusive) && holder.expires_in.is_none();
        more.extend(left_for_ever.then(|| "without a time to live".to_owned()));
        more.retain(|m| !m.is_empty());
        text = text + &words.join(" ") + if more.is_empty() { "" } else { ", " } + &more.join(", ") + "\n";
    }
    for waiter in &entry.waiters {
        text = text + "  waiting: " + &waits(waiter) + "\n";
    }
    text
}

fn waits(waiter: &Waiter) -> String {
    let mut words = vec![waiter.host.as_deref().map_or_else(|| "somebody".to_owned(), shown)];
    words.extend(waiter.pid.map(|pid| format!("pid {pid}")));
    let for_how_long = since(waiter.since);
    words.extend((!for_how_long.is_empty()).then(|| format!("for {for_how_long}")));
    words.extend(waiter.mode.filter(|m| *m != Mode::Exclusive).map(|m| format!("({})", m.as_str())));
    words.extend(waiter.ahead.map(|ahead| format!("with {ahead} ahead")));
    words.join(" ")
}

/// Rows under their heads, each column as wide as it needs, cut to `width` columns of the terminal if there is one.
pub fn table(rows: &[[String; 7]], width: Option<usize>) -> String {
    let heads = HEAD.map(str::to_owned);
    let all = || std::iter::once(&heads).chain(rows);
    let needs: Vec<usize> = (0..HEAD.len()).map(|c| all().filter_map(|r| r.get(c)).map(|t| columns(t)).max().unwrap_or(0)).collect();
    let mut text = String::new();
    for row in all() {
        let mut line = String::new();
        for (cell, need) in row.iter().zip(&needs) {
            line += cell;
            line.extend(std::iter::repeat_n(' ', need - columns(cell).min(*need) + 2));
        }
        text += &cut(line.trim_end(), width);
        text.push('\n');
    }
    text
}

/// How many columns a text takes, at most: what is not ASCII may be two wide.
fn columns(text: &str) -> usize {
    text.chars().map(|c| if c.is_ascii() || !wide(c) { 1 } else { 2 }).sum()
}

fn wide(c: char) -> bool {
    matches!(c, '\u{1100}'..='\u{115f}' | '\u{2e80}'..='\u{a4cf}' | '\u{ac00}'..='\u{d7a3}' | '\u{f900}'..='\u{faff}' | '\u{fe30}'..='\u{fe6f}' | '\u{ff00}'..='\u{ff60}' | '\u{1f300}'..='\u{1faff}')
}

/// A line that does not wrap.
pub fn cut(line: &str, width: Option<usize>) -> String {
    let Some(width) = width else { return line.to_owned() };
    let mut used = 0;
    line.chars()
        .take_while(|c| {
            used += if wide(*c) { 2 } else { 1 };
            used <= width
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_stand_under_their_heads_and_lines_do_not_wrap() {
        let row = |name: &str| [name, "lock", "exclusive", "ci-7 pid 1", "3s", "64", "2"].map(str::to_owned);
        let text = table(&[row("a"), row("日本"), row("a-long-name")], None);
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines[0].find("KIND"), lines[3].find("lock"));
        assert!(lines[2].starts_with("日本         lock"), "{}", lines[2]);
        assert!(table(&[row("a")], Some(20)).lines().all(|l| l.chars().count() <= 20));
    }
}
