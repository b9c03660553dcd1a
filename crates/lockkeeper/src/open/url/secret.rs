//! Passwords in URLs: which options are secrets, and what is the rest of a password that was not
//! escaped.

use crate::engine::{Registration, UrlOption, Value};

/// Whether an option's value is never printed: one that an engine registered as a secret, and
/// words that can mean nothing else.
///
/// ```
/// assert!(lockkeeper::url::is_secret("password") && !lockkeeper::url::is_secret("ttl"));
/// ```
pub fn is_secret(option: &str) -> bool {
    let registered =
        |known: &UrlOption| known.name == option && matches!(known.value, Value::Secret(_));
    let words = ["auth", "password", "secret", "token"];
    words.contains(&option)
        || Registration::all().iter().any(|engine| engine.options.iter().any(registered))
}

/// An option's name in an error: what is no name may be the rest of a password.
pub(crate) fn named(option: &str) -> String {
    let is_name = !option.is_empty()
        && option.bytes().all(|b| b.is_ascii_alphanumeric() || b"_-.".contains(&b));
    if is_name {
        format!("the option {option:?}")
    } else {
        "an option that is not a word (write ? and & in a password as %3F and %26)".to_owned()
    }
}

/// What is known of the URLs of a scheme, to find the end of a password that was not escaped.
#[doc(hidden)]
#[derive(Debug)]
pub struct Form(Known);

#[derive(Debug)]
enum Known {
    /// All of it.
    Engine { engine: Box<Registration>, path_may_hold_at: bool },
    /// That there is such an engine, which this build lacks.
    Lacking,
}

impl Form {
    /// Nothing is known of a scheme that no engine has. One that begins as an engine's is read like
    /// that one: `redis+cluster` as `redis`.
    pub fn of(scheme: &str) -> Option<Self> {
        let known = crate::open::table::schemes_and_engines();
        let like = |known: &&str| scheme.starts_with(known);
        let scheme = known.iter().map(|(known, _)| *known).filter(like).max_by_key(|s| s.len())?;
        let engine = known.into_iter().find(|(known, _)| *known == scheme)?.1;
        Some(Self(match engine {
            Some(engine) => Known::Engine {
                path_may_hold_at: !engine.paths_without_at.contains(&scheme),
                engine: Box::new(engine),
            },
            None => Known::Lacking,
        }))
    }

    /// Whether the path may hold an `@`.
    pub fn path_may_hold_at(&self) -> bool {
        matches!(self.0, Known::Engine { path_may_hold_at: true, .. })
    }

    /// Whether the value of this option may hold an `@`: in all others it ends a password.
    pub fn may_hold_at(&self, option: &str) -> bool {
        let Known::Engine { engine, .. } = &self.0 else { return false };
        option == "password"
            || engine.all_options().any(|known| known.name == option && known.value.may_hold_at())
    }
}

/// Whether what looks like a path or options is the rest of a password: then no part of it may
/// stand in an error. Only of the schemes whose paths and options are known.
pub(super) fn is_cut_password(scheme: &str, rest: &str, query: &str) -> bool {
    let Some(rest) = rest.strip_prefix("//") else { return false };
    let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
    if !authority.contains(':') || !(path.contains('@') || query.contains('@')) {
        return false;
    }
    let Some(form) = Form::of(scheme) else { return false };
    let odd = |pair: &str| {
        let option = pair.split_once('=').map(|(option, _)| option);
        pair.contains('@') && !option.is_some_and(|option| form.may_hold_at(option))
    };
    path.contains('@') && !form.path_may_hold_at() || query.split('&').any(odd)
}

#[cfg(test)]
mod tests {
    use crate::open::url::EngineUrl;

    #[test]
    fn no_part_of_a_password_that_was_not_escaped_is_printed() {
        for wrong in [
            "redis://ann:12?sesame@host",
            "redis://ann:12?sesame&zz@host",
            "redis://ann:12?sesame=1&sesame=2@host",
            "redis://ann:12?ttl=sesame@host",
            "redis://ann:12?ttl=sesame&ttl=@host",
            "REDIS://ann:12/sesame@host",
            "rediss://ann:p@12?sesame&x@host",
            "zk://ann:12?sesame&zz@host",
            "redlock://ann:12?sesame&zz@h1,h2,h3",
            "redlock://ann:12/sesame@h1,h2,h3",
        ] {
            let error = EngineUrl::parse(wrong).expect_err(wrong);
            assert!(
                !error.to_string().contains("sesame") && error.message().contains("%3F"),
                "{wrong}: {error}"
            );
        }
    }

    #[cfg(all(feature = "redis", feature = "zookeeper"))]
    #[test]
    fn an_at_is_no_part_of_a_password_where_a_text_or_a_path_may_have_it() {
        for right in [
            "redis://h:6379?password_file=/a@b&ttl=5s",
            "redis+unix://:p@/run/a@b.sock",
            "zk://h:2181/a@b",
            "own://h:1/a@b?who=a@b",
        ] {
            assert!(EngineUrl::parse(right).is_ok(), "{right}");
        }
    }

    #[cfg(feature = "memory")]
    #[test]
    fn what_ends_a_password_follows_from_what_is_registered() {
        use crate::engine::{Keep, Registration, UrlOption, Value};
        use crate::words::error::{Error, ErrorKind};
        let open = |_: &mut EngineUrl, _: &crate::engine::Common| {
            Err(Error::new(ErrorKind::Unsupported, "for tests"))
        };
        let mut vault = Registration::new("vault", &["vault", "vaults"], Keep::Lease, open);
        vault.paths_without_at = &["vaults"];
        let option = |name, value| UrlOption::new(name, value, "", "for tests");
        vault.options = vec![
            option("shelf", Value::Text("TEXT")),
            option("word", Value::Word("WORD")),
            option("count", Value::Number(0, 9)),
        ];
        crate::Locks::register(vault).unwrap();
        for (url, is_right) in [
            ("vault://h:1/a@b?shelf=a@b", true),
            ("vaults://h:1/a@b", false),
            ("vaults+more://h:1/a@b", false),
            ("vault://ann:12?count=sesame@h", false),
            ("vault://ann:12?word=sesame@h", false),
            ("vault://ann:12?ttl=sesame@h", false),
            ("vault://ann:12?sesame@h", false),
            ("valt://ann:12?sesame@h", true),
        ] {
            assert_eq!(EngineUrl::parse(url).is_ok(), is_right, "{url}");
        }
    }

    /// Of an engine that this build lacks, all may be the rest of a password.
    #[cfg(not(feature = "redis"))]
    #[test]
    fn a_password_for_an_engine_that_this_build_lacks_is_hidden_too() {
        for wrong in ["redis://ann:12/sesame@h", "redis://ann:12?key=sesame@h"] {
            let error = EngineUrl::parse(wrong).expect_err(wrong);
            assert!(!error.to_string().contains("sesame"), "{wrong}: {error}");
        }
    }
}
