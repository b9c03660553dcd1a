//! What the server does for a hand-off, however many stand in line.

use lockkeeper_testkit::postgres::server::PostgresServer;

use super::super::asks::{self, Sql};
use super::super::options::PostgresOptions;
use super::TTL;
use crate::engine::Common;
use crate::open::url::EngineUrl;
use crate::words::claim::Mode;

/// How many pages a statement looks at.
fn pages(server: &PostgresServer, Sql(text, types): Sql, arguments: &str) -> u64 {
    let mut url = EngineUrl::parse(&server.url()).unwrap();
    let options = PostgresOptions::take(&mut url, &Common::new(TTL, 100)).unwrap();
    let types: Vec<&str> = types.iter().map(|of| of.name()).collect();
    let (types, text) = (types.join(", "), options.sql(text));
    let asked = server.sql(&format!(
        "BEGIN; PREPARE q ({types}) AS {text}; \
         EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) EXECUTE q ({arguments}); ROLLBACK"
    ));
    // The first plan is of all of it.
    let of = |what: &str| {
        let (_, rest) = asked.split_once(&format!("\"Shared {what} Blocks\": ")).unwrap();
        rest.split(',').next().unwrap().parse::<u64>().unwrap()
    };
    of("Hit") + of("Read")
}

#[test]
fn a_hand_off_looks_at_as_many_pages_in_a_line_of_3000_as_in_a_short_one() {
    let server = PostgresServer::start_with(&["autovacuum=off", "fsync=off"]);
    let one = super::process(&server);
    one.take("a", Mode::Exclusive);
    server.sql("UPDATE lockkeeper_locks SET line = true, version = 1");
    let line = |places: usize| {
        server.sql("TRUNCATE lockkeeper_line");
        server.sql(&format!(
            "INSERT INTO lockkeeper_line SELECT 0, 'a', n, decode(md5(n::text), 'hex'), \
             9000000000000000, 0, 'x' FROM generate_series(1, {places}) AS n"
        ));
    };
    // Without statistics, as of a line that has just come, and with some.
    for analyzed in [false, true] {
        let all = [30, 3_000].map(|places| {
            line(places);
            if analyzed {
                server.sql("ANALYZE lockkeeper_line");
            }
            let read = pages(&server, asks::READ, "0, 'a', '\\x00', 4, 6");
            // The first in line is granted, and nobody is asked for a sign of life.
            let write = "0, 'a', 1, 2, 3, '\\x01', 4, 5, true, 'x', 9000000000000000, '{1}', 6, \
                         '{}', -1, '', 0, '', '{c}', '{w}'";
            (read, pages(&server, asks::UPDATE, write))
        });
        let [(read, write), (read_much, write_much)] = all;
        println!("analyzed: {analyzed}; read {read}, {read_much}; write {write}, {write_much}");
        // A larger tree has one page more on the way to each place.
        assert!(read_much <= read + 15, "{analyzed}: {read_much} pages, and {read} with 30");
        assert!(write_much <= write + 15, "{analyzed}: {write_much} pages, and {write} with 30");
    }
}
