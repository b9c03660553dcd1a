//! What others leave in our directories, what servers refuse, and what cannot be reached.

use lockkeeper_testkit::zookeeper::proxy::Proxy;

use super::*;
use crate::ErrorKind;
use crate::engine::dial::names;
use crate::engine::zookeeper::options::Acl;

pub(super) async fn create_with(admin: &Client, path: &str, acl: &str) {
    let acl = Acl::parse_all(acl).unwrap();
    admin
        .ask(Request::Create {
            path: path.to_owned(),
            data: Vec::new(),
            acl,
            how: Create::Persistent,
        })
        .await
        .unwrap();
}

async fn refusal(url: &str) -> Error {
    match Client::open(url).await {
        Ok(_) => panic!("{url} was accepted"),
        Err(error) => error,
    }
}

/// The same, once it says this: by a server that stood still it is asked again.
async fn refusal_that_says(url: &str, says: &str) -> Error {
    let begun = Instant::now();
    loop {
        let error = refusal(url).await;
        if error.message().contains(says) {
            return error;
        }
        assert!(begun.elapsed() < SOON, "{says:?} in {error}");
    }
}

#[test]
fn b7_a_server_that_is_full_says_so_and_that_is_a_refusal() {
    run(async {
        let lines = vec!["maxClientCnxns=2".to_owned()];
        let server = Server::start(Settings { lines, ..Settings::default() }).unwrap();
        let at = format!("127.0.0.1:{}", server.port());
        let mut full = Vec::new();
        loop {
            let mut one = std::net::TcpStream::connect(&at).unwrap();
            one.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
            let stays = std::io::Read::read(&mut one, &mut [0]);
            if stays.is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock) {
                // Or it is one too many, on a machine that closes it later.
                full.push(one);
            } else if full.len() >= 2 {
                // Before that, another that left still counts.
                break;
            }
        }
        // Beside it there is one that cannot be reached.
        for hosts in [at.clone(), format!("127.0.0.1:1,{at}"), format!("{at},127.0.0.1:1")] {
            let says = format!("{at} closes each connection without a word");
            let url = format!("zk://{hosts}?connect_timeout=2s");
            let error = refusal_that_says(&url, &says).await;
            assert_eq!(error.kind(), ErrorKind::Refused, "{error}");
            assert!(error.message().contains("maxClientCnxns") && error.is_temporary(), "{error}");
            // It does not speak for the other.
            let both = hosts != at;
            assert_eq!(error.message().contains("; 127.0.0.1:1: "), both, "{error}");
        }
        drop(full);
        // It may count those that left for a while.
        while let Err(error) = Client::open(&format!("zk://{at}")).await {
            let is_full = matches!(error.kind(), ErrorKind::Refused | ErrorKind::Unreachable);
            assert!(is_full, "it has room, or takes one and closes it: {error}");
        }
    });
}

#[test]
fn b7_one_server_that_refuses_for_good_keeps_nobody_from_the_others() {
    run(async {
        let place = Place::new().await;
        let proxy = Proxy::start(place.port).unwrap();
        proxy.refuse_identity(true);
        let (refuses, serves) = (proxy.port(), place.port);
        let home = tempfile::tempdir().unwrap();
        let file = home.path().join("auth");
        std::fs::write(&file, "digest:me:secret\n").unwrap();
        let options = ["auth=digest:me:secret".to_owned(), format!("auth_file={}", file.display())];
        // Each process begins with another one.
        for n in 0..12 {
            let (chroot, option) = (&place.chroot, &options[n % 2]);
            let url =
                format!("zk://127.0.0.1:{refuses},127.0.0.1:{serves},127.0.0.1:1{chroot}?{option}");
            let one = Client::open(&url).await.expect("the second serves");
            let claim = claim(&format!("x{n}"));
            one.lock(&claim).await;
            one.close().await;
        }
        assert!(proxy.connects() > 0);
        for option in &options {
            let error = refusal(&format!(
                "zk://127.0.0.1:1,127.0.0.1:{refuses}?connect_timeout=30s&{option}"
            ))
            .await;
            assert_eq!(error.kind(), ErrorKind::Refused, "{error}");
            assert!(!error.is_temporary() && error.message().contains("`auth`"), "{error}");
            for at in [1, refuses] {
                assert!(error.message().contains(&format!("127.0.0.1:{at}")), "{error}");
            }
        }
    });
}

