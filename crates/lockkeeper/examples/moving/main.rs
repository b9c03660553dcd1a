//! How a team moves from one engine to another without an outage: an engine that takes a lock in
//! the old one and then in the new one.
//!
//! ```sh
//! cargo run -p lockkeeper --example moving OLD_URL NEW_URL
//! ```
//!
//! First every program takes both, then every program takes the new one alone: docs/migrating.md
//! has the plan. Without URLs it plays that in memory.

mod both;

use lockkeeper::{Locks, Result};

/// A URL as the value of an option of another one.
fn quoted(url: &str) -> String {
    url.bytes()
        .map(|b| match b {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
                char::from(b).to_string()
            }
            b => format!("%{b:02X}"),
        })
        .collect()
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    both::register()?;
    let mut words = std::env::args().skip(1);
    let old = words.next().unwrap_or_else(|| "memory:the-old".to_owned());
    let new = words.next().unwrap_or_else(|| "memory:the-new".to_owned());
    let both = format!("both:?old={}&new={}", quoted(&old), quoted(&new));
    let (before, while_moving, after) =
        (Locks::open(&old).await?, Locks::open(&both).await?, Locks::open(&new).await?);

    let guard = before.mutex("stock").lock().await?;
    let beside = while_moving.mutex("stock").try_lock().await?.is_some();
    println!("a program with the old one holds, token {}; moving: {beside}", guard.token()?);
    println!("given back: {:?}", guard.release().await);

    let guard = while_moving.mutex("stock").lock().await?;
    let (old, new) = (before.mutex("stock").try_lock().await?, after.mutex("stock").try_lock());
    let (old, new) = (old.is_some(), new.await?.is_some());
    println!("a moving program holds, token {}; old: {old}, new: {new}", guard.token()?);
    println!("given back: {:?}", guard.release().await);

    let guard = after.mutex("stock").lock().await?;
    let beside = while_moving.mutex("stock").try_lock().await?.is_some();
    println!("a program with the new one holds, token {}; moving: {beside}", guard.token()?);
    println!("given back: {:?}", guard.release().await);
    Ok(())
}
