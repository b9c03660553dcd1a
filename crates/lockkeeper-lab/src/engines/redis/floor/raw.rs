//! A blocking connection to Redis that sends the bytes which lockkeeper sends, and nothing around
//! them: the floor.

use std::io::{BufReader, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use lockkeeper_testkit::redis::resp::{self, Reply, command, encode};

use crate::bench::text;

/// One connection.
pub(crate) struct Raw(BufReader<TcpStream>);

/// An answer or a push, as far as a floor looks at it: what it is, and its words.
pub(crate) struct Said {
    pub(crate) push: bool,
    pub(crate) words: Vec<String>,
}

impl Raw {
    /// Connects and says hello with the words that lockkeeper says it with.
    pub(crate) fn connect(address: &str, hello: &[Vec<Vec<u8>>]) -> Result<Self, String> {
        let stream = TcpStream::connect(address).map_err(text)?;
        stream.set_nodelay(true).map_err(text)?;
        stream.set_read_timeout(Some(Duration::from_secs(20))).map_err(text)?;
        let mut raw = Self(BufReader::with_capacity(1 << 16, stream));
        for command in hello {
            raw.ask(&encode(command))?;
        }
        Ok(raw)
    }

    /// Sends commands.
    pub(crate) fn send(&mut self, bytes: &[u8]) -> Result<(), String> {
        self.0.get_mut().write_all(bytes).map_err(text)
    }

    /// Sends one command and reads its answer.
    pub(crate) fn ask(&mut self, bytes: &[u8]) -> Result<Vec<String>, String> {
        self.send(bytes)?;
        self.answer()
    }

    /// Reads the next answer; pushes before it are passed over.
    pub(crate) fn answer(&mut self) -> Result<Vec<String>, String> {
        loop {
            let said = self.read()?;
            if !said.push {
                return Ok(said.words);
            }
        }
    }

    /// Reads whatever comes next.
    pub(crate) fn read(&mut self) -> Result<Said, String> {
        match resp::read(&mut self.0).map_err(text)? {
            Reply::Error(why) => Err(format!("Redis answers {why}")),
            reply => Ok(Said { push: matches!(reply, Reply::Push(_)), words: reply.lines() }),
        }
    }

    /// How many commands ran since the last reset, those inside scripts included.
    pub(crate) fn calls(&mut self) -> Result<u64, String> {
        self.count(|name| !matches!(name, "info" | "config|resetstat"))
    }

    /// How many scripts were asked for since the last reset.
    pub(crate) fn scripts(&mut self) -> Result<u64, String> {
        self.count(|name| matches!(name, "evalsha" | "eval"))
    }

    fn count(&mut self, ours: impl Fn(&str) -> bool) -> Result<u64, String> {
        let info = self.ask(&command(&["INFO", "commandstats"]))?.join("\n");
        let count = |line: &str| {
            let (name, rest) = line.strip_prefix("cmdstat_")?.split_once(":calls=")?;
            if ours(name) { rest.split(',').next()?.parse::<u64>().ok() } else { None }
        };
        Ok(info.lines().filter_map(count).sum())
    }

    /// Begins to count anew.
    pub(crate) fn reset_calls(&mut self) -> Result<(), String> {
        self.ask(&command(&["CONFIG", "RESETSTAT"])).map(drop)
    }
}
