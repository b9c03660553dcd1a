//! Learns what lockkeeper sends, by standing between it and the server for one acquire and one
//! release.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use lockkeeper::url::EngineUrl;
use lockkeeper_testkit::redis::resp::encode;
use serde::{Deserialize, Serialize};

use crate::bench::{Subject, text};

/// The words that lockkeeper sends for one lock, ready to be sent for any.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct Words {
    /// HOST:PORT.
    pub(crate) address: String,
    /// What a connection begins with.
    pub(crate) hello: Vec<Vec<Vec<u8>>>,
    take: Vec<Vec<u8>>,
    acquire: Vec<Vec<u8>>,
    release: Vec<Vec<u8>>,
    /// The name that was locked while we listened.
    probe: String,
}

/// Where the keys stand: behind the verb, the script and their number.
const KEYS: usize = 3;
/// A time that never comes, in the units of either acquire.
const NEVER: &str = "9007199254740991";
/// Words of a place: whose it is, the delay, and where it is told of its grant.
const CLAIM: usize = 1;
const DELAY: usize = 2;
const CHANNEL: usize = 6;

impl Words {
    /// Learns them from a lockkeeper that is opened with the subject's URL.
    pub(crate) fn learn(subject: &Subject) -> Result<Self, String> {
        let (url, probe) = (subject.url.as_str(), subject.name("probe"));
        let parsed = EngineUrl::parse(url).map_err(text)?;
        if parsed.scheme != "redis" {
            return Err("the floor needs a server that is reached by redis:// over TCP".to_owned());
        }
        let (host, port) = parsed.single_host().map_err(text)?;
        let address = format!("{host}:{}", port.unwrap_or(6379));
        let ear = Ear::between(&address)?;
        let through = through(url, ear.port).ok_or("the URL cannot be read")?;
        subject.runtime.block_on(async {
            let locks = lockkeeper::Locks::open(&through).await.map_err(text)?;
            // The second time the server knows the scripts. With a delay it asks as where somebody
            // is in the way.
            for delay in [0, 1, 0, 1] {
                let delay = Duration::from_millis(delay);
                let guard = locks.mutex(&probe).lock().lock_delay(delay).await.map_err(text)?;
                if !guard.release().await.is_clean() {
                    return Err("the probe was not released".to_owned());
                }
            }
            drop(locks.close().await);
            Ok(())
        })?;
        let commands = commands(&ear.heard());
        let verb = |words: &[Vec<u8>], wanted: &str| {
            words.first().is_some_and(|verb| verb == wanted.as_bytes())
        };
        let hello =
            commands.iter().filter(|c| verb(c, "HELLO") || verb(c, "SELECT")).cloned().collect();
        let last = |keys: usize, arguments: usize| {
            let is = |c: &&Vec<Vec<u8>>| {
                verb(c, "EVALSHA")
                    && c.len() == KEYS + keys + arguments
                    && c.get(2).is_some_and(|count| *count == keys.to_string().as_bytes())
            };
            commands.iter().rfind(is).cloned()
        };
        match (last(3, 3), last(4, 3), last(4, 2)) {
            (Some(take), Some(acquire), Some(release)) => {
                Ok(Self { address, hello, take, acquire, release, probe })
            }
            _ => Err(
                "what lockkeeper sends was not understood; the rows of Redis need layout=native"
                    .to_owned(),
            ),
        }
    }

    /// The acquire of a claim on a free name; it never comes too late.
    pub(crate) fn take(&self, name: &str, claim: u128) -> Vec<u8> {
        self.asking(&self.take, 3, name, claim, None, &[])
    }

    /// The same where somebody may be in the way.
    pub(crate) fn join(&self, name: &str, claim: u128, channel: Option<&str>) -> Vec<u8> {
        self.asking(&self.acquire, 4, name, claim, channel, &["join"])
    }

    fn asking(
        &self,
        words: &[Vec<u8>],
        keys: usize,
        name: &str,
        claim: u128,
        channel: Option<&str>,
        how: &[&str],
    ) -> Vec<u8> {
        let mut words = self.renamed(words, name);
        let at = KEYS + keys;
        let place = String::from_utf8_lossy(&words[at]).into_owned();
        let claim = format!("{claim:032x}");
        let word = |(at, word)| match at {
            CLAIM => claim.as_str(),
            DELAY => "0",
            CHANNEL => channel.unwrap_or(word),
            _ => word,
        };
        let place: Vec<&str> = place.split(' ').enumerate().map(word).collect();
        words[at] = place.join(" ").into_bytes();
        let until = words.len() - 1 - how.len();
        words[until] = NEVER.into();
        for (word, how) in words[until + 1..].iter_mut().zip(how) {
            *word = how.as_bytes().to_vec();
        }
        encode(&words)
    }

