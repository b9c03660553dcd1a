//! A web service that must not oversell: an axum handler that guards an order.
//!
//! `cargo run -p lockkeeper --example order_service [URL]` starts it, orders from it thirty times
//! at once, and says what was sold.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::routing::post;
use lockkeeper::{Error, ErrorKind, Locks, Require, Token};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// What every handler has; several instances of the service share the engine and the database, and
/// nothing else.
#[derive(Clone)]
struct Shop {
    locks: Locks,
    stock: Arc<Mutex<HashMap<String, Row>>>,
}

/// A row of the stock table, with the column that makes late writes harmless.
#[derive(Clone, Copy)]
struct Row {
    pieces: u32,
    fence: Token,
}

async fn order(
    State(shop): State<Shop>,
    Path(sku): Path<String>,
) -> Result<String, (StatusCode, String)> {
    let guard = shop
        .locks
        .mutex(format!("stock/{sku}"))
        .lock()
        .timeout(Duration::from_secs(2))
        .await
        .map_err(refused)?;
    // Dropped at the next await when the lock is lost; released on every path out of here.
    match guard.try_run(shop.sell(&sku, guard.token().map_err(refused)?)).await.map_err(refused)? {
        Some(pieces) => Ok(format!("sold, {pieces} left\n")),
        None => Err((StatusCode::CONFLICT, "sold out\n".to_owned())),
    }
}

fn refused(error: Error) -> (StatusCode, String) {
    let status = match error.kind() {
        // Nothing was sold, and the same request may succeed in a moment.
        ErrorKind::TimedOut | ErrorKind::Unreachable => StatusCode::SERVICE_UNAVAILABLE,
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    };
    (status, format!("{error}\n"))
}

impl Shop {
    /// Reads, thinks, writes: what a lock is for.
    async fn sell(&self, sku: &str, token: Token) -> Result<Option<u32>, Error> {
        let Some(row) = self.row(sku).filter(|row| row.pieces > 0) else { return Ok(None) };
        // What it thinks about. A payment would need a key of its own: docs/fencing.md.
        tokio::time::sleep(Duration::from_millis(2)).await;
        let pieces = row.pieces - 1;
        // UPDATE stock SET pieces = :pieces, fence = :token
        // WHERE sku = :sku AND fence <= :token
        let mut stock = self.stock.lock().unwrap_or_else(PoisonError::into_inner);
        match stock.get_mut(sku) {
            Some(row) if row.fence <= token => *row = Row { pieces, fence: token },
            _ => {
                return Err(Error::new(
                    ErrorKind::Lost,
                    "somebody with a later token has written; nothing was sold",
                ));
            }
        }
        Ok(Some(pieces))
    }

    fn row(&self, sku: &str) -> Option<Row> {
        self.stock.lock().unwrap_or_else(PoisonError::into_inner).get(sku).copied()
    }
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let url = std::env::args().nth(1).unwrap_or_else(|| "memory:shop".to_owned());
    let fence = Token::raw(0).ok_or("zero is a token")?;
    let stock =
        Arc::new(Mutex::new(HashMap::from([("sku-42".to_owned(), Row { pieces: 5, fence })])));
    let mut instances = Vec::new();
    for _ in 0..2 {
        let locks = Locks::open(&url).await?;
        locks.require(Require::Fenced)?; // at start-up, not at the incident
        let service = axum::Router::new()
            .route("/orders/{sku}", post(order))
            .with_state(Shop { locks, stock: stock.clone() });
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        instances.push(listener.local_addr()?);
        tokio::spawn(async move { axum::serve(listener, service).await });
    }
    let orders: Vec<_> =
        instances.iter().cycle().take(30).map(|address| tokio::spawn(buy(*address))).collect();
    let mut sold = 0;
    for order in orders {
        let answer = order.await??;
        sold += u32::from(answer.starts_with("HTTP/1.1 200"));
    }
    let pieces = stock
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .get("sku-42")
        .map_or(0, |row| row.pieces);
    println!("30 orders to 2 instances, 5 in stock: {sold} sold, {pieces} left");
    if (sold, pieces) == (5, 0) { Ok(()) } else { Err("that is not what was in stock".into()) }
}

async fn buy(address: std::net::SocketAddr) -> Result<String, Failure> {
    let mut connection = TcpStream::connect(address).await?;
    connection
        .write_all(
            b"POST /orders/sku-42 HTTP/1.1\r\nHost: shop\r\nConnection: close\r\nContent-Length: \
              0\r\n\r\n",
        )
        .await?;
    let mut answer = String::new();
    connection.read_to_string(&mut answer).await?;
    Ok(answer)
}
