//! What goes wrong in `check` and `bench`: a line for people, an object for programs.

use lockkeeper::text::{json_line, printable};
use serde::Serialize;

/// Something that went wrong.
pub(crate) struct Trouble<'a> {
    /// A stable word, of those in `docs/json.md`.
    pub(crate) kind: &'static str,
    /// The engine that it was about.
    pub(crate) engine: Option<&'a str>,
    /// The exit code that it leads to.
    pub(crate) exit: u8,
    pub(crate) message: String,
}

#[derive(Serialize)]
struct Json<'a> {
    error: &'a str,
    name: Option<&'a str>,
    engine: Option<&'a str>,
    exit: u8,
    message: &'a str,
}

impl Trouble<'_> {
    /// The line that a subcommand says it in.
    pub(crate) fn line(&self, subcommand: &str, json: bool) -> String {
        if !json {
            return format!("lockkeeper: {subcommand}: {}", printable(self.message.as_str()));
        }
        let (engine, message) = (self.engine, self.message.as_str());
        let object = Json { error: self.kind, name: None, engine, exit: self.exit, message };
        json_line(serde_json::to_string(&object).unwrap_or_default())
    }
}
