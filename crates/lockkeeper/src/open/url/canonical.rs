//! One name for one store of locks, however its URL is written.

use super::{EngineUrl, encode};
use crate::engine::Registration;
use crate::words::error::Result;

impl EngineUrl {
    /// What tells one store of locks from another, the same for every way to write it: where it
    /// is, and the options that make a name another lock. Never a user, never a password.
    ///
    /// # Errors
    /// `InvalidArgument` for a scheme without an engine, and where the place cannot be right.
    ///
    /// ```
    /// use lockkeeper::url::EngineUrl;
    ///
    /// let url = EngineUrl::parse("memory:shop?ttl=5s")?;
    /// assert_eq!(url.canonical()?, "memory:shop");
    /// # Ok::<(), lockkeeper::Error>(())
    /// ```
    pub fn canonical(&self) -> Result<String> {
        let engine = Registration::of(&self.scheme)?;
        let mut url = Self { user: None, password: None, ..self.clone() };
        for (host, port) in &mut url.hosts {
            host.make_ascii_lowercase();
            *port = port.or(engine.port);
        }
        match engine.place {
            Some(place) => place(&mut url)?,
            None => url.path.truncate(url.path.trim_end_matches('/').len()),
        }
        let mut text = format!("{}:{}", url.scheme, url.shown_place());
        let mut mark = '?';
        for option in engine.options.iter().filter(|option| option.identity) {
            let Some(value) = url.options.get(option.name) else { continue };
            let value = option.value.normal(value);
            if value != option.value.normal(option.default) {
                text += &format!("{mark}{}={}", option.name, encode(&value));
                mark = '&';
            }
        }
        Ok(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(url: &str) -> EngineUrl {
        EngineUrl::parse(url).unwrap()
    }

    #[cfg(all(feature = "redis", feature = "zookeeper"))]
    #[test]
    fn two_ways_to_write_one_server_are_one_engine_and_no_password_is_in_it() {
        let of = |url: &str| parse(url).canonical().unwrap();
        assert_eq!(of("redis://h"), "redis://h:6379");
        assert_eq!(
            of("redis://h"),
            of("redis://ann:secret@h:6379/0?ttl=5s&password_file=x&layout=native")
        );
        assert_eq!(
            of("zk://a,b:2181/shop"),
            of("zk://a:2181,b/shop/?auth=digest:u:secret&session_timeout=5s")
        );
        assert_ne!(of("redis://h"), of("redis://h/1"));
        assert_ne!(of("zk://h"), of("zk://h/0"));
        assert_ne!(of("redis://h"), of("redis://h?layout=plain"));
        assert_eq!(of("redis+unix:///run/r.sock?db=2"), "redis+unix:///run/r.sock?db=2");
        assert_eq!(of("zk://h?layout=plain"), of("zk://h?layout=plain&prefix="));
        assert_ne!(of("zk://h?layout=plain"), of("zk://h?layout=plain&prefix=Lock"));
    }

    #[cfg(feature = "memory")]
    #[test]
    fn two_names_of_shared_memory_are_two_engines() {
        let of = |url: &str| parse(url).canonical().unwrap();
        assert_eq!(of("memory:shop?ttl=5s"), "memory:shop");
        assert_ne!(of("memory:shop"), of("memory:shop/"));
        assert_ne!(of("memory:"), of("memory:/"));
    }

    #[cfg(feature = "redis")]
    #[test]
    fn a_database_is_one_place_however_it_is_written() {
        let of = |url: &str| parse(url).canonical().unwrap();
        for url in ["redis://h/3", "redis://h?db=3", "redis://H:6379/03?db=03"] {
            assert_eq!(of(url), "redis://h:6379/3", "{url}");
        }
        for url in ["redis://h", "redis://h/", "redis://h/0", "redis://h?db=0", "redis://h/00"] {
            assert_eq!(of(url), "redis://h:6379", "{url}");
        }
        assert_eq!(of("redis+unix:///r.sock?db=0"), of("redis+unix:///r.sock"));
        for wrong in ["redis://h/x", "redis://h/7?db=3"] {
            assert!(parse(wrong).canonical().is_err(), "{wrong}");
        }
    }

    #[cfg(feature = "redis")]
    #[test]
    fn the_value_of_an_option_is_no_other_option() {
        let of = |url: &str| parse(url).canonical().unwrap();
        let forged = "redis://h?layout=plain&key=%7Bname%7D%26namespace%3Da";
        assert_eq!(of(forged), "redis://h:6379?layout=plain&key={name}%26namespace%3Da");
        assert_ne!(of(forged), of("redis://h?layout=plain&key=%7Bname%7D&namespace=a"));
    }

    #[cfg(all(feature = "redlock", feature = "zookeeper"))]
    #[test]
    fn the_members_of_a_quorum_and_of_an_ensemble_have_no_order() {
        let of = |url: &str| parse(url).canonical().unwrap();
        assert_eq!(of("redlock://c,a,B:1/2"), "redlock://a:6379,b:1,c:6379/2");
        assert_eq!(of("redlock://a,b:1,c/02"), of("redlock://c,b:1,a/2"));
        assert_ne!(of("redlock://a,b:1,c"), of("redlock://a,b:1,d"));
        assert_eq!(of("zk://b,a/x/"), "zk://a:2181,b:2181/x");
        assert_ne!(of("zk://b,a/x"), of("zk://b,a"));
    }

    #[test]
    fn a_host_that_is_no_address_is_written_without_brackets_and_read_back() {
        for host in ["a,b", "a:b,c", "a]:1,b", "a/b", "::1", "fe80::1%eth0"] {
            let one = EngineUrl { hosts: vec![(host.to_owned(), Some(1))], ..parse("own://x") };
            assert_eq!(parse(&one.to_string()).hosts, one.hosts, "{one}");
        }
    }

    #[cfg(all(feature = "file", target_os = "linux"))]
    #[test]
    fn two_ways_to_one_directory_are_one_engine() {
        let home = tempfile::tempdir().unwrap();
        let (real, link) = (home.path().join("a b"), home.path().join("link"));
        std::fs::create_dir(&real).unwrap();
        std::os::unix::fs::symlink(&real, &link).unwrap();
        let of = |path: &std::path::Path| {
            parse(&format!("{}?durable=true", crate::open::config::file_url(path)))
                .canonical()
                .unwrap()
        };
        assert_eq!(
            of(&link),
            crate::open::config::file_url(&std::fs::canonicalize(&real).unwrap())
        );
        assert_eq!(of(&link), of(&real));
    }
}
