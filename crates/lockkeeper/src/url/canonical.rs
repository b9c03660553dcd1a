//! One name for one store of locks, however its URL is written.

use std::collections::BTreeMap;

use super::EngineUrl;
use crate::engine::Registration;
use crate::error::Result;

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
        let mut place =
            Self { user: None, password: None, options: BTreeMap::new(), ..self.clone() };
        for (_, port) in &mut place.hosts {
            *port = port.or(engine.port);
        }
        place.path = match engine.place {
            Some(place) => place(self)?,
            None => self.path.trim_end_matches('/').to_owned(),
        };
        if engine.root == Some(place.path.as_str()) {
            place.path.clear();
        }
        let mut text = format!("{}:{}", self.scheme, place.shown_place());
        let mut mark = '?';
        for option in engine.options.iter().filter(|option| option.identity) {
            if let Some(value) =
                self.options.get(option.name).filter(|value| *value != option.default)
            {
                text = format!("{text}{mark}{}={value}", option.name);
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

    #[cfg(all(feature = "file", target_os = "linux"))]
    #[test]
    fn two_ways_to_one_directory_are_one_engine() {
        let home = tempfile::tempdir().unwrap();
        let (real, link) = (home.path().join("a b"), home.path().join("link"));
        std::fs::create_dir(&real).unwrap();
        std::os::unix::fs::symlink(&real, &link).unwrap();
        let of = |path: &std::path::Path| {
            parse(&format!("{}?durable=true", crate::config::file_url(path))).canonical().unwrap()
        };
        assert_eq!(of(&link), crate::config::file_url(&std::fs::canonicalize(&real).unwrap()));
        assert_eq!(of(&link), of(&real));
    }
}
