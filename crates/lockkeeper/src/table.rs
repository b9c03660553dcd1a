//! The URL table: one line an engine.

use std::sync::Arc;

use crate::engine::Engine;
use crate::error::{Error, ErrorKind, Result};
use crate::keeper::Settings;
use crate::url::EngineUrl;

/// The engine that a URL names, not opened yet.
pub(crate) fn engine(mut url: EngineUrl, settings: &Settings) -> Result<Arc<dyn Engine>> {
    let _ = settings;
    let engine: Arc<dyn Engine> = match url.scheme.as_str() {
        #[cfg(feature = "memory")]
        "memory" => {
            let name = std::mem::take(&mut url.path);
            Arc::new(if name.is_empty() { crate::engine::memory::Memory::private() } else { crate::engine::memory::Memory::shared(&name) })
        }
        #[cfg(feature = "redis")]
        "redis" | "rediss" | "redis+unix" => {
            let options = crate::engine::redis::options(&mut url, settings.ttl, settings.drift.per_mille)?;
            crate::engine::redis::connect(options)?.into()
        }
        #[cfg(all(feature = "file", target_os = "linux"))]
        "file" => {
            if !url.hosts.is_empty() {
                return Err(Error::new(ErrorKind::InvalidArgument, "file: has no host: write file:///path/dir with three slashes"));
            }
            let durable = url.take_bool("durable")?.unwrap_or(false);
            let path = std::mem::take(&mut url.path);
            let path = if path.is_empty() { crate::locks::default_directory()? } else { path.into() };
            Arc::new(crate::engine::file::File::new(path, durable))
        }
        scheme => return Err(unknown(scheme)),
    };
    url.finish()?;
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
