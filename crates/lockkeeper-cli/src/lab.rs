//! The subcommands that show and measure: their work is in `lockkeeper-lab`.

use std::ffi::OsString;
use std::io::IsTerminal as _;

use lockkeeper_lab::{bench, demo, helper, torture};

use crate::args::bench::Args as Bench;
use crate::args::common::Global;
use crate::args::demo::{Args, Story};
use crate::args::torture::Args as Torture;
use crate::choice::Choice;
use crate::failure::Failure;
use crate::look::open_chosen;

/// Whether this process was started by one of these subcommands, to help it; then its exit code.
pub fn helped(line: &[OsString]) -> Option<u8> {
    match line {
        [_, hidden, rest @ ..] if hidden == helper::ARGUMENT => Some(helper::main(rest)),
        [_, hidden, rest @ ..] if hidden == bench::PEER_WORD => Some(bench::peer_main(rest)),
        [_, hidden, rest @ ..] if hidden == torture::CLIENT_WORD => Some(torture::client_main(rest)),
        _ => None,
    }
}

/// Tells a story.
///
/// # Errors
/// What the engine says.
pub fn demo(global: &Global, args: &Args) -> Result<u8, Failure> {
    let choice = Choice::make(global)?;
    if !choice.require.is_empty() {
        drop(open_chosen(choice.clone())?);
    }
    let Story::Oversell(oversell) = &args.story;
    let options = demo::Options {
        stock: oversell.stock,
        workers: oversell.workers,
        orders: oversell.orders,
        json: global.json,
        ..demo::Options::new(&choice.url)
    };
    Ok(demo::run(&options, &mut std::io::stdout().lock())?)
}

/// Measures.
///
/// # Errors
/// What an engine says before anything is measured.
pub fn bench(global: &Global, args: &Bench) -> Result<u8, Failure> {
    let urls = if args.urls.is_empty() { global.url.iter().cloned().collect() } else { args.urls.clone() };
    for url in urls.iter().filter(|_| !global.require.is_empty()) {
        let choice = Choice::make(&Global { url: Some(url.clone()), ..global.clone() })?;
        drop(open_chosen(choice)?);
    }
    let progress = !global.json && !global.quiet && std::io::stderr().is_terminal();
    let options = bench::Options { urls, time: args.time(), only: args.only.clone(), json: global.json, progress };
    Ok(bench::run(&options, &mut std::io::stdout().lock()))
}

/// Tortures.
pub fn torture(global: &Global, args: Torture) -> u8 {
    let options = torture::Options {
        url: args.target,
        client: torture::Subject::Shipped,
        time: args.seconds,
        clients: args.clients,
        tasks: args.tasks,
        names: args.names,
        faults: args.faults,
        seed: args.replay.unwrap_or(args.seed),
        report: args.report,
        json: global.json,
        ascii: args.ascii,
        progress: !global.quiet && std::io::stderr().is_terminal(),
    };
    torture::run(&options, &mut std::io::stdout().lock())
}
