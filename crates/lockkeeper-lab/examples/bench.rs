//! The bench without the command line: `cargo run --release -p lockkeeper-lab --example bench -- [ROW [SECONDS]]`.

use std::process::ExitCode;
use std::time::Duration;

use lockkeeper_lab::bench::{Options, PEER_WORD, peer_main, run};

fn main() -> ExitCode {
    let words: Vec<_> = std::env::args_os().skip(1).collect();
    if words.first().is_some_and(|w| w == PEER_WORD) {
        return ExitCode::from(peer_main(words.get(1..).unwrap_or_default()));
    }
    let word = |at: usize| words.get(at).map(|w| w.to_string_lossy().into_owned());
    let seconds = word(1).and_then(|w| w.parse().ok()).unwrap_or(20);
    let options = Options { only: word(0), time: Duration::from_secs(seconds), progress: true, ..Options::default() };
    ExitCode::from(run(&options, &mut std::io::stdout()))
}
