//! `lockkeeper run` itself under torture: its front, its guardian and its command are stopped and
//! killed, at default options.
//!
//! The front and the guardian of one `run` are never struck together: with both gone nobody is left
//! who could stop the command.

use std::collections::BTreeMap;
use std::time::Duration;

use lockkeeper_testkit::dice::Dice;
use lockkeeper_testkit::zookeeper::server::{Server, Settings};

use crate::common::lease::Engine;
use crate::common::struck::{Line, Strike};

/// How long holders are struck; the last round takes up to T longer.
const TIME: Duration = Duration::from_secs(120);
/// Names side by side, of each engine: one round waits most of its time.
const NAMES: u64 = 6;

#[test]
fn nothing_of_a_command_outlives_its_lock_whoever_of_run_is_stopped_or_killed() {
    let seed = std::env::var("RUN_TORTURE_SEED")
        .map_or(1, |seed| seed.parse().expect("RUN_TORTURE_SEED is a whole number"));
    println!("RUN_TORTURE_SEED={seed}");
    let mut dice = Dice::new(seed);
    // Sessions at their default are what a server with ZooKeeper's own ticks gives.
    let settings = Settings { tick: Duration::from_secs(2), ..Settings::default() };
    let zookeeper = Engine::ZooKeeper(Server::start(settings).expect("a ZooKeeper server"));
    let engines =
        [(Engine::redis(), Duration::from_secs(30)), (zookeeper, Duration::from_secs(15))];
    let mut made: BTreeMap<(&str, Strike), u32> = BTreeMap::new();
    std::thread::scope(|scope| {
        let lines: Vec<_> = engines
            .iter()
            .flat_map(|(engine, recovery)| {
                (0..NAMES).map(move |number| (engine, *recovery, number))
            })
            .map(|(engine, recovery, number)| {
                let line = Line::new(
                    engine,
                    recovery,
                    &format!("{}-{number}", engine.name()),
                    dice.split(),
                );
                (engine.name(), scope.spawn(move || line.torture(TIME)))
            })
            .collect();
        for (engine, line) in lines {
            for (strike, count) in line.join().expect("a line of one name held its promises") {
                *made.entry((engine, strike)).or_default() += count;
            }
        }
    });
    for ((engine, strike), count) in &made {
        println!("{engine:<10} {:<26} {count:>4}", format!("{strike:?}"));
    }
    assert_eq!(made.len(), 2 * 7, "every strike was made on each engine: {made:?}");
}
