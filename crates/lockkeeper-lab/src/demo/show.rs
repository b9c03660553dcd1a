//! What people see, a row a run, and what programs read, an object a run.

use std::io::Write;

use lockkeeper::url::EngineUrl;
use lockkeeper::{Description, Error, ErrorKind, Result};
use serde::Serialize;

use super::{Guarding, Options, Outcome, failover};
use crate::interrupt;

/// One run, as programs read it. Keys are only ever added.
#[derive(Serialize)]
struct Json {
    act: u8,
    guard: Guarding,
    engine: &'static str,
    processes: u32,
    orders: u32,
    stock: u64,
    sold: u64,
    oversold: u64,
    late_writes_accepted: u64,
    late_writes_rejected: u64,
    seconds: f64,
    repeats: Option<u64>,
}

impl Guarding {
    pub(super) fn words(self) -> &'static str {
        match self {
            Self::Nothing => "nothing",
            Self::Process => "a lock inside each process",
            Self::Lockkeeper => "lockkeeper",
            Self::Token => "lockkeeper, and the token at the stock",
            Self::Replicas => "lockkeeper, with wait_replicas=1",
            Self::Version => "no lock: the row's version",
        }
    }
}

/// Where it is shown.
pub(super) struct Shown<'a> {
    options: &'a Options,
    about: &'a Description,
    out: &'a mut dyn Write,
}

pub(super) fn unwritable(error: &std::io::Error) -> Error {
    if error.kind() == std::io::ErrorKind::BrokenPipe {
        interrupt::reader_is_gone();
    }
    Error::new(ErrorKind::Refused, format!("cannot write the outcome: {error}"))
}

impl<'a> Shown<'a> {
    pub(super) fn new(
        options: &'a Options,
        about: &'a Description,
        out: &'a mut dyn Write,
    ) -> Self {
        Self { options, about, out }
    }

    fn print(&mut self, text: &str) -> Result<()> {
        self.out
            .write_all(text.as_bytes())
            .and_then(|()| self.out.flush())
            .map_err(|e| unwritable(&e))
    }

    /// What is played, and the head of the table.
    pub(super) fn begin(&mut self) -> Result<()> {
        if self.options.json {
            return Ok(());
        }
        let Options { stock, workers, orders, url, .. } = self.options;
        // Printed without its password.
        let url = EngineUrl::parse(url)?;
        let text = format!(
            "{} for {}: {} with a read, a pause and a write, on {url}.\n\n{}\n",
            count(*stock, "piece"),
            count(u64::from(*orders), "order"),
            count(u64::from(*workers), "process"),
            row([
                "act",
                "what guards the sale",
                "processes",
                "sold",
                "oversold",
                "seconds",
                "outcome"
            ]),
        );
        self.print(&text)
    }

    /// One row, or one object.
    pub(super) fn outcome(&mut self, outcome: &Outcome) -> Result<()> {
        let text = if self.options.json { json(outcome)? } else { words(outcome) };
        self.print(&(text + "\n"))
    }

    /// A remark for people.
    pub(super) fn note(&mut self, text: &str) -> Result<()> {
        if self.options.json { Ok(()) } else { self.print(text) }
    }

    /// What it all came to.
    pub(super) fn end(&mut self, promised: bool) -> Result<()> {
        if self.options.json {
            return Ok(());
        }
        let mut text = String::from("\n");
        if !self.about.expiry.is_timed() {
            text += "Act 4, the holder that is paused beyond its lease, needs an engine with \
                     leases; this one has none to outlive.\n";
        }
        let fails_over = !failover::scenes(self.about.engine).is_empty();
        text += &outcome_of_all(promised, self.about.expiry.is_timed(), fails_over);
        self.print(&text)
    }
}

/// What it all came to; a row that sold a piece twice is named, with why.
fn outcome_of_all(promised: bool, has_leases: bool, fails_over: bool) -> String {
    if !promised {
        return "lockkeeper did NOT keep its promise: please report this with the lines above.\n"
            .to_owned();
    }
    let mut text =
        String::from("lockkeeper kept its promise: act 3 sold every piece once, and none twice.\n");
    if has_leases {
        text += "Act 4 sold one twice as long as the stock did not check the token: no lock can \
                 stop a holder\nthat was paused beyond its lease.\n";
    }
    if fails_over {
        text += "Act 5 sold one twice in a failover, as the class EFFICIENCY says.\n";
    }
    text
}

