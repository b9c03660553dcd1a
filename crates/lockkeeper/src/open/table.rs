//! The engines that URLs can name: one line an engine of this crate, and what was registered.

use std::sync::{Arc, LazyLock, PoisonError, RwLock};

use crate::engine::{Common, Engine, Registration};
use crate::keeper::{Facts, Settings};
use crate::open::url::EngineUrl;
use crate::words::error::{Error, ErrorKind, Result};
use crate::words::guarantee::Ability;

/// Makes the two lists of one line an engine: what this build has, and what any build can have.
macro_rules! engines {
    ($(#[$built:meta] $($engine:ident)::+ [$($scheme:literal),+] $from:literal;)+) => {
        /// The engines of this build.
        fn built_in() -> Vec<Registration> {
            vec![$(#[$built] crate::engine::$($engine::)+registration()),+]
        }

        /// The schemes of this crate's engines, and what brings them.
        const SCHEMES: &[(&[&str], &str)] = &[$((&[$($scheme),+], $from)),+];
    };
}

engines! {
    #[cfg(feature = "memory")] memory ["memory"] "the feature memory";
    #[cfg(all(feature = "file", target_os = "linux"))] file ["file"] "the feature file, on Linux";
    #[cfg(feature = "redis")] redis ["redis", "rediss", "redis+unix"] "the feature redis";
    #[cfg(feature = "redlock")] redlock ["redlock"] "the feature redlock";
    #[cfg(feature = "sentinel")] redis::sentinel ["redis+sentinel"] "the feature sentinel";
    #[cfg(feature = "cluster")] redis::cluster ["redis+cluster"] "the feature cluster";
    #[cfg(feature = "zookeeper")] zookeeper ["zk"] "the feature zookeeper";
    #[cfg(feature = "postgres")] postgres ["postgres", "postgresql"] "the feature postgres";
}

/// The scheme of the laboratory's own quorum: nobody chooses it, and no message names it.
pub(crate) const LABORATORY: &str = "redlock-lab";

/// What this process knows, in the order in which it is listed.
static TABLE: LazyLock<RwLock<Vec<Registration>>> = LazyLock::new(|| RwLock::new(built_in()));

/// The engine that a URL names, not opened yet.
pub(crate) fn engine(mut url: EngineUrl, settings: &Settings) -> Result<Arc<dyn Engine>> {
    let registration = find(&url.scheme)?;
    let common = Common::new(settings.ttl, settings.drift.per_mille);
    let engine = (registration.open)(&mut url, &common)?;
    url.finish()?;
    Ok(engine.into())
}

/// Every engine that URLs can name.
pub(crate) fn all() -> Vec<Registration> {
    TABLE.read().unwrap_or_else(PoisonError::into_inner).clone()
}

/// Every scheme that an engine has here or in another build, with the engine if it is here.
pub(crate) fn schemes_and_engines() -> Vec<(&'static str, Option<Registration>)> {
    let all = all();
    let here = |scheme: &str| all.iter().find(|engine| engine.schemes.contains(&scheme)).cloned();
    let ours = SCHEMES.iter().flat_map(|(schemes, _)| *schemes);
    let registered = all.iter().flat_map(|engine| engine.schemes);
    ours.chain(registered).map(|scheme| (*scheme, here(scheme))).collect()
}

/// Whether the URLs of an engine say in which layout it writes.
fn has_layouts(engine: &str) -> bool {
    let all = TABLE.read().unwrap_or_else(PoisonError::into_inner);
    let layout = |one: &Registration| one.options.iter().any(|option| option.name == "layout");
    all.iter().any(|one| one.engine == engine && layout(one))
}

impl Facts {
    /// What the engine does not have, and where it is.
    pub(crate) fn lacks(&self, ability: Ability) -> Error {
        let of = if has_layouts(self.engine) {
            format!("layout={}", self.layout)
        } else {
            format!("the engine {}", self.engine)
        };
        let elsewhere = self.elsewhere.iter().find(|(can, _)| can.has(ability));
        let elsewhere = elsewhere.map_or("choose another engine", |(_, advice)| advice);
        // Another layout lists its own locks alone, and none of those that were asked for.
        let elsewhere = match ability {
            Ability::List if elsewhere.contains("layout=") => {
                "ask about a name that you know (lockkeeper status NAME), since another layout \
                 lists its own locks alone"
            }
            _ => elsewhere,
        };
        let text = format!("{of} has no {}: {elsewhere}", ability.what());
        Error::new(ErrorKind::Unsupported, text).engine(self.engine)
    }
}

/// The engine of a scheme, or what to do without it.
pub(crate) fn find(scheme: &str) -> Result<Registration> {
    let all = TABLE.read().unwrap_or_else(PoisonError::into_inner);
    all.iter().find(|engine| engine.schemes.contains(&scheme)).cloned().ok_or_else(|| {
        let schemes = all.iter().flat_map(|engine| engine.schemes).copied();
        let schemes: Vec<_> = schemes.filter(|scheme| *scheme != LABORATORY).collect();
        Error::new(ErrorKind::InvalidArgument, missing(scheme, &schemes))
    })
}

/// Adds an engine from outside.
pub(crate) fn register(registration: Registration) -> Result<()> {
    registration.checked()?;
    let mut all = TABLE.write().unwrap_or_else(PoisonError::into_inner);
    let taken = |scheme: &&&str| {
        let ours = SCHEMES.iter().any(|(schemes, _)| schemes.contains(*scheme));
        ours || all.iter().any(|engine| engine.schemes.contains(*scheme))
    };
    if let Some(scheme) = registration.schemes.iter().find(taken) {
        let text = format!(
            "the scheme {scheme} has an engine already: register another one for {}",
            registration.engine
        );
        return Err(Error::new(ErrorKind::InvalidArgument, text));
    }
    all.push(registration);
    Ok(())
}

/// What to do where a URL of another scheme is right: to write it, or to get a build that has it.
#[cfg(any(feature = "redis", feature = "zookeeper"))]
pub(crate) fn scheme_hint(scheme: &str, url: &str) -> String {
    match find(scheme) {
        Ok(_) => format!("use {url}"),
        Err(error) => format!("{} and use {url}", error.message()),
    }
}

/// The scheme of what is called otherwise elsewhere.
fn known_as(scheme: &str) -> Option<&'static str> {
    Some(match scheme {
        "zookeeper" | "zks" => "zk",
        "pg" | "psql" | "postgre" => "postgres",
        "valkey" => "redis",
        "valkeys" => "rediss",
        "sentinel" | "redis-sentinel" | "redis+sentinels" => "redis+sentinel",
        "cluster" | "redis-cluster" => "redis+cluster",
        _ => return None,
    })
}

/// Why a scheme has no engine here.
fn missing(scheme: &str, schemes: &[&str]) -> String {
    if let Some((_, from)) = SCHEMES.iter().find(|(known, _)| known.contains(&scheme)) {
        return format!("this build has no engine for {scheme}: build lockkeeper with {from}");
    }
    let near = known_as(scheme).filter(|known| schemes.contains(known));
    let near = near.or_else(|| crate::words::text::near(scheme, schemes.iter().copied()));
    let there =
        near.map_or_else(|| "; the".to_owned(), |near| format!(": did you mean {near}? The"));
    format!("{scheme}: is not an engine{there} schemes are {}", schemes.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::{Expiry, Keep, UrlOption, Value};

    fn none(_: &mut EngineUrl, _: &Common) -> Result<Box<dyn Engine>> {
        Err(Error::new(ErrorKind::Unsupported, "for tests"))
    }

    #[test]
    fn every_engine_of_this_build_has_the_schemes_of_its_line_and_can_be_registered() {
        let all = built_in();
        let all: Vec<_> = all
            .iter()
            .inspect(|engine| engine.checked().unwrap())
            .map(|engine| engine.schemes)
            .collect();
        let lines = SCHEMES.iter().map(|(schemes, _)| *schemes);
        assert_eq!(lines.filter(|line| all.contains(line)).collect::<Vec<_>>(), all);
    }

    /// Values that are known so that they can be refused with a reason.
    const REFUSED_WITH_A_REASON: [&str; 2] =
        ["127.0.0.1:3?layout=redisson&lock=fenced", "127.0.0.1:3?layout=redisson&lock=rw"];

    /// Every value of an option that has few, of an engine's own URL.
    fn urls(engine: &Registration) -> Vec<EngineUrl> {
        let place = |scheme: &str| match scheme {
            "memory" => "memory:".to_owned(),
            scheme if scheme.contains("unix") || scheme == "file" => format!("{scheme}:///tmp"),
            "redlock" => "redlock://127.0.0.1:1,127.0.0.1:2,127.0.0.1:3".to_owned(),
            "redis+sentinel" => "redis+sentinel://127.0.0.1/mymaster".to_owned(),
            scheme => format!("{scheme}://127.0.0.1"),
        };
        let mut urls: Vec<String> = engine.schemes.iter().map(|scheme| place(scheme)).collect();
        for option in &engine.options {
            let Value::OneOf(words) = option.value else { continue };
            let needs = option.needs.map(|(name, value)| format!("{name}={value}&"));
            urls.extend(words.iter().map(|word| {
                let needs = needs.as_deref().unwrap_or_default();
                format!("{}?{needs}{}={word}", place(engine.schemes[0]), option.name)
            }));
        }
        urls.iter().map(|url| EngineUrl::parse(url).unwrap()).collect()
    }

    #[test]
    fn what_keeps_a_hold_is_the_same_before_an_engine_is_opened_and_after() {
        for registration in built_in() {
            let urls = urls(&registration);
            assert!(!urls.is_empty());
            for url in urls {
                let (shown, keep) = (url.to_string(), registration.keep_of(&url));
                let opened = engine(url, &Settings::default());
                if REFUSED_WITH_A_REASON.iter().any(|refused| shown.ends_with(refused)) {
                    assert_eq!(opened.err().unwrap().kind(), ErrorKind::InvalidArgument, "{shown}");
                    continue;
                }
                let expiry = opened.unwrap().describe().expiry;
                let same = match keep {
                    Keep::Process | Keep::Kernel => expiry == Expiry::WithProcess,
                    Keep::Lease => expiry.is_per_hold(),
                    Keep::Session { default, .. } => expiry.session() == Some(default),
                };
                assert!(same, "{shown}: {keep:?} and {expiry:?}");
            }
        }
    }

    /// The table of the tour: a row for each ability, a column for each engine.
    #[cfg(all(
        feature = "file",
        feature = "sentinel",
        feature = "cluster",
        feature = "redlock",
        feature = "zookeeper",
        feature = "postgres"
    ))]
    #[test]
    fn the_tour_has_the_table_of_engines_and_primitives_that_can_gives() {
        let rows = [
            ("[`Mutex`]", None),
            ("[`RwLock`]", Some(Ability::Shared)),
            ("[`RwLock::upgradable`]", Some(Ability::Upgrade)),
            ("[`Semaphore`]", Some(Ability::Permits)),
            ("[`Election`]", Some(Ability::Election)),
            ("[`Latch`]", Some(Ability::Latch)),
            ("[`DoubleBarrier`]", Some(Ability::Barrier)),
            ("[`Locks::all`], in one message", Some(Ability::Together)),
            ("a line between processes", Some(Ability::Fair)),
            ("[`Guard::write`]", Some(Ability::HeldWrites)),
            ("[`Held::statement`]", Some(Ability::Statements)),
            ("[`Acquire::lock_delay`]", Some(Ability::Delay)),
            ("[`Locks::ask`]", Some(Ability::Ask)),
            ("[`Locks::list`]", Some(Ability::List)),
            ("[`Locks::force_release`]", Some(Ability::Force)),
        ];
        let engines: Vec<_> = built_in()
            .iter()
            .map(|registration| {
                let url = urls(registration).swap_remove(0);
                let about = engine(url, &Settings::default()).unwrap().describe();
                (format!("`{}`", registration.engine), about.can)
            })
            .collect();
        let row =
            |first: &str, cells: Vec<&str>| format!("//! | {first} | {} |\n", cells.join(" | "));
        let heads: Vec<_> = engines.iter().map(|(name, _)| name.as_str()).collect();
        let mut table = row("", heads) + "//! |" + &"---|".repeat(engines.len() + 1) + "\n";
        table = table.replace("|  |", "| |");
        for (what, ability) in rows {
            let has = |can: &crate::Can| ability.is_none_or(|ability| can.has(ability));
            let cells = engines.iter().map(|(_, can)| if has(can) { "yes" } else { "–" });
            table += &row(what, cells.collect());
        }
        let tour = include_str!("../lib.rs");
        assert!(tour.contains(&table), "put this table into lib.rs:\n{table}");
    }

    #[test]
    fn an_engine_that_this_build_lacks_names_its_feature_and_one_that_does_not_exist_names_none() {
        assert_eq!(
            missing("zk", &["memory"]),
            "this build has no engine for zk: build lockkeeper with the feature zookeeper"
        );
        assert_eq!(
            missing("mysql", &["memory", "zk"]),
            "mysql: is not an engine; the schemes are memory, zk"
        );
        assert_eq!(
            missing("memroy", &["memory"]),
            "memroy: is not an engine: did you mean memory? The schemes are memory"
        );
        for (other, schemes, meant) in [
            ("zookeeper", &["memory", "zk"][..], Some("zk")),
            ("pg", &["postgres"], Some("postgres")),
            ("valkey", &["redis"], Some("redis")),
            ("zookeeper", &["memory"], None),
        ] {
            let told = missing(other, schemes);
            let names = meant.map_or_else(String::new, |meant| format!("did you mean {meant}?"));
            assert_eq!(told.contains("did you mean"), meant.is_some(), "{told}");
            assert!(told.contains(&names), "{told}");
        }
    }

    #[cfg(any(feature = "redis", feature = "zookeeper"))]
    #[test]
    fn n6_a_hint_names_a_scheme_of_this_build_or_how_to_get_one_that_has_it() {
        for (schemes, from) in SCHEMES {
            let hint = scheme_hint(schemes[0], "URL");
            if find(schemes[0]).is_ok() {
                assert_eq!(hint, "use URL");
            } else {
                assert!(hint.contains(from) && hint.ends_with(" and use URL"), "{hint}");
            }
        }
    }

    /// What an engine says of something that it does not have.
    #[cfg(all(feature = "redlock", feature = "zookeeper"))]
    fn lacks(url: &str, ability: Ability) -> String {
        let settings = Settings::default();
        let engine = engine(EngineUrl::parse(url).unwrap(), &settings).unwrap();
        let who = Arc::new(crate::words::claim::Identity::of_this_process());
        let keeper = crate::keeper::Keeper::new(
            engine,
            crate::words::clock::Clock::default(),
            who,
            settings,
        );
        keeper.facts.lacks(ability).message().to_owned()
    }

    #[cfg(all(feature = "redlock", feature = "zookeeper"))]
    #[test]
    fn what_an_engine_lacks_is_told_with_where_it_is() {
        use Ability::{Barrier, Delay, Election, Latch, List, Permits, Shared, Upgrade};
        for (url, ability, says) in [
            ("redis://h", Barrier, "layout=native has no double barriers: choose another engine"),
            (
                "redis://h?layout=plain",
                Shared,
                "layout=plain has no shared locks: use layout=native",
            ),
            ("redis://h?layout=plain", Delay, "layout=plain has no lock delay: use layout=native"),
            (
                "redis://h?layout=plain",
                Barrier,
                "layout=plain has no double barriers: choose another engine",
            ),
            (
                "redis://h?layout=redisson",
                Shared,
                "layout=redisson has no shared locks: add lock=rw to the URL",
            ),
            (
                "redis://h?layout=redisson",
                Upgrade,
                "layout=redisson has no upgradable locks: use layout=native",
            ),
            (
                "redis://h?layout=redisson",
                Barrier,
                "layout=redisson has no double barriers: choose another engine",
            ),
            ("zk://h?layout=plain", Latch, "layout=plain has no latches: use layout=curator"),
            ("zk://h?layout=plain", Delay, "layout=plain has no lock delay: choose another engine"),
            ("zk://h", Delay, "layout=curator has no lock delay: choose another engine"),
            ("redlock://a,b,c", Permits, "layout=native has no semaphores: choose another engine"),
            ("memory:", Election, "the engine memory has no elections: choose another engine"),
            ("memory:", List, "the engine memory has no lists of names: choose another engine"),
            (
                "redis://h?layout=plain",
                List,
                "layout=plain has no lists of names: ask about a name that you know (lockkeeper \
                 status NAME), since another layout lists its own locks alone",
            ),
        ] {
            assert_eq!(lacks(url, ability), says, "{url}");
        }
    }

    #[test]
    fn a_scheme_is_registered_once_and_none_of_ours_is_taken() {
        let of = |scheme| Registration::new("mine", scheme, Keep::Lease, none);
        register(of(&["table-test"])).unwrap();
        for schemes in
            [&["table-test"] as &[_], &["other", "zk"], &["memory"], &[], &["Upper"], &["a b"]]
        {
            let schemes: &'static [&'static str] = schemes;
            assert_eq!(
                register(of(schemes)).unwrap_err().kind(),
                ErrorKind::InvalidArgument,
                "{schemes:?}"
            );
        }
        assert!(find("other").is_err(), "nothing of what was refused is there");
        let mut twice = of(&["table-test-2"]);
        twice.options = vec![UrlOption::new("ttl", Value::Duration, "", "")];
        assert!(register(twice).unwrap_err().message().contains("ttl twice"));
    }
}
