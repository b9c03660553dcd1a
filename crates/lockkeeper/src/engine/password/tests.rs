use super::*;

const SERVER: &str = "h:6379";

fn secret(text: &str) -> Secret {
    Secret::new(text)
}

fn why() -> Error {
    Error::new(ErrorKind::Refused, "WRONGPASS")
}

fn later(seconds: u64) -> Instant {
    static BEGAN: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
    *BEGAN.get_or_init(Instant::now) + Duration::from_secs(seconds)
}

/// What a dial uses at this time while the file has this password.
fn dials(known: &Known, file: &str, at: u64) -> Option<String> {
    let login = known.login(SERVER, &secret(file), later(at));
    login.map(|login| login.password.reveal().to_owned())
}

fn refuses(known: &mut Known, file: &str, at: u64) {
    let login = known.login(SERVER, &secret(file), later(at)).expect("it is dialled");
    known.refused(SERVER, &login, why(), later(at));
}

fn accepts(known: &mut Known, file: &str, at: u64) {
    let login = known.login(SERVER, &secret(file), later(at)).expect("it is dialled");
    known.accepted(SERVER, &login);
}

#[test]
fn b2_a_server_that_refused_is_dialled_when_the_content_changed_and_else_every_30_seconds() {
    let mut known = Known::default();
    assert_eq!(dials(&known, "one", 0).as_deref(), Some("one"));
    refuses(&mut known, "one", 0);
    for at in [0, 1, 29] {
        assert_eq!(dials(&known, "one", at), None, "after {at} s");
    }
    assert_eq!(dials(&known, "two", 1).as_deref(), Some("two"), "it changed");
    assert_eq!(dials(&known, "one", 30).as_deref(), Some("one"));
    refuses(&mut known, "one", 30);
    assert_eq!(dials(&known, "one", 59), None);
    assert_eq!(dials(&known, "one", 60).as_deref(), Some("one"));
    // Another server has not refused it.
    assert!(known.login("other:6379", &secret("one"), later(31)).is_some());
}

#[test]
fn b2_while_the_new_content_is_refused_the_one_that_was_accepted_before_is_in_use() {
    let mut known = Known::default();
    accepts(&mut known, "old", 0);
    // The file is half written, or ahead of the server.
    refuses(&mut known, "new", 1);
    assert_eq!(dials(&known, "new", 1).as_deref(), Some("old"));
    accepts(&mut known, "new", 1);
    // Connections that break cost no refusal each.
    assert_eq!(dials(&known, "new", 2).as_deref(), Some("old"));
    assert_eq!(dials(&known, "new", 31).as_deref(), Some("new"), "its time has come");
    accepts(&mut known, "new", 31);
    assert_eq!(dials(&known, "new", 32).as_deref(), Some("new"));
}

/// The file is changed first, and connections break before and after the server is.
#[test]
fn b2_a_server_that_refuses_what_it_took_a_moment_ago_is_given_the_new_content_at_once() {
    let mut known = Known::default();
    accepts(&mut known, "old", 0);
    refuses(&mut known, "new", 1);
    accepts(&mut known, "new", 2);
    assert_eq!(dials(&known, "new", 3).as_deref(), Some("old"));
    refuses(&mut known, "new", 3);
    assert_eq!(dials(&known, "new", 3).as_deref(), Some("new"));
    accepts(&mut known, "new", 3);
    assert_eq!(dials(&known, "new", 4).as_deref(), Some("new"));
}

/// The nodes of a cluster are changed one after the other.
#[test]
fn b2_a_server_that_has_not_changed_yet_is_given_the_old_content_although_others_took_the_new() {
    let mut known = Known::default();
    accepts(&mut known, "old", 0);
    let login = known.login("other:6379", &secret("new"), later(1)).unwrap();
    known.accepted("other:6379", &login);
    refuses(&mut known, "new", 2);
    assert_eq!(dials(&known, "new", 2).as_deref(), Some("old"));
    accepts(&mut known, "new", 2);
    assert_eq!(dials(&known, "new", 40).as_deref(), Some("new"));
}

#[test]
fn b2_the_one_before_is_tried_once_and_no_password_in_a_loop() {
    let mut known = Known::default();
    accepts(&mut known, "old", 0);
    refuses(&mut known, "new", 1);
    assert_eq!(dials(&known, "new", 1).as_deref(), Some("old"));
    refuses(&mut known, "new", 1);
    // Between the two the server may have changed.
    assert_eq!(dials(&known, "new", 1).as_deref(), Some("new"));
    refuses(&mut known, "new", 1);
    assert_eq!(dials(&known, "new", 2), None, "both are refused");
    // Each new content is tried, and the old one not again with it.
    refuses(&mut known, "newer", 3);
    assert_eq!(dials(&known, "newer", 4), None);
    // The file is as it was: that counts as a change, once.
    refuses(&mut known, "old", 5);
    assert_eq!(dials(&known, "old", 9), None);
    // It was accepted before.
    refuses(&mut known, "old", 10);
    for at in [10, 20, 39] {
        assert_eq!(dials(&known, "old", at), None, "after {at} s");
    }
    let tried = (11..131)
        .filter(|at| {
            let tries = dials(&known, "old", *at).is_some();
            if tries {
                refuses(&mut known, "old", *at);
            }
            tries
        })
        .count();
    assert_eq!(tried, 4, "every 30 seconds in two minutes");
}

