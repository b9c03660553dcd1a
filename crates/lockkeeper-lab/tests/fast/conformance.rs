//! The matrix: a row an engine and layout, a test a rule. Rows of shared layouts and of ensembles
//! are in `long_conformance`.

use lockkeeper::config::file_url;
use lockkeeper_lab::conformance::Subject;

use crate::subjects::redis::redis as redis_subject;

/// The program that takes locks in another process.
const HELPER: &str = env!("CARGO_BIN_EXE_lab-helper");

/// A directory of its own.
fn file() -> Subject {
    let home = tempfile::tempdir().expect("a temporary directory");
    let dir = home.path().join("locks");
    Subject::url("file", file_url(&dir))
        .helper(HELPER)
        .wiped_by(move || {
            let dir = dir.clone();
            async move { std::fs::remove_dir_all(&dir).expect("the directory can be deleted") }
        })
        .keeping(home)
}

lockkeeper_lab::conformance! {
    memory => Subject::memory(),
    file => file(),
    redis => redis_subject("redis", ""),
}
