//! Entries as a table for people.

use std::time::{Duration, SystemTime};

use lockkeeper::{Ends, Entry, Holder, Kind, Mode, Waiter};

use self::layout::COLUMNS;
pub use self::layout::table;
use crate::text::{shown, spoken};

mod layout;

/// One line of the table: a holder, or a name that nobody holds.
#[derive(Clone, Debug)]
pub struct Row {
    /// What stands in each column.
    cells: [String; COLUMNS],
    /// Whether [`HELD_BY`] is somebody, and not a state.
    is_held: bool,
    /// What stands below, a line each.
    more: Vec<String>,
}

/// One row a holder; one for a name that nobody holds.
pub fn rows(entries: &[Entry]) -> Vec<Row> {
    entries.iter().flat_map(rows_of).collect()
}

/// The same with the waiters, as many of each name as a screen may show.
pub fn rows_with_waiters(entries: &[Entry], most: usize) -> Vec<Row> {
    let with = |entry: &Entry| {
        let mut rows = rows_of(entry);
        // One line that says how many more there are takes the place of one waiter.
        let shown = if entry.waiters.len() > most { most.saturating_sub(1) } else { most };
        let mut more: Vec<_> =
            entry.waiters.iter().take(shown).map(|w| format!("waiting: {}", waits(w))).collect();
        if let Some(hidden @ 1..) = entry.waiters.len().checked_sub(shown) {
            more.push(format!("and {hidden} more waiting"));
        }
        if let Some(last) = rows.last_mut() {
            last.more = more;
        }
        rows
    };
    entries.iter().flat_map(with).collect()
}

