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

/// Options whose text may hold an `@`: in all others it ends a password that was not escaped.
#[doc(hidden)]
pub fn may_hold_at(option: &str) -> bool {
    const TEXTS: [&str; 12] = [
        "password_file",
        "sentinel_password_file",
        "password_env",
        "key",
        "prefix",
        "auth",
        "acl",
        "tls_ca",
        "tls_cert",
        "tls_key",
        "tls_name",
        "password",
    ];
    TEXTS.contains(&option)
}

/// Whether what looks like a path or options is the rest of a password: then no part of it may
/// stand in an error. Only of the schemes that a password can stand in, and whose paths and options
/// are known.
pub(super) fn is_cut_password(scheme: &str, rest: &str, query: &str) -> bool {
    let is_redis = scheme.starts_with("redis") || scheme == "redlock";
    let Some(rest) = rest.strip_prefix("//").filter(|_| is_redis || scheme == "zk") else {
        return false;
    };
    let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
    let odd = |pair: &str| {
        pair.contains('@') && !pair.split_once('=').is_some_and(|(option, _)| may_hold_at(option))
    };
    let is_numbered = is_redis && scheme != "redis+unix";
    authority.contains(':') && (is_numbered && path.contains('@') || query.split('&').any(odd))
}

#[cfg(test)]
mod tests {
    use crate::url::EngineUrl;

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
        for right in [
            "redis://h:6379?password_file=/a@b&ttl=5s",
            "redis+unix://:p@/run/a@b.sock",
            "zk://h:2181/a@b",
            "own://h:1/a@b?who=a@b",
        ] {
            assert!(EngineUrl::parse(right).is_ok(), "{right}");
        }
    }
}