#[test]
fn b7_a_server_that_begins_to_refuse_is_left_for_another_and_no_hold_is_lost() {
    run(async {
        let place = Place::new().await;
        let doors = [Proxy::start(place.port).unwrap(), Proxy::start(place.port).unwrap()];
        let [first, second] = doors.each_ref().map(Proxy::port);
        let chroot = &place.chroot;
        let url = format!("zk://127.0.0.1:{first},127.0.0.1:{second}{chroot}?auth=digest:me:it");
        let one = Client::open(&url).await.unwrap();
        let mine = claim("x");
        one.lock(&mine).await;
        let (here, there) = if doors[0].connects() > 0 { (0, 1) } else { (1, 0) };
        doors[there].close();
        doors[here].refuse_identity(true);
        let before = doors[here].connects();
        doors[here].cut();
        let refused = || async {
            let error = one.engine.shared().unwrap().lock().unanswered();
            assert!(error.is_outage(), "the other one may come back: {error}");
            error.message().contains("`auth`") && doors[here].connects() > before
        };
        until("it is refused", refused).await;
        assert!(one.is_quiet_about(mine.id), "nothing is lost yet");
        doors[there].open();
        let end = one.release(&mine).await;
        assert!(matches!(end, End::Freed), "{end:?}");
        one.close().await;
    });
}

#[test]
fn a_parent_that_can_have_no_children_is_refused() {
    run(async {
        let place = Place::new().await;
        let (one, two) = (place.client().await, place.client().await);
        two.create(&two.path("x"), b"", Create::Ephemeral).await;
        let error = failed(one.join(&claim("x")).await);
        assert_eq!(error.kind(), ErrorKind::Refused);
        assert!(error.message().contains("ephemeral"), "{error}");
    });
}

#[test]
fn access_rules_that_forbid_it_are_told_and_leave_nothing() {
    run(async {
        let place = Place::new().await;
        let admin = place.client_with("auth=digest:root:pw").await;
        let one = place.client().await;
        create_with(&admin, &admin.path("closed"), "auth::cdrwa,world:anyone:r").await;
        let error = failed(one.join(&claim("closed")).await);
        assert_eq!(error.kind(), ErrorKind::Refused);
        assert!(error.message().contains("ACL"), "{error}");
        let error = failed(one.join(&claim("closed/below")).await);
        assert!(error.message().contains("ACL"), "{error}");
        create_with(&admin, &admin.path("blind"), "auth::cdrwa,world:anyone:cd").await;
        let error = failed(one.join(&claim("blind")).await);
        assert!(error.message().contains("ACL"), "{error}");
        assert!(admin.children("blind").await.is_empty());
        assert!(
            matches!(admin.join(&claim("closed")).await, Attempt::Granted(_)),
            "with the identity it works"
        );
    });
}

#[test]
fn a_node_that_we_may_not_delete_goes_with_the_session() {
    run(async {
        let place = Place::new().await;
        let admin = place.client_with("auth=digest:root:pw").await;
        let one = place.client().await;
        create_with(&admin, &admin.path("sticky"), "auth::cdrwa,world:anyone:cr").await;
        let (a, other) = (claim("sticky"), claim("fine"));
        one.lock(&other).await;
        one.lock(&a).await;
        let End::Unknown(error) = one.release(&a).await else { panic!("it cannot be deleted") };
        assert_eq!(error.kind(), ErrorKind::Refused);
        assert_eq!(admin.children("sticky").await.len(), 1);
        assert!(one.is_quiet_about(other.id), "the other hold is worth more");
        one.release(&other).await;
        until("the node went with the session", || async {
            admin.children("sticky").await.is_empty()
        })
        .await;
        assert!(matches!(
            one.join(&claim("fine")).await,
            Attempt::Granted(_) | Attempt::Unknown(_)
        ));
    });
}

#[test]
fn a_probe_leaves_the_directories_that_it_may_not_delete() {
    run(async {
        let place = Place::new().await;
        let admin = place.client().await;
        let chroot = admin.path("fleet");
        create_with(&admin, &chroot, "world:anyone:cra").await;
        let client = Client::open(&format!("zk://127.0.0.1:{}{chroot}", place.port)).await.unwrap();
        let claim = claim("made/for/one");
        client.lock(&claim).await;
        assert!(matches!(client.release(&claim).await, End::Freed));
        answer(client.engine.clear_probe(&claim.name)).await.unwrap();
        assert_eq!(admin.children("fleet").await, ["made"], "nobody may delete below it");
        assert!(admin.children("fleet/made").await.is_empty());
    });
}

