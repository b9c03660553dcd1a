//! The subcommands that show and measure: their work is in `lockkeeper-lab`.

use std::io::IsTerminal as _;

use lockkeeper::ErrorKind;
use lockkeeper_lab::{bench, demo, torture};

use crate::args::bench::Args as Bench;
use crate::args::common::Global;
use crate::args::demo::{Args, Contenders, Story};
use crate::args::torture::Args as Torture;
use crate::choice::{Choice, Source};
use crate::failure::{Failure, exit};
use crate::look::open_chosen;
use crate::out::Out;

/// Tells a story.
///
/// # Errors
/// What the engine says.
pub fn demo(global: &Global, args: &Args) -> Result<u8, Failure> {
    let choice = Choice::or_started(global)?;
    if is_auto(&choice.url) {
        requires_nothing(global, &choice.url, "demo")?;
    } else if !choice.require.is_empty() {
        drop(open_chosen(choice.clone())?);
    }
    let oversell = match &args.story {
        Story::Oversell(oversell) => oversell,
        Story::Contenders(wanted) => return contenders(&choice.url, global.json, wanted),
    };
    let (pieces, store) = oversell.stock()?;
    let usual = demo::Options::new(&choice.url);
    let options = demo::Options {
        stock: pieces.unwrap_or(usual.stock),
        store,
        workers: oversell.workers,
        orders: oversell.orders,
        json: global.json,
        ..usual
    };
    Ok(demo::run(&options, &mut Out)?)
}

fn contenders(url: &str, json: bool, wanted: &Contenders) -> Result<u8, Failure> {
    let contenders = wanted.processes.map_or(
        demo::contenders::Contenders::Threads(wanted.threads),
        demo::contenders::Contenders::Processes,
    );
    let options = demo::contenders::Options {
        url: url.to_owned(),
        contenders,
        hold: wanted.hold,
        json,
        program: None,
    };
    Ok(demo::contenders::run(&options, &mut Out)?)
}

/// Measures.
///
/// # Errors
/// What an engine says before anything is measured.
pub fn bench(global: &Global, args: &Bench) -> Result<u8, Failure> {
    let urls =
        if args.urls.is_empty() { global.url.iter().cloned().collect() } else { args.urls.clone() };
    for url in urls.iter().filter(|_| !global.require.is_empty()) {
        requires_nothing(global, url, "measurement")?;
        let choice = Choice::make(&Global { url: Some(url.clone()), ..global.clone() })?;
        drop(open_chosen(choice)?);
    }
    let progress = !global.json && !global.quiet && std::io::stderr().is_terminal();
    let options = bench::Options {
        urls,
        time: args.time(),
        only: args.only.clone(),
        json: global.json,
        progress,
        strict: args.strict,
    };
    Ok(bench::run(&options, &mut Out))
}

/// Tortures.
///
/// # Errors
/// What cannot be right, and what the engine says.
pub fn torture(global: &Global, args: Torture) -> Result<u8, Failure> {
    if args.list_clients {
        // Whoever reads may have gone.
        let _ = torture::list_clients(&mut Out);
        return Ok(0);
    }
    if let Some(file) = &args.report {
        crate::run::report::check(file)?;
    }
    let url = target(global, args.target, &args.client)?;
    let options = torture::Options {
        url,
        client: args.client,
        time: args.seconds,
        clients: args.clients,
        tasks: args.tasks,
        names: args.names,
        faults: args.faults,
        seed: args.replay.unwrap_or(args.seed),
        report: args.report,
        write: crate::run::report::deliver_page,
        quote: |word| crate::text::quoted(std::ffi::OsStr::new(word)),
        json: global.json,
        ascii: args.ascii,
        progress: !global.quiet && std::io::stderr().is_terminal(),
    };
    torture::run(&options, &mut Out).map_err(|(code, text)| {
        let failure = match code {
            exit::USAGE => Failure::usage(text),
            exit::INTERNAL => Failure::internal(text),
            code => Failure::from(ErrorKind::Refused).exit(code).message(text),
        };
        failure.engine(options.url.split(':').next().map(str::to_owned))
    })
}

/// What is to be tortured. A torture loads its engine and stops its clients, so only what was named
/// on this command line is tortured, and never what the environment or a file chose for work.
fn target(
    global: &Global,
    named: Option<String>,
    client: &torture::Subject,
) -> Result<String, Failure> {
    if named.is_some() && global.url.is_some() {
        return Err(Failure::usage(
            "--url and the URL after torture are the same thing: leave one out",
        ));
    }
    let url = match named.or_else(|| global.url.clone()) {
        Some(url) if url.is_empty() => {
            return Err(Failure::usage("the URL is empty: give file:auto or an engine's URL"));
        }
        Some(url) => url,
        // Somebody else's lock was named, and comes with a server of its own.
        None if *client != torture::Subject::Shipped => client.usual_url().to_owned(),
        None => match Choice::or_started(global)?.source {
            Source::Said(origin) => {
                let what = "lockkeeper torture file:auto, or the engine's URL";
                return Err(Failure::usage(format!(
                    "the engine that {origin} chooses is not tortured unless it is named: {what}"
                )));
            }
            _ => client.usual_url().to_owned(),
        },
    };
    requires_nothing(global, &url, "torture")?;
    if !is_auto(&url) {
        drop(open_chosen(Choice::make(&Global { url: Some(url.clone()), ..global.clone() })?)?);
    }
    Ok(url)
}

/// Whether a URL has the laboratory start what it names.
fn is_auto(url: &str) -> bool {
    url.split('?').next().is_some_and(|start| start.ends_with(":auto"))
}

/// Refuses `--require` for what only this run will use.
fn requires_nothing(global: &Global, url: &str, run: &str) -> Result<(), Failure> {
    if !is_auto(url) || global.require.is_empty() {
        return Ok(());
    }
    let text = format!(
        "--require asks what an engine in use promises, and {url} is started by this {run}: leave \
         it out"
    );
    Err(Failure::usage(text))
}
