//! ZooKeeper's layout plain beside other code's nodes, as a user meets them.

use std::process::Stdio;

use lockkeeper_testkit::zookeeper::client::{Client, Kind};
use lockkeeper_testkit::zookeeper::server::{Server, Settings};

use crate::common::{Place, Ran, Reaped, json, run, until_true};

/// What a refusal has to say, whatever was asked for.
fn is_refused(ran: &Ran, option: &str) {
    assert_eq!(ran.code, 64, "{ran:?}");
    assert!(ran.err.contains(option), "{ran:?}");
    assert!(!ran.out.contains("ran"), "{ran:?}");
}

#[test]
fn the_layout_plain_makes_the_nodes_of_the_articles_unless_told_otherwise() {
    let server = Server::start(Settings::default()).unwrap();
    let url = format!("zk://127.0.0.1:{}?layout=plain", server.port());
    let (place, mut client) = (Place::new(), Client::connect(server.port()).unwrap());
    for (options, prefix) in [("", ""), ("&prefix=Lock", "Lock")] {
        let url = format!("{url}{options}");
        let mut holder = Reaped::spawn(
            place
                .lk(["acquire", "lock"])
                .env("LOCKKEEPER_URL", &url)
                .stdin(Stdio::piped())
                .stdout(Stdio::null()),
        );
        until_true("it stands there", || client.children("/lock").is_ok_and(|all| all.len() == 1));
        let name = client.children("/lock").unwrap().remove(0);
        let number = name.strip_prefix(prefix).unwrap_or_else(|| panic!("{name}"));
        assert!(number.len() == 10 && number.bytes().all(|b| b.is_ascii_digit()), "{name}");
        drop(holder.0.stdin.take());
        assert_eq!(holder.wait(), 0);
        assert!(client.children("/lock").unwrap().is_empty());
        let words = run(&place, &url, &["doctor"]).out;
        assert!(
            words.contains(&format!("NAME/{prefix}0000000067 (prefix={prefix})"))
                && words.contains("`prefix`"),
            "{words}"
        );
    }
}

#[test]
fn beside_a_contender_of_another_prefix_the_command_line_names_the_prefix_to_give_and_runs_nothing()
{
    let server = Server::start(Settings::default()).unwrap();
    let url = |options: &str| format!("zk://127.0.0.1:{}?layout=plain{options}", server.port());
    let (place, mut client) = (Place::new(), Client::connect(server.port()).unwrap());
    client.create("/lock", b"", Kind::Persistent).unwrap();
    for (theirs, wrong, right, option) in [
        ("", url("&prefix=Lock"), url(""), "say layout=plain&prefix= "),
        ("Lock", url(""), url("&prefix=Lock"), "say layout=plain&prefix=Lock "),
    ] {
        let node =
            client.create(&format!("/lock/{theirs}"), b"them", Kind::EphemeralSequential).unwrap();
        is_refused(&run(&place, &wrong, &["run", "lock", "--", "echo", "ran"]), option);
        is_refused(&run(&place, &wrong, &["run", "-n", "lock", "--", "echo", "ran"]), option);
        is_refused(&run(&place, &wrong, &["run", "-w", "5", "lock", "--", "echo", "ran"]), option);
        is_refused(&run(&place, &wrong, &["acquire", "lock"]), option);
        is_refused(&run(&place, &wrong, &["release", "--force", "lock"]), option);
        let said = run(&place, &wrong, &["run", "--json", "lock", "--", "echo", "ran"]);
        let error = said
            .err
            .lines()
            .map(json)
            .find(|line| line["error"].is_string())
            .unwrap_or_else(|| panic!("{said:?}"));
        assert_eq!(
            (error["exit"].as_u64(), error["name"].as_str()),
            (Some(64), Some("lock")),
            "{error}"
        );
        let status = run(&place, &wrong, &["status", "lock"]);
        assert!(status.code == 0 && status.out.contains(option), "{status:?}");
        assert_eq!(
            client.children("/lock").unwrap().len(),
            1,
            "nothing of ours is left, and theirs stands"
        );
        // With the option that was named it stands in line.
        assert_eq!(run(&place, &right, &["run", "-n", "lock", "--", "echo", "ran"]).code, 75);
        client.delete(&node).unwrap();
        assert_eq!(run(&place, &right, &["run", "-n", "lock", "--", "true"]).code, 0);
        assert_eq!(
            run(&place, &wrong, &["run", "-n", "lock", "--", "true"]).code,
            0,
            "nobody is there any more"
        );
    }
}