#[test]
fn a_quota_that_is_used_up_is_told() {
    run(async {
        let settings = Settings {
            properties: vec!["zookeeper.enforceQuota=true".to_owned()],
            ..Settings::default()
        };
        let place = Place::on(Arc::new(Server::start(settings).unwrap())).await;
        let admin = Client::open(&format!("zk://127.0.0.1:{}", place.port)).await.unwrap();
        let quota = format!("/zookeeper/quota{}", place.chroot);
        admin.create(&quota, b"", Create::Persistent).await;
        let limits = b"count=-1,bytes=-1=;byteHardLimit=-1;countHardLimit=2";
        admin.create(&format!("{quota}/zookeeper_limits"), limits, Create::Persistent).await;
        admin
            .create(&format!("{quota}/zookeeper_stats"), b"count=1,bytes=0", Create::Persistent)
            .await;
        let one = place.client().await;
        let error = failed(one.join(&claim("x")).await);
        assert_eq!(error.kind(), ErrorKind::Refused);
        assert!(error.message().contains("quota"), "{error}");
    });
}

#[test]
fn urls_that_lead_nowhere_are_told_apart() {
    run(async {
        let place = Place::new().await;
        let error = refusal(&format!("zk://127.0.0.1:{}/no/such/chroot", place.port)).await;
        assert_eq!(error.kind(), ErrorKind::Refused);
        assert!(error.message().contains("/no/such/chroot"), "{error}");
        let error = refusal(&place.url("auth=nonsense:x")).await;
        assert_eq!(error.kind(), ErrorKind::Refused, "{error}");
        // Nobody listens; somebody listens and says nothing; somebody says something else.
        let port = lockkeeper_testkit::servers::free_port();
        let free = std::net::TcpListener::bind(("127.0.0.1", port)).unwrap();
        let error = refusal(&format!("zk://127.0.0.1:{port}?connect_timeout=300ms")).await;
        assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
        drop(free);
        let error = refusal(&format!("zk://127.0.0.1:{port}?connect_timeout=300ms")).await;
        assert!(error.kind() == ErrorKind::Unreachable && error.is_temporary(), "{error}");
        let http = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = http.local_addr().unwrap().port();
        let talker = std::thread::spawn(move || {
            use std::io::Write;
            let Ok((mut stream, _)) = http.accept() else { return };
            _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n");
        });
        let error = refusal(&format!("zk://127.0.0.1:{port}?connect_timeout=300ms")).await;
        assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
        // It may not have been called at all.
        _ = std::net::TcpStream::connect(("127.0.0.1", port));
        talker.join().unwrap();
        // Somebody gives a session, and answers nothing else. A machine with no time for us hides
        // that it gave one.
        let mute = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = mute.local_addr().unwrap().port();
        let giver = std::thread::spawn(move || {
            use std::io::{Read, Write};
            let Ok((mut stream, _)) = mute.accept() else { return };
            _ = stream.read(&mut [0; 256]);
            let mut session = 37u32.to_be_bytes().to_vec();
            session.extend([[0; 4], 10_000u32.to_be_bytes(), [0; 4], [0, 0, 0, 7]].concat());
            session.extend(16u32.to_be_bytes());
            session.extend([1; 17]);
            session[40] = 0;
            _ = stream.write_all(&session);
            _ = stream.read_to_end(&mut Vec::new());
        });
        let error = refusal(&format!("zk://127.0.0.1:{port}?connect_timeout=500ms")).await;
        assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
        assert!(error.message().ends_with("no answer within 500ms"), "{error}");
        _ = std::net::TcpStream::connect(("127.0.0.1", port));
        tokio::task::spawn_blocking(|| giver.join().unwrap()).await.unwrap();
    });
}

#[test]
fn b1_a_read_only_server_says_so_and_the_name_of_it_is_looked_up_anew() {
    run(async {
        // Its own ports are such that every user may have; nobody is at those of the others.
        let [quorum, election] = [(); 2].map(|()| lockkeeper_testkit::servers::free_port());
        let settings = Settings {
            properties: vec!["readonlymode.enabled=true".to_owned()],
            lines: vec![
                format!("server.1=127.0.0.1:{quorum}:{election}"),
                "server.2=127.0.0.1:3:4".to_owned(),
                "server.3=127.0.0.1:5:6".to_owned(),
            ],
            ..Settings::default()
        };
        let server = Server::start_read_only(settings).unwrap();
        let url = format!("zk://{}?connect_timeout=1s", server.address());
        let error = refusal_that_says(&url, "cut off from its ensemble and read-only").await;
        assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");

        let (serves, before) = (shared_server(), Proxy::start(server.port()).unwrap());
        let local = |port| (std::net::Ipv4Addr::LOCALHOST, port).into();
        names::lead_to("b1-zookeeper", &[local(before.port())]);
        let opening = tokio::spawn(Client::open("zk://b1-zookeeper?connect_timeout=60s"));
        while before.connects() == 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        names::lead_to("b1-zookeeper", &[local(serves.port())]);
        opening.await.unwrap().expect("it is found where the name leads now");
    });
}

