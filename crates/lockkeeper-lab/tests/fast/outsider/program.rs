//! A program around an engine from outside: `lab-outsider demo URL`, `bench URL`, `torture URL`. It
//! starts itself as the workers.

#![allow(clippy::expect_used, reason = "the engine is one for tests")]

mod dummy;

use std::ffi::OsString;
use std::io::stdout;
use std::process::ExitCode;
use std::sync::LazyLock;
use std::time::Duration;

use lockkeeper_lab::{bench, demo, helper, torture};

fn main() -> ExitCode {
    LazyLock::force(&dummy::DUMMY);
    let line: Vec<OsString> = std::env::args_os().collect();
    helper::started(&line).unwrap_or_else(|| obey(&line)).into()
}

fn obey(line: &[OsString]) -> u8 {
    let (json, url) = (true, line.get(2).and_then(|url| url.to_str()).unwrap_or_default());
    let urls = vec![url.to_owned()];
    let (code, why) = match line.get(1).and_then(|word| word.to_str()) {
        Some("demo") => {
            let small =
                demo::Options { stock: 5, workers: 3, orders: 12, ..demo::Options::new(url) };
            match demo::run(&demo::Options { json, ..small }, &mut stdout()) {
                Ok(code) => return code,
                Err(error) => (error.kind().exit_code(), error.to_string()),
            }
        }
        Some("bench") => {
            let time = Duration::from_secs(2);
            let options = bench::Options { urls, time, json, ..bench::Options::default() };
            return bench::run(&options, &mut stdout());
        }
        Some("torture") => {
            let time = Some(Duration::from_secs(5));
            let url = url.to_owned();
            let options = torture::Options { url, time, json, ..torture::Options::default() };
            match torture::run(&options, &mut stdout()) {
                Ok(code) => return code,
                Err(why) => why,
            }
        }
        _ => (64, "demo URL, bench URL or torture URL".to_owned()),
    };
    eprintln!("lab-outsider: {why}");
    code
}
