//! Torture without the command line: `cargo run --release -p lockkeeper-lab --example torture -- URL SECONDS SEED [REPORT]`.

use std::process::ExitCode;
use std::time::Duration;

use lockkeeper_lab::torture::{CLIENT_WORD, Options, client_main, run};

fn main() -> ExitCode {
    let words: Vec<_> = std::env::args_os().skip(1).collect();
    if words.first().is_some_and(|w| w == CLIENT_WORD) {
        return ExitCode::from(client_main(words.get(1..).unwrap_or_default()));
    }
    let word = |at: usize| words.get(at).map(|w| w.to_string_lossy().into_owned());
    let options = Options {
        url: word(0).unwrap_or_else(|| "file:auto".to_owned()),
        time: Duration::from_secs(word(1).and_then(|w| w.parse().ok()).unwrap_or(10)),
        seed: word(2).and_then(|w| w.parse().ok()).unwrap_or(1),
        report: word(3).map(Into::into),
        faults: word(4).map(|w| w.split(',').map(str::to_owned).collect()).unwrap_or_default(),
        ascii: true,
        progress: true,
        ..Options::default()
    };
    ExitCode::from(run(&options, &mut std::io::stdout()))
}
