//! A transaction that is committed only if the lock was held until then: the lock and the stock are
//! in one PostgreSQL database, and no clock decides.
//!
//! `cargo run -p lockkeeper --example transaction_under_lock --features postgres [postgres://…]`;
//! without a URL it starts a server for itself. docs/fencing.md explains it.

use lockkeeper::{Guard, Locks};
use lockkeeper_testkit::postgres::server::PostgresServer;
use tokio_postgres::{Client, NoTls};

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Sells a piece under the lock; answers whether the lock was held until the commit.
async fn sell(db: &mut Client, held: &lockkeeper::Statement) -> Result<bool, Failure> {
    let sale = db.transaction().await?;
    // First of all: from here on the lock cannot pass before this transaction ends.
    let found = sale.query(held.text(), &[&held.kind(), &held.name(), &held.number()]).await?.len();
    if found == 0 {
        sale.rollback().await?;
        return Ok(false);
    }
    sale.execute("UPDATE stock SET n = n - 1 WHERE sku = 'sku-42'", &[]).await?;
    sale.commit().await?;
    Ok(true)
}

async fn left(db: &Client) -> Result<i64, Failure> {
    Ok(db.query_one("SELECT n FROM stock WHERE sku = 'sku-42'", &[]).await?.get(0))
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
    let locks = Locks::open(&url).await?;
    let (mut db, connection) = tokio_postgres::connect(&url, NoTls).await?;
    tokio::spawn(connection);
    db.batch_execute(
        "CREATE TEMPORARY TABLE stock (sku text PRIMARY KEY, n bigint NOT NULL);
         INSERT INTO stock VALUES ('sku-42', 5)",
    )
    .await?;

    let stock = locks.mutex("stock/sku-42");
    let guard: Guard = stock.lock().await?;
    let held = guard.statement().await?;
    let sold = sell(&mut db, &held).await?;
    println!("under the lock: sold: {sold}, {} left", left(&db).await?);
    // After the commit: before it the release would wait for the transaction.
    let given_back = guard.release().await;
    println!("given back: {given_back:?}");

    // Whoever was paused, and lost the lock meanwhile, comes back with the same statement.
    let sold = sell(&mut db, &held).await?;
    println!("after it: sold: {sold}, {} left", left(&db).await?);
    Ok(())
}
