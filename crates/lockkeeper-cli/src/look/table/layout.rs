//! Where the parts of a row stand: in columns, as far as the terminal is wide enough, and else
//! below.

use super::Row;
use crate::text::width::{columns, fit, fit_name, split};

/// How many columns there are.
pub const COLUMNS: usize = 7;

const HEAD: [&str; COLUMNS] = ["NAME", "KIND", "MODE", "HELD BY", "FOR", "TOKEN", "WAITING"];
const NAME: usize = 0;
const HELD_BY: usize = 3;
const FOR: usize = 4;
const TOKEN: usize = 5;

/// What leaves the columns first where they have no room. The name and who waits never do.
const LEAVES: [usize; 5] = [HELD_BY, 1, 2, TOKEN, FOR];
/// A name that is longer is shortened before another column leaves.
const NAME_ROOM: usize = 32;
/// A holder that is longer is shortened where this is left of a line, and else gets a line.
const HOLDER_ROOM: usize = 40;
/// Between two columns.
const GAP: usize = 2;
/// Before what stands below.
const INDENT: &str = "  ";
/// Before a name that stands there whole, where this leaves it room.
const WHOLE_NAME: &str = "  name: ";

/// The lines of rows under their heads, each column as wide as it needs. On a terminal of `width`
/// columns no line is longer: what has no room beside the others stands below them, and an ellipsis
/// says where a text is not whole.
pub fn table(rows: &[Row], width: Option<usize>) -> Vec<String> {
    let heads = HEAD.map(str::to_owned);
    let all = || std::iter::once(&heads).chain(rows.iter().map(|row| &row.cells));
    let need = |column: usize| {
        all().filter_map(|cells| cells.get(column)).map(|t| columns(t)).max().unwrap_or(0)
    };
    let layout = Layout::of(std::array::from_fn(need), width);
    let mut lines = vec![layout.beside(&heads)];
    for row in rows {
        // A name's second holder may have nothing beside the name.
        lines.extend(Some(layout.beside(&row.cells)).filter(|line| !line.is_empty()));
        lines.extend(layout.below(row));
        lines.extend(layout.name_below(row));
        lines.extend(row.more.iter().map(|text| layout.whole(&format!("{INDENT}{text}"))));
    }
    lines
}

/// How wide each column is; `None` for one whose cells stand below.
struct Layout {
    widths: [Option<usize>; COLUMNS],
    width: Option<usize>,
}

impl Layout {
    fn of(needs: [usize; COLUMNS], width: Option<usize>) -> Self {
        let mut widths = needs.map(Some);
        let Some(width) = width else { return Self { widths, width } };
        let others = |widths: &[Option<usize>; COLUMNS]| {
            widths.iter().skip(NAME + 1).flatten().map(|w| GAP + w).sum::<usize>()
        };
        let [name, ..] = needs;
        let mut leaves = LEAVES.into_iter();
        // Nothing leaves while all of it has room; then as much as a name needs to be known by.
        let mut wanted = name;
        while others(&widths) + wanted > width {
            let Some(column) = leaves.next() else { break };
            if let Some(leaving) = widths.get_mut(column) {
                *leaving = None;
            }
            wanted = name.min(NAME_ROOM);
        }
        let room = width.saturating_sub(others(&widths)).max(1);
        let [first, ..] = &mut widths;
        *first = Some(name.min(room));
        Self { widths, width: Some(width) }
    }

    /// The cells that stand in columns.
    fn beside(&self, cells: &[String; COLUMNS]) -> String {
        let mut line = String::new();
        for (at, (cell, width)) in cells.iter().zip(self.widths).enumerate() {
            let Some(width) = width else { continue };
            let cell = if at == NAME { fit_name(cell, width) } else { fit(cell, width) };
            line += &cell;
            line.extend(std::iter::repeat_n(' ', width - columns(&cell) + GAP));
        }
        self.whole(line.trim_end())
    }

    /// The cells that have no column, in words, in as few lines as they need.
    fn below(&self, row: &Row) -> Vec<String> {
        let Some(width) = self.width else { return Vec::new() };
        let mut lines: Vec<String> = Vec::new();
        let has_left =
            |(at, (_, width)): &(usize, (_, Option<usize>))| *at != NAME && width.is_none();
        for (at, (cell, _)) in row.cells.iter().zip(self.widths).enumerate().filter(has_left) {
            let words = match at {
                _ if cell.is_empty() => continue,
                HELD_BY if row.is_held => format!("held by {cell}"),
                FOR => format!("for {cell}"),
                TOKEN => format!("token {cell}"),
                _ => cell.clone(),
            };
            let has_room = |line: &&mut String| {
                let room = width.saturating_sub(columns(line) + GAP);
                columns(&words) <= room || at == HELD_BY && room >= HOLDER_ROOM
            };
            match lines.last_mut().filter(has_room) {
                Some(line) => *line = self.whole(&format!("{line}, {words}")),
                None => lines.push(self.whole(&format!("{INDENT}{words}"))),
            }
        }
        lines
    }

    /// The whole name, where its column has a shortened one: in as many full lines as it needs.
    fn name_below(&self, row: &Row) -> Vec<String> {
        let [name, ..] = &row.cells;
        let [Some(room), ..] = self.widths else { return Vec::new() };
        let Some(width) = self.width.filter(|_| columns(name) > room) else { return Vec::new() };
        let mut before = if width >= 2 * WHOLE_NAME.len() { WHOLE_NAME } else { INDENT }.to_owned();
        let (mut lines, mut rest) = (Vec::new(), name.as_str());
        while !rest.is_empty() {
            // A character of two columns needs two.
            let (part, left) = split(rest, width.saturating_sub(before.len()).max(2));
            lines.push(format!("{before}{part}"));
            before = " ".repeat(before.len());
            rest = left;
        }
        lines
    }

    /// A line that does not wrap.
    fn whole(&self, line: &str) -> String {
        self.width.map_or_else(|| line.to_owned(), |width| fit(line, width))
    }
}