    /// The release of a claim, with the number that it was granted; none where it was not told.
    pub(crate) fn release(&self, name: &str, claim: u128, number: &str) -> Vec<u8> {
        let mut words = self.renamed(&self.release, name);
        words[KEYS + 4] = format!("2 {claim:032x} 0 ").into_bytes();
        words[KEYS + 5] = number.into();
        encode(&words)
    }

    /// The same command about another name.
    fn renamed(&self, words: &[Vec<u8>], name: &str) -> Vec<Vec<u8>> {
        let keys = words.get(2).and_then(|count| std::str::from_utf8(count).ok()?.parse().ok());
        let keys: usize = keys.unwrap_or(0);
        let key =
            |word: &Vec<u8>| String::from_utf8_lossy(word).replace(&self.probe, name).into_bytes();
        words
            .iter()
            .enumerate()
            .map(
                |(at, word)| {
                    if (KEYS..KEYS + keys).contains(&at) { key(word) } else { word.clone() }
                },
            )
            .collect()
    }
}

/// The same URL with our port in place of the server.
fn through(url: &str, port: u16) -> Option<String> {
    let (scheme, rest) = url.split_once("://")?;
    let end = rest.find(['/', '?']).unwrap_or(rest.len());
    let (authority, tail) = rest.split_at(end);
    let user = authority.rsplit_once('@').map_or(String::new(), |(user, _)| format!("{user}@"));
    Some(format!("{scheme}://{user}127.0.0.1:{port}{tail}"))
}

/// Hears what goes to the server.
struct Ear {
    port: u16,
    heard: Arc<Mutex<Vec<u8>>>,
}

impl Ear {
    /// Takes connections and carries them on, for as long as this program runs. Only the first one
    /// is listened to: the others renew.
    fn between(address: &str) -> Result<Self, String> {
        let listener = TcpListener::bind("127.0.0.1:0").map_err(text)?;
        let port = listener.local_addr().map_err(text)?.port();
        let heard = Arc::new(Mutex::new(Vec::new()));
        let (address, first) = (address.to_owned(), heard.clone());
        std::thread::spawn(move || {
            if let Ok((client, _)) = listener.accept()
                && let Ok(server) = TcpStream::connect(&address)
            {
                carry(client, server, &first);
            }
        });
        Ok(Self { port, heard })
    }

    fn heard(&self) -> Vec<u8> {
        self.heard.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

fn carry(client: TcpStream, server: TcpStream, heard: &Arc<Mutex<Vec<u8>>>) {
    let (Ok(mut from_client), Ok(mut to_client), Ok(mut from_server), mut to_server) =
        (client.try_clone(), client.try_clone(), server.try_clone(), server)
    else {
        return;
    };
    std::thread::spawn(move || {
        // Either side may leave at any time; then the other is told.
        let _ = std::io::copy(&mut from_server, &mut to_client);
        let _ = to_client.shutdown(Shutdown::Both);
    });
    let mut bytes = [0; 1 << 14];
    while let Ok(count @ 1..) = from_client.read(&mut bytes) {
        let piece = bytes.get(..count).unwrap_or_default();
        heard.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(piece);
        if to_server.write_all(piece).is_err() {
            break;
        }
    }
    // As above.
    let _ = to_server.shutdown(Shutdown::Both);
}

/// The commands in what was heard; one that is not whole is left out.
fn commands(bytes: &[u8]) -> Vec<Vec<Vec<u8>>> {
    let mut at = 0;
    let mut all = Vec::new();
    let number = |at: &mut usize, sign: u8| -> Option<usize> {
        let rest = bytes.get(*at..)?;
        let end = rest.iter().position(|b| *b == b'\n')?;
        let line = std::str::from_utf8(rest.get(..end)?).ok()?.trim_end();
        *at += end + 1;
        line.strip_prefix(char::from(sign))?.parse().ok()
    };
    let one = |at: &mut usize| -> Option<Vec<Vec<u8>>> {
        let words = number(at, b'*')?;
        (0..words)
            .map(|_| {
                let length = number(at, b'$')?;
                let word = bytes.get(*at..*at + length)?.to_vec();
                *at += length + 2;
                Some(word)
            })
            .collect()
    };
    while let Some(command) = one(&mut at) {
        all.push(command);
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_read_back_and_a_torn_one_is_left_out() {
        let words = vec![b"EVALSHA".to_vec(), b"a\r\nb".to_vec()];
        let mut bytes = encode(&words);
        bytes.extend_from_slice(b"*2\r\n$3\r\nGE");
        assert_eq!(commands(&bytes), [words]);
    }

    #[test]
    fn a_url_leads_through_us_with_its_user_and_options() {
        assert_eq!(
            through("redis://u:p@h:1/2?ttl=5s", 9).as_deref(),
            Some("redis://u:p@127.0.0.1:9/2?ttl=5s")
        );
        assert_eq!(through("redis://h", 9).as_deref(), Some("redis://127.0.0.1:9"));
    }
}