fn rows_of(entry: &Entry) -> Vec<Row> {
    let name = shown(entry.name.as_str());
    let kind = match (entry.kind, entry.limit) {
        (Kind::Semaphore, Some(limit)) => format!("semaphore of {limit}"),
        (kind, _) => kind.to_string(),
    };
    let waiting =
        if entry.waiters.is_empty() { String::new() } else { entry.waiters.len().to_string() };
    if entry.holders.is_empty() {
        let readable =
            || entry.count.map_or_else(|| "free".to_owned(), |count| format!("count {count}"));
        let state =
            if entry.unreadable.is_some() { "cannot be read".to_owned() } else { readable() };
        let cells = [name, kind, String::new(), state, String::new(), String::new(), waiting];
        return vec![Row { cells, is_held: false, more: Vec::new() }];
    }
    let row = |(at, holder): (usize, &Holder)| {
        let (name, kind, waiting) = if at == 0 {
            (name.clone(), kind.clone(), waiting.clone())
        } else {
            Default::default()
        };
        let token = holder.token.map(|t| t.to_string()).unwrap_or_default();
        let cells = [name, kind, mode(holder), person(holder), since(holder.since), token, waiting];
        Row { cells, is_held: true, more: Vec::new() }
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

/// Host, process, program, in an election the leader's id, and the label.
fn person(holder: &Holder) -> String {
    let mut words = vec![holder.host.as_deref().map_or_else(|| "somebody".to_owned(), shown)];
    words.extend(holder.pid.map(|pid| format!("pid {pid}")));
    words.extend(holder.program.as_deref().filter(|p| !p.is_empty()).map(shown));
    words.extend(holder.value.as_deref().map(|v| format!("as {}", shown(v))));
    // Last: where a line has no room it is what gives way.
    words.extend(holder.label.as_deref().map(|l| format!("“{}”", shown(l))));
    words.join(" ")
}

/// For how long.
fn since(since: Option<SystemTime>) -> String {
    let ago = since.and_then(|since| SystemTime::now().duration_since(since).ok());
    // Whole seconds: a table is looked at, and not measured with.
    ago.map(|ago| {
        if ago.as_secs() == 0 {
            "0s".to_owned()
        } else {
            spoken(Duration::from_secs(ago.as_secs()))
        }
    })
    .unwrap_or_default()
}

/// One name with everybody, in lines.
pub fn story(entry: &Entry, engine: &str) -> String {
    let state = match (entry.count, entry.holders.len()) {
        (Some(count), _) => format!("count {count}"),
        (None, 0) => "free".to_owned(),
        (None, _) => "held".to_owned(),
    };
    let limit = entry.limit.map(|l| format!(" of {l} permits")).unwrap_or_default();
    let mut text =
        format!("{} ({}{limit}, {engine}): {state}\n", shown(entry.name.as_str()), entry.kind);
    for holder in &entry.holders {
        let mut words = vec![format!("  held by {}", person(holder))];
        let for_how_long = since(holder.since);
        words.extend((!for_how_long.is_empty()).then(|| format!("for {for_how_long}")));
        let mut more = vec![mode(holder)];
        more.extend(holder.token.map(|t| format!("token {t}")));
        more.extend(
            holder
                .expires_in()
                .map(|left| format!("lease ends in {} unless renewed", spoken(left))),
        );
        // What another program left: it ends by nothing but a forced release.
        let left_for_ever = holder.ends == Some(Ends::Never);
        more.extend(left_for_ever.then(|| "without a time to live".to_owned()));
        more.retain(|m| !m.is_empty());
        text = text
            + &words.join(" ")
            + if more.is_empty() { "" } else { ", " }
            + &more.join(", ")
            + "\n";
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
    words
        .extend(waiter.mode.filter(|m| *m != Mode::Exclusive).map(|m| format!("({})", m.as_str())));
    words.extend(waiter.ahead.map(|ahead| match ahead {
        0 => "next in line".to_owned(),
        ahead => format!("with {ahead} ahead"),
    }));
    words.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::width::columns;
    use lockkeeper::{Name, Token};

    fn entry(name: &str, label: &str, waiters: u32) -> Entry {
        let mut entry = Entry::new(Kind::Lock, Name::new(name).unwrap());
        let mut holder = Holder::default();
        (holder.host, holder.pid, holder.mode) =
            (Some("ci-7".to_owned()), Some(4_121), Some(Mode::Exclusive));
        (holder.program, holder.label) =
            (Some("sh".to_owned()), Some(label.to_owned()).filter(|l| !l.is_empty()));
        (holder.token, holder.since) =
            (Token::raw(4_294_967_299), Some(SystemTime::now() - Duration::from_secs(192)));
        entry.holders.push(holder);
        entry.waiters = (0..waiters).map(|_| Waiter::default()).collect();
        entry
    }

    fn lines(entries: &[Entry], width: Option<usize>) -> Vec<String> {
        table(&rows(entries), width)
    }

    #[test]
    fn columns_stand_under_their_heads_whatever_is_in_them() {
        for width in [None, Some(80)] {
            let lines = lines(
                &[entry("a", "", 0), entry("日本", "", 0), entry("e\u{301}-longer", "", 2)],
                width,
            );
            let of = |at: usize| columns(lines[at].split("lock").next().unwrap());
            assert_eq!(columns(lines[0].split("KIND").next().unwrap()), of(1), "{lines:#?}");
            assert!(of(1) == of(2) && of(2) == of(3), "{lines:#?}");
        }
    }

    #[test]
    fn what_has_no_room_stands_below_and_nothing_is_cut_without_a_sign() {
        let name = "warehouse/berlin/import/of-the-whole-night/orders-and-returns";
        let label = "the nightly import of all that the shops have sold since the day before";
        let lines = lines(&[entry(name, label, 3), entry("short", "", 0)], Some(80));
        assert!(lines.iter().all(|line| columns(line) <= 80), "{lines:#?}");
        for word in ["NAME", "TOKEN", "WAITING"] {
            assert!(lines[0].contains(word), "{word}: {lines:#?}");
        }
        assert!(
            lines[1].starts_with("warehouse/")
                && lines[1].contains('…')
                && lines[1].contains("returns"),
            "{lines:#?}"
        );
        assert!(
            lines[1].contains("3m12s")
                && lines[1].contains("4294967299")
                && lines[1].ends_with(" 3"),
            "{lines:#?}"
        );
        assert!(
            lines[2].starts_with("  held by ci-7 pid 4121 sh “the nightly")
                && lines[2].ends_with('…'),
            "{lines:#?}"
        );
        // The name is there whole, too.
        assert_eq!(lines[3], format!("  name: {name}"), "{lines:#?}");
        assert_eq!(lines[5], "  held by ci-7 pid 4121 sh", "{lines:#?}");
        assert_eq!(lines.len(), 6, "a name that is not shortened stands there once: {lines:#?}");
    }

    #[test]
    fn a_shortened_name_stands_whole_below_whatever_is_in_it_and_however_long_it_is() {
        let tail = "/a name with words/日本語/e\u{301}".repeat(20);
        for (name, width) in [("x".repeat(1024), 80), (tail.clone(), 80), (tail, 20)] {
            let lines = lines(&[entry(&name, "", 0)], Some(width));
            assert!(lines.iter().all(|line| columns(line) <= width), "{width}: {lines:#?}");
            let at = lines.iter().position(|line| line.starts_with("  name: ")).unwrap();
            let parts = lines[at..].iter().map(|line| &line["  name: ".len()..]);
            assert_eq!(parts.collect::<String>(), name, "{width}: {lines:#?}");
        }
    }

    #[test]
    fn the_narrower_it_is_the_more_stands_below_and_who_waits_stays_in_the_table() {
        let entries = [entry("stock/42", "nightly", 3)];
        for width in 12..120 {
            let lines = lines(&entries, Some(width));
            assert!(lines.iter().all(|line| columns(line) <= width), "{width}: {lines:#?}");
            let all = lines.join("\n");
            assert!(
                lines[0].ends_with("WAITING") && lines[1].ends_with(" 3"),
                "{width}: {lines:#?}"
            );
            for word in ["stock/42", "lock", "exclusive", "3m12s", "4294967299"] {
                assert!(all.contains(word) || width < 20, "{width}: {word}: {lines:#?}");
            }
            assert!(
                all.contains("ci-7 pid 4121 sh “nightly”") || all.contains('…'),
                "{width}: {lines:#?}"
            );
        }
    }

    #[test]
    fn a_screen_shows_who_waits_and_how_many_more() {
        let waiting = |count, most| {
            let lines = table(&rows_with_waiters(&[entry("a", "", count)], most), Some(80));
            (
                lines.iter().filter(|l| l.contains("waiting: somebody")).count(),
                lines.last().cloned().unwrap(),
            )
        };
        assert_eq!(waiting(3, 3).0, 3);
        assert_eq!(waiting(4, 3), (2, "  and 2 more waiting".to_owned()));
        assert_eq!(waiting(0, 3).0, 0);
    }
}
