//! What people see, a line an event, and what programs read, an object an event.

use std::io::Write;
use std::time::Duration;

use lockkeeper::url::EngineUrl;
use lockkeeper::{Description, Error, ErrorKind, Result, Token};
use serde::Serialize;

use super::line::{Line, Step, What};
use super::{Contenders, Options, has_line};
use crate::demo::show::unwritable;

/// One event, as programs read it. Keys are only ever added.
#[derive(Default, Serialize)]
struct Json {
    event: &'static str,
    engine: &'static str,
    contender: Option<u32>,
    pid: Option<u32>,
    behind: Option<u32>,
    woken_by: Option<u32>,
    token: Option<String>,
    held_at_once: Option<u32>,
    at_ms: u64,
}

/// Where it is shown.
pub(super) struct Shown<'a> {
    options: &'a Options,
    about: &'a Description,
    out: &'a mut dyn Write,
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

    fn at(&mut self, at: Duration, text: &str) -> Result<()> {
        self.print(&format!("{:>8.3} s  {text}\n", at.as_secs_f64()))
    }

    fn object(&mut self, object: Json, at: Duration) -> Result<()> {
        let object = Json {
            engine: self.about.engine,
            at_ms: u64::try_from(at.as_millis()).unwrap_or(u64::MAX),
            ..object
        };
        let text = serde_json::to_string(&object)
            .map_err(|e| Error::new(ErrorKind::Unknown, e.to_string()))?;
        self.print(&(text + "\n"))
    }

    fn is_processes(&self) -> bool {
        matches!(self.options.contenders, Contenders::Processes(_))
    }

    fn name(&self, contender: u32) -> String {
        format!("{} {contender}", if self.is_processes() { "process" } else { "thread" })
    }

    fn name_with(&self, contender: u32, pid: Option<u32>) -> String {
        let name = self.name(contender);
        pid.map_or_else(|| name.clone(), |pid| format!("{name} (pid {pid})"))
    }

    /// What is played.
    pub(super) fn begin(&mut self) -> Result<()> {
        if self.options.json {
            return Ok(());
        }
        let who = match self.options.contenders {
            Contenders::Threads(count) => format!("{count} threads of one process"),
            Contenders::Processes(count) => format!("{count} processes"),
        };
        // Printed without its password.
        let url = EngineUrl::parse(&self.options.url)?;
        let hold = lockkeeper::duration::spoken(self.options.hold);
        let layout = self.about.layout;
        self.print(&format!(
            "{who} and one lock, on {url} (layout {layout}). Each holds it for {hold}.\n\n"
        ))
    }

    /// Somebody waits, behind whom where that is known.
    pub(super) fn waits(
        &mut self,
        contender: u32,
        behind: Option<u32>,
        pid: Option<u32>,
        at: Duration,
    ) -> Result<()> {
        if self.options.json {
            return self.object(
                Json { event: "waits", contender: Some(contender), pid, behind, ..Json::default() },
                at,
            );
        }
        let name = self.name_with(contender, pid);
        let text = match behind {
            Some(behind) => format!("{name} waits behind {}", self.name(behind)),
            None => format!("{name} waits; the layout keeps no line"),
        };
        self.at(at, &text)
    }

    /// Something happened.
    pub(super) fn step(&mut self, step: &Step, pid: Option<u32>, at: Duration) -> Result<()> {
        let Step { contender, what } = step;
        if self.options.json {
            let of = Json { contender: Some(*contender), pid, ..Json::default() };
            let object = match what {
                What::Holds { token, woken_by, at_once } => {
                    let token = token.map(|token| token.to_string());
                    Json {
                        event: "holds",
                        token,
                        woken_by: *woken_by,
                        held_at_once: Some(*at_once),
                        ..of
                    }
                }
                What::Releases => Json { event: "releases", ..of },
                What::Lost(_) => Json { event: "lost", ..of },
            };
            return self.object(object, at);
        }
        let name = self.name_with(*contender, pid);
        let text = match what {
            What::Holds { token, woken_by: None, .. } => {
                format!("{name} finds the lock free and holds it{}", said(*token))
            }
            What::Holds { token, woken_by: Some(before), at_once: 1 } => {
                let (before, token) = (self.name(*before), said(*token));
                if has_line(self.options, self.about) {
                    format!("{name} is woken by the release of {before} and holds the lock{token}")
                } else {
                    format!("{name} finds the lock free after {before} and holds it{token}")
                }
            }
            What::Holds { token, at_once, .. } => {
                format!("{name} holds the lock BESIDE {} others{}", at_once - 1, said(*token))
            }
            What::Releases => format!("{name} releases"),
            What::Lost(why) => format!("{name} LOST the lock: {why}"),
        };
        self.at(at, &text)
    }

    /// The outcome.
    pub(super) fn end(&mut self, line: &Line, promised: bool, at: Duration) -> Result<()> {
        if self.options.json {
            return self.object(
                Json { event: "end", held_at_once: Some(line.at_once()), ..Json::default() },
                at,
            );
        }
        let order = match line.in_order() {
            Some(true) => "in the order in which they stood",
            Some(false) => "and some were overtaken",
            None => "in no order that the layout keeps",
        };
        let broken = if promised {
            ""
        } else {
            "lockkeeper did NOT keep its promise: please report this with the lines above.\n"
        };
        let text = format!(
            "\n{} of {} held the lock, {order}.\n{broken}At most {} held it at once, verified by a \
             file that each holder creates exclusively.\n",
            line.turns(),
            self.options.contenders.count(),
            line.at_once(),
        );
        self.print(&text)
    }
}

/// The token as it is printed; nothing in layouts without one.
fn said(token: Option<Token>) -> String {
    token.map_or_else(String::new, |token| format!(", token {token}"))
}
