//! Canonical names are injective: no text of a user's makes one store look like another.

use std::fmt::Write as _;
use std::sync::LazyLock;

use lockkeeper::engine::{Common, Engine, Keep, Registration, UrlOption, Value};
use lockkeeper::url::EngineUrl;
use lockkeeper::{Error, ErrorKind, Locks, Result};
use proptest::prelude::*;

fn open(_: &mut EngineUrl, _: &Common) -> Result<Box<dyn Engine>> {
    Err(Error::new(ErrorKind::Unsupported, "only its URLs are looked at"))
}

static STORE: LazyLock<()> = LazyLock::new(|| {
    let mut store = Registration::new("store", &["store"], Keep::Lease, open);
    let text = |name| UrlOption::new(name, Value::Text("TEXT"), "", "for tests").identity();
    store.options = vec![
        text("first"),
        text("second"),
        UrlOption::new("third", Value::Number(0, 9), "3", "for tests").identity(),
        UrlOption::new("free", Value::Text("TEXT"), "", "another one is the same lock"),
    ];
    // Nothing of a path means nothing.
    store.place = Some(|_| Ok(()));
    Locks::register(store).unwrap();
});

/// What tells one store from another.
#[derive(Clone, Debug, PartialEq)]
struct Place {
    hosts: Vec<String>,
    path: String,
    first: String,
    second: String,
    third: u64,
}

/// Texts that are full of what means something in a URL.
fn text() -> impl Strategy<Value = String> {
    prop_oneof!["[ab&=%?#/:,@\\[\\]{} ]{0,8}", ".{0,4}", Just("a&second=b".to_owned())]
}

fn place() -> impl Strategy<Value = Place> {
    let hosts = prop::collection::vec(text().prop_filter("a host", |h| !h.is_empty()), 1..3);
    (hosts, text(), text(), text(), 0..9u64).prop_map(|(hosts, path, first, second, third)| {
        let hosts = hosts.into_iter().map(|host| host.to_ascii_lowercase()).collect();
        Place { hosts, path: format!("/{path}"), first, second, third }
    })
}

fn escaped(text: &str) -> String {
    text.bytes().fold(String::new(), |mut all, byte| {
        _ = write!(all, "%{byte:02X}");
        all
    })
}

/// A URL of it; `odd` writes what means nothing, in other words.
fn url(place: &Place, odd: bool) -> String {
    let hosts: Vec<_> = place.hosts.iter().map(|host| escaped(host)).collect();
    let options = [
        ("first", escaped(&place.first)),
        ("second", escaped(&place.second)),
        ("third", if odd { format!("0{}", place.third) } else { place.third.to_string() }),
    ];
    let mut options: Vec<_> =
        options.iter().map(|(name, value)| format!("{name}={value}")).collect();
    if odd {
        options.reverse();
        options.push("free=%26first%3Dx&ttl=9s".to_owned());
    }
    let path: Vec<_> = place.path.split('/').map(escaped).collect();
    let user = if odd { "ann:pw@" } else { "" };
    format!("store://{user}{}{}?{}", hosts.join(","), path.join("/"), options.join("&"))
}

fn canonical(url: &str) -> String {
    LazyLock::force(&STORE);
    EngineUrl::parse(url).and_then(|url| url.canonical()).unwrap()
}

/// What a canonical name says, read as the URL that it is.
fn read(name: &str) -> Place {
    let mut url = EngineUrl::parse(name).unwrap();
    Place {
        hosts: std::mem::take(&mut url.hosts).into_iter().map(|(host, _)| host).collect(),
        path: std::mem::take(&mut url.path),
        first: url.take("first").unwrap_or_default(),
        second: url.take("second").unwrap_or_default(),
        third: url.take("third").map_or(3, |third| third.parse().unwrap()),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..Default::default() })]

    #[test]
    fn a_canonical_name_says_the_place_and_nothing_else(place in place()) {
        let name = canonical(&url(&place, false));
        prop_assert_eq!(read(&name), place.clone());
        prop_assert_eq!(canonical(&url(&place, true)), name.clone(), "another way to write it");
        prop_assert_eq!(canonical(&name), name, "it is its own");
    }

    #[test]
    fn two_places_have_two_names(one in place(), other in place()) {
        let names = [&one, &other].map(|place| canonical(&url(place, false)));
        prop_assert_eq!(names[0] == names[1], one == other);
    }
}