fn count(number: u64, what: &str) -> String {
    let plural = match what {
        _ if number == 1 => "",
        "process" => "es",
        _ => "s",
    };
    format!("{number} {what}{plural}")
}

fn row(cells: [&str; 7]) -> String {
    let [act, guard, processes, sold, oversold, seconds, outcome] = cells;
    format!(
        "{act:>3}  {guard:<38}  {processes:>9}  {sold:>6}  {oversold:>8}  {seconds:>7}  {outcome}"
    )
}

fn words(o: &Outcome) -> String {
    let numbers = [
        o.act.to_string(),
        o.processes.to_string(),
        o.sold.to_string(),
        o.oversold().to_string(),
        format!("{:.*}", if o.act == 6 { 2 } else { 1 }, o.seconds),
    ];
    let [act, processes, sold, oversold, seconds] = &numbers;
    // Act 5 is about engines, whatever the URL names.
    let with = if o.guarding == Guarding::Replicas { ", with wait_replicas=1" } else { "" };
    let on = format!("on {}{with}", o.engine);
    let guard = if o.act == 5 { &on } else { o.guarding.words() };
    let repeats = match o.guarding {
        Guarding::Version => format!(", {} done again", count(o.repeats, "sale")),
        _ => String::new(),
    };
    row([act, guard, processes, sold, oversold, seconds, &format!("{}{repeats}", verdict(o))])
}

fn verdict(o: &Outcome) -> &'static str {
    match (o.act, o.guarding) {
        (4, _) if o.accepted > 0 => "a late write was accepted: one piece, two customers",
        (4, _) if o.rejected > 0 => "the late write was rejected",
        (5, _) if o.oversold() > 0 => {
            "one piece, two customers: the promoted replica lacked the lock"
        }
        (5, Guarding::Replicas) if o.is_exact() => {
            "one piece, one customer: granted only once a replica had it"
        }
        (5, _) if o.is_exact() => "one piece, one customer: the other servers had the lock",
        (2, _) if o.oversold() > 0 && o.processes > 1 => {
            "oversold: every process has a lock of its own"
        }
        _ if o.oversold() > 0 => "oversold",
        (2, _) if o.is_exact() && o.processes == 1 => {
            "exactly the stock, so the flaw went unnoticed"
        }
        (3, _) if o.is_exact() => "exactly the stock, never one more",
        _ if u64::from(o.orders) <= o.stock && o.is_exact() => "as many as were ordered",
        _ if u64::from(o.orders) <= o.stock => "the record is wrong: sales overwrote each other",
        _ if o.is_exact() => "exactly the stock",
        _ => "the record is wrong",
    }
}

