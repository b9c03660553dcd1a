//! Members behind names, one of which leads to another member's server for a while.

use std::net::{Ipv4Addr, SocketAddr};

use lockkeeper_testkit::redis::server::RedisServer;

use super::support::{PATIENT, Quorum, claim, open};
use crate::engine::dial::names;
use crate::engine::redis::tests::support::{granted, until};

fn at(server: &RedisServer) -> SocketAddr {
    (Ipv4Addr::LOCALHOST, server.port()).into()
}

#[test]
fn b9_a_member_whose_name_led_to_another_members_server_counts_again_once_it_is_corrected() {
    let mut quorum = Quorum::of(3);
    for (server, name) in quorum.0.iter().zip(["b9-a", "b9-b", "b9-c"]) {
        names::lead_to(name, &[at(server)]);
    }
    let one = open(&format!("redlock-lab://b9-a,b9-b,b9-c?{PATIENT}")).unwrap();
    granted(one.attempt_until(&claim(&one, "a")));
    let warned = |words: &str| {
        let warnings = one.engine.describe().warnings;
        warnings.iter().any(|w| w.id.starts_with("member-") && w.text.contains(words))
    };
    until("all three count", || !warned(""));

    names::lead_to("b9-b", &[at(&quorum.0[0])]);
    quorum.0[1].command(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
    quorum.0[1].command(&["CLIENT", "KILL", "TYPE", "pubsub"]);
    until("it is told", || warned("the same server") || warned("is a member already"));
    names::lead_to("b9-b", &[at(&quorum.0[1])]);
    until("it counts again", || !warned(""));

    // One more failure ends nothing.
    quorum.0[2].kill();
    granted(one.attempt_until(&claim(&one, "b")));
    assert_ne!(quorum.0[1].command(&["GET", "lockkeeper:{redlock:b}"]), ["(nil)"]);
}
