//! A stock in Redis that refuses late writes: the token is checked where the data is.
//!
//! `cargo run --features redis --example fenced_redis [HOST:PORT]` sells one piece on a Redis
//! server, and then shows what comes of a write with an older token. Without an address it uses
//! 127.0.0.1:6379.

use lockkeeper::fence::{RedisFence, Script};
use lockkeeper::{Locks, Require, Token};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;

type Failure = Box<dyn std::error::Error + Send + Sync>;

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let server = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:6379".to_owned());
    let locks = Locks::open(&format!("redis://{server}")).await?;
    locks.require(Require::Fenced)?;
    let mut data = Data(BufReader::new(TcpStream::connect(&server).await?));
    let stock = RedisFence::of("example/stock");

    let guard = locks.mutex("example/stock").lock().await?;
    let token = guard.token()?;
    // The first read carries the token too: an older write cannot slip in between this read and our
    // write.
    let left: u32 = match data.eval(&stock.read(token)).await?.as_slice() {
        [accepted, rest @ ..] if accepted == "1" => {
            rest.first().map_or(Ok(50), |text| text.parse())?
        }
        _ => return Err("a later holder was here already".into()),
    };
    let sold = data.eval(&stock.write(token, (left - 1).to_string())).await? == ["1"];
    println!("sold: {sold}, {} left", left - 1);
    drop(guard);

    // What a holder that was paused beyond its lease would do, in good faith.
    let late = Token::raw(token.get() - 1).ok_or("no token")?;
    let written = data.eval(&stock.write(late, "1000")).await? == ["1"];
    println!("a late write was accepted: {written}");
    drop(locks.close().await);
    Ok(())
}

/// As much of a client as this needs; a program uses the one that it has.
struct Data(BufReader<TcpStream>);

impl Data {
    async fn eval(&mut self, script: &Script) -> Result<Vec<String>, Failure> {
        let words: Vec<&[u8]> = script.words().collect();
        let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
        for word in words {
            bytes.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
            bytes.extend_from_slice(word);
            bytes.extend_from_slice(b"\r\n");
        }
        self.0.get_mut().write_all(&bytes).await?;
        let mut answers = Vec::new();
        let mut wanted = 1;
        while wanted > 0 {
            wanted -= 1;
            let mut line = String::new();
            self.0.read_line(&mut line).await?;
            match line.trim_end().split_at_checked(1) {
                Some((":", number)) => answers.push(number.to_owned()),
                Some(("*", count)) => wanted += count.parse::<usize>()?,
                Some(("$", "-1")) => {}
                Some(("$", length)) => {
                    let mut text = vec![0; length.parse::<usize>()? + 2];
                    self.0.read_exact(&mut text).await?;
                    answers.push(String::from_utf8_lossy(&text).trim_end().to_owned());
                }
                _ => return Err(line.into()),
            }
        }
        Ok(answers)
    }
}
