//! The URL table: one line an engine.

use std::sync::Arc;

use crate::engine::Engine;
use crate::error::{Error, ErrorKind, Result};
use crate::keeper::Settings;
use crate::url::EngineUrl;

/// The engine that a URL names, not opened yet.
pub(crate) fn engine(mut url: EngineUrl, settings: &Settings) -> Result<Arc<dyn Engine>> {
    let engine = built_in(&mut url, settings)?.ok_or_else(|| unknown(&url.scheme))?;
    url.finish()?;
    Ok(engine)
}

/// `None` where this build has no engine for the scheme.
fn built_in(url: &mut EngineUrl, settings: &Settings) -> Result<Option<Arc<dyn Engine>>> {
    let _ = settings;
    let engine: Option<Arc<dyn Engine>> = match url.scheme.as_str() {
        #[cfg(feature = "memory")]
        "memory" => {
            let name = std::mem::take(&mut url.path);
            let memory =
                if name.is_empty() { crate::engine::memory::Memory::private() } else { crate::engine::memory::Memory::shared(&name) };
            Some(Arc::new(memory))
        }
        #[cfg(feature = "redis")]
        "redis" | "rediss" | "redis+unix" => {
            let options = crate::engine::redis::options(url, settings.ttl, settings.drift.per_mille)?;
            Some(crate::engine::redis::connect(options).into())
        }
        #[cfg(all(feature = "file", target_os = "linux"))]
        "file" => {
            if !url.hosts.is_empty() {
                return Err(Error::new(ErrorKind::InvalidArgument, "file: has no host: write file:///path/dir with three slashes"));
            }
            let durable = url.take_bool("durable")?.unwrap_or(false);
            let path = std::mem::take(&mut url.path);
            let path = crate::home::lock_directory(&path)?;
            Some(Arc::new(crate::engine::file::File::new(path, durable)))
        }
        #[cfg(feature = "zookeeper")]
        "zk" => {
            use crate::engine::zookeeper::{ZooKeeper, options::Options};
            Some(Arc::new(ZooKeeper::new(Options::from_url(url, settings)?)))
        }
        _ => None,
    };
    Ok(engine)
}

fn unknown(scheme: &str) -> Error {
    const ALL: [&str; 12] = [
        "memory",
        "file",
        "redis",
        "rediss",
        "redis+unix",
        "redis+sentinel",
        "redis+cluster",
        "redlock",
        "zk",
        "postgres",
        "mysql",
        "etcd",
    ];
    let text = if ALL.contains(&scheme) {
        format!("this build has no engine for {scheme}: build lockkeeper with its feature")
    } else {
        format!("{scheme}: is no engine; the schemes are {}", ALL.join(", "))
    };
    Error::new(ErrorKind::InvalidArgument, text)
}
