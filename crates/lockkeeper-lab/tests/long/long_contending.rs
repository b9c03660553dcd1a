//! Eight processes that contend for one lock of a quorum: nobody starves, and nobody gives way to
//! others for ever.
//!
//! Runs alone: whose turn it is hangs on which process gets a processor, which nobody shares out
//! equally among thirty.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use lockkeeper::Mode;
use lockkeeper_lab::conformance::Helper;
use lockkeeper_lab::engines::until_they_count;
use lockkeeper_testkit::redis::server::RedisServer;

const HELPER: &str = env!("CARGO_BIN_EXE_lab-helper");
const PATIENCE: Duration = Duration::from_secs(30);
/// For how long they contend.
const TIME: Duration = Duration::from_secs(20);

/// How many turns each of so many processes had.
async fn contend(url: &str, processes: usize) -> Vec<u64> {
    let mut contending = tokio::task::JoinSet::new();
    let mut there = Vec::new();
    for _ in 0..processes {
        let helper = Helper::start(Path::new(HELPER), url).await;
        // The members count only some time after their start.
        let turn = helper.lock(Mode::Exclusive, "warm", PATIENCE).await.expect("it is free");
        helper.release(turn).await.expect("it is held");
        there.push(Arc::new(helper));
    }
    for helper in &there {
        let helper = helper.clone();
        contending.spawn(async move { helper.compete("hot", 1, TIME).await });
    }
    let turns = contending.join_all().await;
    turns.into_iter().map(|turns| turns.expect("its turns come")).collect()
}

#[test]
fn l4_of_eight_processes_on_one_lock_of_a_quorum_nobody_starves() {
    let members: Vec<_> = (0..5).map(|_| RedisServer::start()).collect();
    let at: Vec<_> = members.iter().map(|m| format!("127.0.0.1:{}", m.port())).collect();
    let url = format!("redlock-lab://{}?ttl=2s&server_timeout=500ms", at.join(","));
    until_they_count(&members, &url).expect("they count");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime").block_on(async {
        let mut rates = Vec::new();
        for processes in [2, 8] {
            let turns = contend(&url, processes).await;
            println!("{processes} processes had these turns in {TIME:?}: {turns:?}");
            let (all, least) = (turns.iter().sum::<u64>(), turns.iter().min().copied());
            let least = least.unwrap_or_default();
            // A quarter of an equal share; without contention for the processor it is 0.75.
            assert!(least * 4 * processes as u64 >= all, "{turns:?}");
            rates.push(all);
        }
        let [two, eight] = rates[..] else { panic!("two rates") };
        assert!(eight * 20 >= two, "{eight} turns of eight processes, and {two} of two");
    });
}
