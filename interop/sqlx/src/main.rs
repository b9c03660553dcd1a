//! `guard.statement()` in a transaction of sqlx: it is committed only if the lock was held until
//! then.
//!
//! `interop-sqlx postgres://…`, where the lock and the stock are in one database.

use lockkeeper::{Guard, Locks};
use sqlx::{Connection as _, PgConnection};

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Sells a piece under the lock; answers whether the lock was held until the commit.
async fn sell(db: &mut PgConnection, held: &lockkeeper::Statement) -> Result<bool, Failure> {
    let mut sale = db.begin().await?;
    // First of all: from here on the lock cannot pass before this transaction ends.
    let found = sqlx::query(held.text())
        .bind(held.kind())
        .bind(held.name())
        .bind(held.number())
        .fetch_optional(&mut *sale)
        .await?;
    if found.is_none() {
        sale.rollback().await?;
        return Ok(false);
    }
    sqlx::query("UPDATE stock SET n = n - 1 WHERE sku = 'sku-42'").execute(&mut *sale).await?;
    sale.commit().await?;
    Ok(true)
}

async fn left(db: &mut PgConnection) -> Result<i64, Failure> {
    Ok(sqlx::query_scalar("SELECT n FROM stock WHERE sku = 'sku-42'").fetch_one(db).await?)
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Failure> {
    let url = std::env::args().nth(1).ok_or("interop-sqlx postgres://…")?;
    let locks = Locks::open(&url).await?;
    let mut db = PgConnection::connect(&url).await?;
    for statement in [
        "CREATE TEMPORARY TABLE stock (sku text PRIMARY KEY, n bigint NOT NULL)",
        "INSERT INTO stock VALUES ('sku-42', 5)",
    ] {
        sqlx::query(statement).execute(&mut db).await?;
    }

    let guard: Guard = locks.mutex("stock/sku-42").lock().await?;
    let held = guard.statement().await?;
    let sold = sell(&mut db, &held).await?;
    println!("under the lock: sold: {sold}, {} left", left(&mut db).await?);
    println!("given back: {:?}", guard.release().await);

    // Whoever was paused, and lost the lock meanwhile, comes back with the same statement.
    let sold = sell(&mut db, &held).await?;
    println!("after it: sold: {sold}, {} left", left(&mut db).await?);
    Ok(())
}