#[test]
fn a_name_that_leads_nowhere_is_known_at_once_whatever_is_wrong_with_it() {
    run(async {
        let closed = std::net::SocketAddr::from((std::net::Ipv4Addr::LOCALHOST, 1));
        // No TCP connection leads to a broadcast address.
        let nowhere = std::net::SocketAddr::from((std::net::Ipv4Addr::BROADCAST, 1));
        names::lead_to("nobody-zookeeper", &[]);
        names::lead_to("lost-zookeeper", &[closed, nowhere]);
        for hosts in ["nobody-zookeeper", "lost-zookeeper", "lost-zookeeper,nobody-zookeeper"] {
            let error = refusal(&format!("zk://{hosts}?connect_timeout=30m")).await;
            assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
            assert!(error.message().contains("-zookeeper"), "{error}");
        }
    });
}

#[test]
fn r14_the_session_timeout_is_the_negotiated_one() {
    run(async {
        let place = Place::new().await;
        for (asked, got) in [("100ms", 1_000), ("3s", 3_000), ("1h", 10_000)] {
            let one = place.client_with(&format!("session_timeout={asked}")).await;
            let about = one.engine.describe();
            assert!(
                about.server.contains(&format!("session timeout {got} ms")),
                "{}",
                about.server
            );
            assert_eq!(about.recovery, Duration::from_millis(got) * 7 / 4);
        }
    });
}

#[test]
fn names_that_a_path_cannot_say_and_modes_that_a_layout_has_not_are_refused_before_anything_is_sent()
 {
    run(async {
        let place = Place::new().await;
        let (one, plain) = (place.client().await, place.client_with("layout=plain").await);
        for name in ["/x", "a//b", "a/..", "x/", "."] {
            assert_eq!(
                failed(one.join(&claim(name)).await).kind(),
                ErrorKind::InvalidName,
                "{name}"
            );
        }
        let shared = claim_in(Kind::Lock, "x", Mode::Shared);
        assert_eq!(failed(plain.join(&shared).await).kind(), ErrorKind::Unsupported);
        assert!(one.children("").await.is_empty());
    });
}

#[test]
fn b2_an_identity_that_is_refused_in_mid_life_is_waited_out_until_the_file_has_another() {
    run(async {
        let place = Place::new().await;
        let home = tempfile::tempdir().unwrap();
        let file = home.path().join("auth");
        let write = |text: &str| std::fs::write(&file, text).unwrap();
        let option = format!("session_timeout=10s&auth_file={}", file.display());
        for wrong in ["", "digest", "digest:me:old\nsecret"] {
            write(wrong);
            let error = refusal(&place.url(&option)).await;
            assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
            assert!(!format!("{error:?}").contains("secret"), "{error:?}");
        }
        write("digest:me:old\n");
        let (proxy, one) = place.client_behind_a_proxy(&option).await;
        let two = place.client().await;
        let (mine, theirs, waits) = (claim("x"), claim("y"), claim("y"));
        one.lock(&mine).await;
        two.lock(&theirs).await;
        assert!(matches!(one.join(&waits).await, Attempt::InLine(_)));
        proxy.refuse_identity(true);
        proxy.cut();
        until("it is refused", || async {
            let error = one.engine.shared().unwrap().lock().unanswered();
            error.kind() == ErrorKind::Refused && error.is_outage()
        })
        .await;
        assert!(one.is_quiet_about(waits.id), "who waits goes on waiting");
        proxy.refuse_identity(false);
        write("digest:me:new\n");
        assert!(matches!(two.release(&theirs).await, End::Freed));
        one.granted(waits.id).await;
        let end = one.release(&mine).await;
        assert!(matches!(end, End::Freed), "nothing was lost: {end:?}");
        assert!(matches!(one.release(&waits).await, End::Freed));
        one.close().await;
    });
}