/// As a server that started again without the users it had, which somebody then gives it.
#[test]
fn b2_a_password_that_was_accepted_before_is_tried_again_once_after_5_seconds() {
    let mut known = Known::default();
    accepts(&mut known, "one", 0);
    for from in [100, 200] {
        refuses(&mut known, "one", from);
        assert_eq!(dials(&known, "one", from + 4), None);
        refuses(&mut known, "one", from + 5);
        for at in [6, 10, 34] {
            assert_eq!(dials(&known, "one", from + at), None, "after {at} s");
        }
        accepts(&mut known, "one", from + 35);
    }
}

/// As a server that is restored from before the change.
#[test]
fn b2_where_both_are_refused_each_has_its_turn_every_30_seconds() {
    let mut known = Known::default();
    accepts(&mut known, "old", 0);
    for _ in ["new", "old", "new"] {
        refuses(&mut known, "new", 1);
    }
    for at in [31, 61] {
        assert_eq!(dials(&known, "new", at - 1), None, "after {at} s");
        for turn in ["new", "old"] {
            assert_eq!(dials(&known, "new", at).as_deref(), Some(turn), "after {at} s");
            refuses(&mut known, "new", at);
        }
        assert_eq!(dials(&known, "new", at), None, "after {at} s");
    }
    refuses(&mut known, "new", 91);
    accepts(&mut known, "new", 91);
    assert_eq!(dials(&known, "new", 92).as_deref(), Some("old"));
}

#[test]
fn b2_what_one_server_refuses_hastens_no_other_and_nobody_for_more_than_30_seconds() {
    let mut known = Known::default();
    refuses(&mut known, "one", 0);
    let refuses = |server: &str, at: u64| known.refuses(server, later(at));
    assert!(refuses(SERVER, 29) && !refuses(SERVER, 30) && !refuses("other:6379", 1));
}

#[test]
fn b2_refusals_of_servers_that_are_gone_are_forgotten() {
    let mut known = Known::default();
    for at in 0..100 {
        let server = format!("h:{at}");
        let login = known.login(&server, &secret("one"), later(at)).unwrap();
        known.refused(&server, &login, why(), later(at));
    }
    assert!(known.refused.len() <= 60, "{}", known.refused.len());
}

#[test]
fn b2_it_is_looked_for_another_password_often_enough_for_the_lease() {
    let every = |seconds: f64| look_every(Duration::from_secs_f64(seconds));
    assert_eq!(every(30.0), Duration::from_secs(2));
    assert_eq!(every(6.0), Duration::from_secs(1));
    assert_eq!(every(0.3), Duration::from_millis(50));
    assert_eq!(every(0.0), Duration::from_millis(20));
}

#[tokio::test]
async fn b2_the_first_refusal_is_final_and_one_of_what_was_accepted_before_is_waited_out() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("password");
    std::fs::write(&path, "sesame").unwrap();
    let password = Password::file_of("password_file", path, |_, _| Ok(()));
    let until = Instant::now() + Duration::from_secs(60);
    let login = password.to_dial(SERVER, until).await.unwrap();
    assert!(!password.refused(SERVER, &login, why()).is_outage());
    let told = password.to_dial(SERVER, until).await.unwrap_err();
    assert!(told.message() == "WRONGPASS" && !told.is_outage(), "{told}");
    password.accepted(SERVER, &login);
    let login = password.to_dial(SERVER, until).await.unwrap();
    let told = password.refused(SERVER, &login, why());
    assert!(told.is_outage() && told.kind() == ErrorKind::Refused, "{told}");
    assert!(password.to_dial(SERVER, until).await.unwrap_err().is_outage());
    // What stands in the URL cannot change any more.
    let given = Password::given(secret("sesame"));
    let login = given.to_dial(SERVER, until).await.unwrap();
    given.accepted(SERVER, &login);
    assert!(!given.refused(SERVER, &login, why()).is_outage());
}

#[tokio::test]
async fn b2_no_password_is_shown() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("password");
    std::fs::write(&path, "sesame\n").unwrap();
    let file = Password::file_of("password_file", path, |_, _| Ok(()));
    let until = Instant::now() + Duration::from_secs(60);
    let login = file.to_dial(SERVER, until).await.unwrap();
    assert_eq!(login.password.reveal(), "sesame");
    let told = file.refused(SERVER, &login, why());
    let given = Password::given(secret("sesame"));
    let known = format!("{:?}", file.known().refused);
    for shown in [format!("{file:?}{login:?}{told:?}"), format!("{given:?}"), known] {
        assert!(!shown.contains("sesame"), "{shown}");
    }
}
