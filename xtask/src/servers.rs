//! `cargo xtask servers`: what the tests need from outside, and what of it is there.

use crate::packages::ensure;
use crate::tools::{Need, TABLE, needed};
use crate::{Outcome, known};

/// Lists the table and installs what is missing.
pub fn run(words: &[String]) -> Outcome {
    let yes = known(words, &["--yes"])?.contains(&true);
    for tool in TABLE {
        let place =
            tool.find().map_or_else(|| "missing".to_owned(), |path| path.display().to_string());
        let by = match tool.need {
            Need::Test => "",
            Need::Interop => " (interop only)",
            Need::Dist => " (dist only)",
        };
        println!("{:<28} {:<28} {}{by}", tool.file, place, tool.purpose);
    }
    ensure(&needed(&[Need::Test, Need::Interop, Need::Dist]), yes)
}
