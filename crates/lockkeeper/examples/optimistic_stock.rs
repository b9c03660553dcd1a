//! The optimistic lock: no lock at all, but a version column, and the traps around it.
//!
//! `cargo run -p lockkeeper --example optimistic_stock --features postgres [postgres://…]` sells
//! from a table of its own; without a URL it starts a PostgreSQL server for itself.
//! docs/optimistic.md explains it.

use std::sync::Arc;
use std::time::Duration;

use lockkeeper_testkit::postgres::server::PostgresServer;
use tokio::sync::Barrier;
use tokio_postgres::{Client, NoTls};

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// The sale itself: it finds the row only if nobody wrote it since it was read.
const SELL: &str =
    "UPDATE stock SET n = n - 1, version = version + 1 WHERE sku = $1 AND version = $2 AND n > 0";

/// Puts one article on the shelf; its version is a time, so that none ever comes twice.
const STOCK: &str = "INSERT INTO stock (sku, n, price, version)
    VALUES ($1, $2, 10, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint)";

struct Shelf {
    n: i64,
    price: i64,
    version: i64,
}

async fn read(db: &Client, sku: &str) -> Result<Shelf, Failure> {
    let row = db.query_one("SELECT n, price, version FROM stock WHERE sku = $1", &[&sku]).await?;
    Ok(Shelf { n: row.get(0), price: row.get(1), version: row.get(2) })
}

/// Sells one piece and answers how often the sale was done again; `None` when it is sold out.
/// `first` is what was read at first.
async fn buy(db: &Client, sku: &str, first: Shelf) -> Result<Option<u32>, Failure> {
    let mut seen = first;
    for again in 0.. {
        if seen.n == 0 {
            return Ok(None);
        }
        // Everything between the read and the write is done once a try. What cannot be done twice,
        // such as a payment, comes after the sale, or under a lock.
        tokio::time::sleep(Duration::from_millis(2)).await;
        if db.execute(SELL, &[&sku, &seen.version]).await? == 1 {
            return Ok(Some(again));
        }
        // Somebody was faster. All of it begins anew: the reading and the decision.
        seen = read(db, sku).await?;
    }
    Ok(None)
}

/// Twenty customers, five pieces; all of them read before the first one writes.
async fn by_version(db: &Arc<Client>) -> Result<(), Failure> {
    db.execute(STOCK, &[&"chair", &5i64]).await?;
    let all_have_read = Arc::new(Barrier::new(20));
    let customers: Vec<_> = (0..20)
        .map(|_| {
            let (db, all_have_read) = (db.clone(), all_have_read.clone());
            tokio::spawn(async move {
                let seen = read(&db, "chair").await?;
                all_have_read.wait().await;
                buy(&db, "chair", seen).await
            })
        })
        .collect();
    let (mut sold, mut again) = (0, 0);
    for customer in customers {
        if let Some(repeated) = customer.await?? {
            (sold, again) = (sold + 1, again + repeated);
        }
    }
    let left = read(db, "chair").await?.n;
    println!("by version: {sold} sold, {left} left; done again: {again}");
    if (sold, left) == (5, 0) { Ok(()) } else { Err("that is not what was in stock".into()) }
}

/// Both read two, and both write one.
async fn lost_update(db: &Client) -> Result<(), Failure> {
    db.execute(STOCK, &[&"lamp", &2i64]).await?;
    let write = "UPDATE stock SET n = $2 WHERE sku = $1";
    let (ann, ben) = (read(db, "lamp").await?, read(db, "lamp").await?);
    db.execute(write, &[&"lamp", &(ann.n - 1)]).await?;
    db.execute(write, &[&"lamp", &(ben.n - 1)]).await?;
    println!("lost update: 2 sold of 2, and {} is left", read(db, "lamp").await?.n);
    Ok(())
}

/// The conflict is found, and then only the write is done again, with a version that was just read.
async fn only_the_write_again(db: &Client) -> Result<(), Failure> {
    db.execute(STOCK, &[&"desk", &1i64]).await?;
    let write = "UPDATE stock SET n = $2, version = version + 1 WHERE sku = $1 AND version = $3";
    let (ann, ben) = (read(db, "desk").await?, read(db, "desk").await?);
    let mut sold = db.execute(write, &[&"desk", &(ann.n - 1), &ann.version]).await?;
    let refused = db.execute(write, &[&"desk", &(ben.n - 1), &ben.version]).await? == 0;
    let version = read(db, "desk").await?.version;
    sold += db.execute(write, &[&"desk", &(ben.n - 1), &version]).await?;
    println!("only the write again: refused at first: {refused}; then {sold} sold of 1");
    Ok(())
}

/// The number is what it was, and nothing else is.
async fn the_same_number_again(db: &Client) -> Result<(), Failure> {
    db.execute(STOCK, &[&"rug", &1i64]).await?;
    let ann = read(db, "rug").await?;
    // Meanwhile it is sold, and another one comes in at another price.
    db.execute(SELL, &[&"rug", &ann.version]).await?;
    let refill = "UPDATE stock SET n = 1, price = 25, version = version + 1 WHERE sku = $1";
    db.execute(refill, &[&"rug"]).await?;
    let by_number = "UPDATE stock SET n = n - 1 WHERE sku = $1 AND n = $2";
    let by_version = db.execute(SELL, &[&"rug", &ann.version]).await?;
    let by_number = db.execute(by_number, &[&"rug", &ann.n]).await?;
    let (paid, price) = (ann.price, read(db, "rug").await?.price);
    println!("ABA: sold for {paid} what costs {price}: {}", by_number == 1);
    println!("ABA, by version: {}", by_version == 1);
    Ok(())
}

/// A row that is deleted and comes back with its first version again.
async fn the_same_version_again(db: &Client) -> Result<(), Failure> {
    for (how, insert) in [
        ("from 1", "INSERT INTO stock (sku, n, price, version) VALUES ($1, $2, 10, 1)"),
        ("from the clock", STOCK),
    ] {
        db.execute("DELETE FROM stock WHERE sku = $1", &[&"vase"]).await?;
        db.execute(insert, &[&"vase", &1i64]).await?;
        let ann = read(db, "vase").await?;
        db.execute("DELETE FROM stock WHERE sku = $1", &[&"vase"]).await?;
        db.execute(insert, &[&"vase", &1i64]).await?;
        let sold = db.execute(SELL, &[&"vase", &ann.version]).await? == 1;
        println!("a row that came back, versions {how}: a stale write went through: {sold}");
    }
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let (url, _own) = match std::env::args().nth(1) {
        Some(url) => (url, None),
        None => {
            let own = PostgresServer::start();
            (own.url(), Some(own))
        }
    };
    let (db, connection) = tokio_postgres::connect(&url, NoTls).await?;
    tokio::spawn(connection);
    // A table that only this connection sees, and that goes with it.
    db.batch_execute(
        "CREATE TEMPORARY TABLE stock (
           sku text PRIMARY KEY, n bigint NOT NULL, price bigint NOT NULL, version bigint NOT NULL
         )",
    )
    .await?;
    let db = Arc::new(db);
    by_version(&db).await?;
    lost_update(&db).await?;
    only_the_write_again(&db).await?;
    the_same_number_again(&db).await?;
    the_same_version_again(&db).await
}
