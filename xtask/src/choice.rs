//! Which stages `cargo xtask test` runs: what follows on its command line.

use crate::known;
use crate::stage::Stage;

/// What was asked for.
#[derive(Debug, PartialEq, Eq)]
pub struct Choice {
    /// Everything that CI runs.
    pub all: bool,
    /// These stages alone, in their order.
    pub only: Vec<String>,
    /// Install without asking.
    pub yes: bool,
    /// Say what would be done, and do nothing.
    pub dry: bool,
}

impl Choice {
    /// Reads the command line.
    ///
    /// # Errors
    /// An option nobody knows, `--only` without names, or beside `--all`.
    pub fn read(words: &[String]) -> Result<Self, String> {
        let mut only = Vec::new();
        let mut rest = Vec::new();
        let mut words = words.iter();
        while let Some(word) = words.next() {
            let names = match word.strip_prefix("--only") {
                Some("") => words.next().map(String::as_str),
                Some(value) if value.starts_with('=') => value.strip_prefix('='),
                _ => {
                    rest.push(word.clone());
                    continue;
                }
            };
            let names = names.filter(|names| !names.is_empty());
            let names = names.ok_or("--only needs names of stages, with commas between them")?;
            only.extend(names.split(',').map(str::to_owned));
        }
        let flags = known(&rest, &["--all", "--yes", "--dry-run"])?;
        let given = |at: usize| flags.get(at) == Some(&true);
        if given(0) && !only.is_empty() {
            return Err("--only and --all exclude each other".to_owned());
        }
        Ok(Self { all: given(0), only, yes: given(1), dry: given(2) })
    }

    /// The stages that were asked for.
    ///
    /// # Errors
    /// A name that no stage has.
    pub fn of<'a>(
        &self,
        always: &'a [Stage],
        added: &'a [Stage],
    ) -> Result<Vec<&'a Stage>, String> {
        if self.only.is_empty() {
            return Ok(always.iter().chain(added.iter().filter(|_| self.all)).collect());
        }
        let every = || always.iter().chain(added);
        if let Some(name) = self.only.iter().find(|name| every().all(|stage| stage.name != **name))
        {
            let names: Vec<&str> = every().map(|stage| stage.name).collect();
            return Err(format!("no stage `{name}`; there are {}", names.join(", ")));
        }
        Ok(every().filter(|stage| self.only.iter().any(|name| name == stage.name)).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::Choice;
    use crate::stage::Stage;

    const ALWAYS: &[Stage] = &[stage("build"), stage("tests")];
    const ADDED: &[Stage] = &[stage("fmt"), stage("docs")];

    const fn stage(name: &'static str) -> Stage {
        Stage { name, minutes: 1.0, what: "", vital: false, run: |_| Ok(()) }
    }

    fn stages(text: &str) -> Result<Vec<&'static str>, String> {
        let words: Vec<String> = text.split_whitespace().map(str::to_owned).collect();
        let stages = Choice::read(&words)?.of(ALWAYS, ADDED)?;
        Ok(stages.into_iter().map(|stage| stage.name).collect())
    }

    #[test]
    fn stages_run_in_their_order_whichever_are_chosen() {
        assert_eq!(stages(""), Ok(vec!["build", "tests"]));
        assert_eq!(stages("--all --yes"), Ok(vec!["build", "tests", "fmt", "docs"]));
        assert_eq!(stages("--only docs,build"), Ok(vec!["build", "docs"]));
        assert_eq!(stages("--only=tests"), Ok(vec!["tests"]));
    }

    #[test]
    fn what_is_no_stage_or_no_option_is_refused_by_name() {
        let says = |text: &str, part: &str| {
            let outcome = stages(text);
            assert!(outcome.as_ref().is_err_and(|why| why.contains(part)), "{text}: {outcome:?}");
        };
        says("--only test", "no stage `test`; there are build, tests, fmt, docs");
        says("--only", "needs names");
        says("--only=", "needs names");
        says("--only fmt --all", "exclude each other");
        says("--onl fmt", "`--onl`");
    }
}
