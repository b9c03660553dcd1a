//! A leader loop: several candidates, one leads; when its term ends or is lost, the next one does.
//!
//! `cargo run -p lockkeeper --example leader [URL]`. Here three candidates of one process; on a
//! real engine, one in each.

use std::time::Duration;

use lockkeeper::{Error, ErrorKind, Held, Locks, Result};

#[tokio::main]
async fn main() -> Result<()> {
    let url = std::env::args().nth(1).unwrap_or_else(|| "memory:leader".to_owned());
    let mut watching = Locks::open(&url).await?.election("scheduler").observe().await?;
    let mut candidates = Vec::new();
    for id in ["host-a", "host-b", "host-c"] {
        let election = Locks::open(&url).await?.election("scheduler");
        // Stands, leads when elected, stands again when the term is lost in the middle; ends with
        // what `lead` gives.
        candidates.push(tokio::spawn(async move { election.run(id, |term| lead(id, term)).await }));
    }
    let watcher = tokio::spawn(async move {
        while let Ok(leader) = watching.next().await {
            println!(
                "  (leader now: {})",
                leader.map_or_else(|| "nobody".to_owned(), |leader| leader.id)
            );
        }
    });
    for candidate in candidates {
        let led =
            candidate.await.map_err(|error| Error::new(ErrorKind::Closed, error.to_string()))?;
        println!("{} stood down", led??);
    }
    watcher.abort();
    Ok(())
}

/// One term. It is dropped at the next await when the term is lost: no leader goes on without its
/// term.
async fn lead(id: &str, term: Held) -> Result<&str> {
    for round in 1..=3 {
        println!("{id} leads, round {round}, token {}", term.token()?);
        tokio::time::sleep(Duration::from_millis(30)).await;
    }
    Ok(id)
}