fn json(o: &Outcome) -> Result<String> {
    let object = Json {
        act: o.act,
        guard: o.guarding,
        engine: o.engine,
        processes: o.processes,
        orders: o.orders,
        stock: o.stock,
        sold: o.sold,
        oversold: o.oversold(),
        late_writes_accepted: o.accepted,
        late_writes_rejected: o.rejected,
        seconds: (o.seconds * 1000.0).round() / 1000.0,
        repeats: (o.guarding == Guarding::Version).then_some(o.repeats),
    };
    serde_json::to_string(&object).map_err(|e| Error::new(ErrorKind::Unknown, e.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(act: u8, guarding: Guarding, processes: u32, sold: u64) -> Outcome {
        let left = 50u64.saturating_sub(sold);
        let (engine, accepted, rejected, seconds) = ("file", 0, 0, 1.9);
        Outcome {
            act,
            guarding,
            engine,
            processes,
            orders: 400,
            stock: 50,
            sold,
            left,
            accepted,
            rejected,
            repeats: 3,
            seconds,
        }
    }

    #[test]
    fn the_object_has_the_keys_of_the_contract_in_their_order() {
        let text = json(&outcome(2, Guarding::Process, 8, 73)).unwrap();
        let expected = concat!(
            r#"{"act":2,"guard":"process","engine":"file","processes":8,"orders":400,"stock":50,"#,
            r#""sold":73,"oversold":23,"late_writes_accepted":0,"late_writes_rejected":0,"#,
            r#""seconds":1.9,"repeats":null}"#
        );
        assert_eq!(text, expected);
        for (guarding, word) in [
            (Guarding::Nothing, "none"),
            (Guarding::Lockkeeper, "lockkeeper"),
            (Guarding::Token, "lockkeeper+token"),
            (Guarding::Version, "version"),
        ] {
            let text = json(&outcome(1, guarding, 8, 73)).unwrap();
            assert!(text.contains(&format!("\"guard\":\"{word}\"")), "{text}");
        }
    }

    #[test]
    fn w5_the_last_words_contradict_no_row() {
        let of = |has_leases, fails_over| outcome_of_all(true, has_leases, fails_over);
        assert_eq!(of(false, false).lines().count(), 1);
        for (text, acts) in
            [(of(true, false), &["Act 4"][..]), (of(true, true), &["Act 4", "Act 5"])]
        {
            assert!(!text.contains("every piece was sold once"), "{text}");
            for act in acts {
                assert!(text.contains(&format!("{act} sold one twice")), "{text}");
            }
            assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
        }
        assert!(outcome_of_all(false, true, true).contains("NOT"));
    }

    #[test]
    fn a_row_says_what_happened_and_not_what_was_hoped_for() {
        assert_eq!(verdict(&outcome(1, Guarding::Nothing, 8, 400)), "oversold");
        assert_eq!(
            verdict(&outcome(2, Guarding::Process, 1, 50)),
            "exactly the stock, so the flaw went unnoticed"
        );
        assert_eq!(
            verdict(&outcome(2, Guarding::Process, 8, 90)),
            "oversold: every process has a lock of its own"
        );
        assert_eq!(
            verdict(&outcome(3, Guarding::Lockkeeper, 8, 50)),
            "exactly the stock, never one more"
        );
        let broken = outcome(3, Guarding::Lockkeeper, 8, 51);
        assert_eq!((verdict(&broken), broken.is_as_promised()), ("oversold", false));
        let lost_update = Outcome { left: 3, ..outcome(3, Guarding::Lockkeeper, 8, 50) };
        assert_eq!(
            (verdict(&lost_update), lost_update.is_as_promised()),
            ("the record is wrong", false)
        );
    }

    #[test]
    fn a_row_of_act_5_names_the_engine_and_how_many_customers_have_the_piece() {
        let played = |guarding, sold: u64| {
            let all = outcome(5, guarding, 2, sold);
            words(&Outcome { engine: "sentinel", orders: 2, stock: 1, left: 0, ..all })
        };
        for (row, guard, end) in [
            (played(Guarding::Lockkeeper, 2), "on sentinel  ", "one piece, two customers"),
            (played(Guarding::Lockkeeper, 1), "on sentinel  ", "the other servers had the lock"),
            (played(Guarding::Replicas, 1), "on sentinel, with wait_replicas=1  ", "a replica had"),
            (played(Guarding::Replicas, 2), "with wait_replicas=1  ", "one piece, two customers"),
        ] {
            assert!(row.contains(guard) && row.contains(end), "{row}");
        }
    }

    #[test]
    fn sales_by_version_that_are_not_exact_break_the_promise_and_all_say_how_often_they_repeated() {
        let exact = outcome(6, Guarding::Version, 8, 50);
        assert!(words(&exact).ends_with("exactly the stock, 3 sales done again"), "{exact:?}");
        assert!(json(&exact).unwrap().ends_with(r#""repeats":3}"#), "{exact:?}");
        assert!(exact.is_as_promised());
        for guarding in [Guarding::Version, Guarding::Lockkeeper] {
            for sold in [49, 51] {
                assert!(!outcome(6, guarding, 8, sold).is_as_promised(), "{guarding:?} {sold}");
            }
            let lost = Outcome { left: 1, ..outcome(6, guarding, 8, 50) };
            assert!(!lost.is_as_promised(), "{guarding:?}");
        }
    }

    #[test]
    fn only_a_rejected_late_write_keeps_the_promise_of_a_token() {
        let late = |accepted, rejected| {
            let all = outcome(4, Guarding::Token, 2, 1 + accepted);
            Outcome { orders: 2, stock: 1, left: 0, accepted, rejected, ..all }
        };
        assert!(late(0, 1).is_as_promised());
        assert!(!late(1, 0).is_as_promised());
        assert!(!late(0, 0).is_as_promised(), "a late write that never came shows nothing");
    }
}
