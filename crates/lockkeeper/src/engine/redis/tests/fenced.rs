//! Data keys that check tokens.

use super::server::RedisServer;
use super::support::PATIENCE;
use crate::{ErrorKind, FencedKeys, Token};

fn token(number: u64) -> Token {
    Token::raw(number).unwrap()
}

#[tokio::test]
async fn a_write_is_refused_once_a_newer_token_was_seen() {
    let server = RedisServer::start();
    let keys = FencedKeys::open(&server.url()).await.unwrap();
    assert_eq!(keys.get("stock").await.unwrap(), None);
    assert!(keys.set("stock", b"5", token(640)).await.unwrap());
    assert!(keys.set("stock", b"4", token(640)).await.unwrap(), "the same turn writes again");
    assert!(!keys.set("stock", b"9", token(576)).await.unwrap(), "an older one");
    keys.set_unchecked("stock", b"8").await.unwrap();
    assert!(
        !keys.set("stock", b"7", token(576)).await.unwrap(),
        "an unchecked write forgets no token"
    );
    assert_eq!(keys.get("stock").await.unwrap().as_deref(), Some(b"8".as_slice()));
    assert_eq!(keys.read("stock", token(704)).await.unwrap().as_deref(), Some(b"8".as_slice()));
    assert!(!keys.set("stock", b"7", token(640)).await.unwrap(), "a newer holder has read");
    assert_eq!(keys.read("stock", token(640)).await.unwrap_err().kind(), ErrorKind::Lost);
    assert!(keys.remove("stock").await.unwrap() && !keys.remove("stock").await.unwrap());
}

#[tokio::test]
async fn tokens_are_compared_exactly_also_where_numbers_would_be_rounded() {
    let server = RedisServer::start();
    let keys = FencedKeys::open(&server.url()).await.unwrap();
    // Two neighbours that are one number as a double, and a shorter one that is greater as text.
    let large = (1u64 << 62) + 1;
    assert!(keys.set("stock", b"new", token(large)).await.unwrap());
    assert!(!keys.set("stock", b"old", token(large - 1)).await.unwrap());
    assert!(!keys.set("stock", b"old", token(9)).await.unwrap());
    assert_eq!(keys.get("stock").await.unwrap().as_deref(), Some(b"new".as_slice()));
}

#[tokio::test]
async fn a_key_of_another_type_is_refused_and_a_lost_connection_is_made_again() {
    let server = RedisServer::start();
    let keys = FencedKeys::open(&server.url()).await.unwrap();
    server.command(&["HSET", "cart", "x", "1"]);
    assert_eq!(keys.set("cart", b"1", token(64)).await.unwrap_err().kind(), ErrorKind::Corrupt);
    assert_eq!(server.command(&["HGET", "cart", "x"]), ["1"]);
    server.command(&["SET", "{other}:fence", "x"]);
    let error = keys.set("other", b"1", token(64)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert!(error.message().contains("{other}:fence"), "{error}");
    server.command(&["CLIENT", "KILL", "TYPE", "normal"]);
    let mut written = keys.set("stock", b"1", token(64)).await;
    // What was on its way when the connection was cut is not known; sent again it has the effect of
    // one.
    while written.as_ref().is_err_and(|e| e.kind() == ErrorKind::Unknown) {
        written = keys.set("stock", b"1", token(64)).await;
    }
    assert!(written.unwrap());
}

#[tokio::test]
async fn both_helpers_for_fenced_data_are_one_layout() {
    let server = RedisServer::start();
    let keys = FencedKeys::open(&server.url()).await.unwrap();
    assert!(keys.set("stock", b"5", token(640)).await.unwrap());
    assert_eq!(server.command(&["GET", "stock"]), ["5"]);
    assert_eq!(server.command(&["GET", "{stock}:fence"]), [format!("{0:019} {0:019}", 640)]);
    let eval = |script: crate::primitives::fence::Script| {
        let words: Vec<String> =
            script.words().map(|word| String::from_utf8_lossy(word).into_owned()).collect();
        server.command(&words.iter().map(String::as_str).collect::<Vec<_>>())
    };
    assert_eq!(
        eval(crate::primitives::fence::RedisFence::of("stock").write(token(639), "9")),
        ["0"]
    );
    assert_eq!(
        eval(crate::primitives::fence::RedisFence::of("stock").read(token(641))),
        ["1", "5"]
    );
    assert!(!keys.set("stock", b"4", token(640)).await.unwrap());
}

#[test]
fn w3_a_refusal_reads_as_nothing_that_a_script_can_answer() {
    let server = RedisServer::start();
    server.command(&["SET", "stock", "4"]);
    let act = |token: Token, act: &str| {
        let script = crate::primitives::fence::RedisFence::of("stock").act(token, act, ["2"]);
        let words: Vec<String> =
            script.words().map(|word| String::from_utf8_lossy(word).into_owned()).collect();
        server.command(&words.iter().map(String::as_str).collect::<Vec<_>>())
    };
    let sell = "local left = tonumber(redis.call('GET', KEYS[1]) or 0) - tonumber(ARGV[2])
                if left < 0 then return 'sold out' end
                redis.call('SET', KEYS[1], left, 'KEEPTTL')
                return left -- the last line of a script may be a comment";
    assert_eq!(act(token(640), sell), ["1", "2"]);
    assert_eq!(act(token(639), sell), ["0"], "too late");
    assert_eq!(act(token(640), sell), ["1", "0"], "the last two");
    assert_eq!(act(token(640), sell), ["1", "sold out"]);
    assert_eq!(server.command(&["GET", "stock"]), ["0"]);
    assert_eq!(act(token(640), "return 0"), ["1", "0"]);
    assert_eq!(act(token(640), "redis.call('DEL', KEYS[1])"), ["1"], "one that answers nothing");
    let refuses = act(token(640), "return redis.error_reply('SOLD out')");
    assert!(refuses.len() == 1 && refuses[0].contains("SOLD out"), "an error: {refuses:?}");
    assert_eq!(act(token(640), "return 1, 'two', 3"), ["1", "1", "two", "3"]);
    assert_eq!(act(token(639), "redis.call('SET', KEYS[1], '9')"), ["0"]);
    assert_eq!(server.command(&["EXISTS", "stock"]), ["0"]);
}

#[test]
fn keys_whose_runtime_has_ended_say_so_and_do_not_hang() {
    let server = RedisServer::start();
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let first = runtime();
    let keys =
        first.block_on(FencedKeys::open(&format!("{}?connect_timeout=2s", server.url()))).unwrap();
    drop(first);
    let asked =
        runtime().block_on(async { tokio::time::timeout(PATIENCE, keys.get("stock")).await });
    assert_eq!(asked.expect("an answer").unwrap_err().kind(), ErrorKind::Unreachable);
}
