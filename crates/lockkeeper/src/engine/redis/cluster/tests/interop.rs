//! What other libraries do on a cluster that they do not do on one server.

use lockkeeper_testkit::cluster::server::Nodes;

use super::support::open;
use crate::engine::redis::tests::support::until;
use crate::engine::{Change, End};
use crate::words::claim::Mode;
use crate::words::name::Name;

#[test]
fn who_listens_to_sharded_channels_as_redisson_does_hears_of_every_release() {
    let nodes = Nodes::start();
    // Layout, the mode, the channel that Java waits on, and what it is told.
    for (options, mode, channel, word) in [
        ("lock=plain", Mode::Exclusive, "redisson_lock__channel:{NAME}", "0"),
        ("lock=rw", Mode::Exclusive, "redisson_rwlock:{NAME}", "1"),
        ("lock=rw", Mode::Shared, "redisson_rwlock:{NAME}", "0"),
    ] {
        let name = format!("{}{}", options.replace('=', "-"), mode.as_str());
        let channel = channel.replace("NAME", &name);
        let home = nodes.home(nodes.slot(&name));
        let mut java = nodes.nodes[home].client();
        assert_eq!(java.command(&["SSUBSCRIBE", &channel]), ["ssubscribe", &channel, "1"]);
        let ours = open(&format!("{}?layout=redisson&{options}", nodes.url())).unwrap();
        let (held, _) = ours.take(&name, mode);
        assert!(matches!(ours.release(held.id), End::Freed));
        assert_eq!(java.read(), ["smessage", &channel, word], "{options}");
    }
    let mut java: Vec<_> = nodes.nodes.iter().map(|node| node.client()).collect();
    let channel = "redisson_countdownlatch__channel__{a}";
    let home = nodes.home(nodes.slot("a"));
    assert_eq!(java[home].command(&["SSUBSCRIBE", channel]), ["ssubscribe", channel, "1"]);
    let ours = open(&format!("{}?layout=redisson", nodes.url())).unwrap();
    assert!(ours.change(&Change::LatchSet(Name::new("a").unwrap(), 1)));
    assert_eq!(java[home].read(), ["smessage", channel, "1"]);
}

#[test]
fn who_listens_to_plain_channels_is_told_as_well() {
    let nodes = Nodes::start();
    let channel = "redisson_lock__channel:{a}";
    // The bus carries it to every node.
    let mut java: Vec<_> = nodes.nodes.iter().map(|node| node.client()).collect();
    for client in &mut java {
        assert_eq!(client.command(&["SUBSCRIBE", channel]), ["subscribe", channel, "1"]);
    }
    let ours = open(&format!("{}?layout=redisson", nodes.url())).unwrap();
    let (held, _) = ours.take("a", Mode::Exclusive);
    assert!(matches!(ours.release(held.id), End::Freed));
    for client in &mut java {
        assert_eq!(client.read(), ["message", channel, "0"]);
    }
    until("it is free", || nodes.command(nodes.home(nodes.slot("a")), &["EXISTS", "a"]) == ["0"]);
}
