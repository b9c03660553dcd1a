//! Redis: one server, in our own layout or in one shared with other programs. Which server that is,
//! or which of many has a name, Sentinels or the nodes of a cluster may say.
//!
//! | file | what it is |
//! |---|---|
//! | `url`, `options`, `describe`, `errors` | what the URL says, what the server is, what its errors mean |
//! | `client/` | a client of one server: the protocol, the socket, connections that are remade, scripts |
//! | `name`, `record`, `reply` | the native layout: keys, what stands in them, what its scripts answer |
//! | `refusal` | servers that refuse, where a majority of several is enough |
//! | `numbers` | the numbers that a server which takes the place of another must not go below |
//! | `recipe` | the native layout as a pure machine |
//! | `links`, `opened`, `watches` | an open engine: its two connections, what every layout does over them, and who watches what |
//! | `finder`, `sentinel/`, `cluster/` | who says where the server is, or the node of a name: schemes of their own |
//! | `native/` | the native layout as an engine: `acquire`, `release`, `inspect`, `watch` |
//! | `fenced` | data keys that check tokens, for programs that keep what they protect in Redis |
//! | `beside` | locks of another layout under the same name |
//! | `sweep` | removes the keys of a measurement, in any layout |
//! | `dialect`, `plain`, `redisson` | the layouts of other programs: their keys, values and channels |
//! | `foreign/` | those layouts as an engine, in the same rooms |

mod anchors;
pub(in crate::engine) mod beside;
pub(in crate::engine) mod client;
#[cfg(feature = "cluster")]
pub(crate) mod cluster;
pub(in crate::engine) mod describe;
mod dialect;
pub(in crate::engine) mod errors;
pub(crate) mod fenced;
mod finder;
mod foreign;
mod links;
pub(in crate::engine) mod name;
mod native;
mod numbers;
mod opened;
pub(in crate::engine) mod options;
pub(in crate::engine) mod plain;
mod recipe;
pub(in crate::engine) mod record;
pub(in crate::engine) mod redisson;
#[cfg(any(feature = "sentinel", feature = "redlock"))]
pub(in crate::engine) mod refusal;
mod registration;
pub(in crate::engine) mod reply;
#[cfg(feature = "sentinel")]
pub(crate) mod sentinel;
mod sweep;
mod together;
pub(in crate::engine) mod url;
mod watches;

#[cfg(test)]
pub(in crate::engine) mod tests;

use std::sync::Arc;

use client::{pipe, resp, script, wire};
use finder::Finder;
use foreign::Foreign;
use native::Native;
use opened::Server;
use options::{Layout, RedisOptions};
pub(crate) use registration::registration;

use crate::engine::Engine;

/// The engine for one server, or for what `finder` finds; nothing is sent before [`Engine::open`].
fn connect(options: RedisOptions, finder: Option<Arc<dyn Finder>>) -> Box<dyn Engine> {
    match options.layout {
        Layout::Native => Box::new(Server::<Native>::new(options, finder, ())),
        Layout::Redisson => {
            let dialect = redisson::Redisson::new(options.redisson, options.semaphore);
            Box::new(Server::<Foreign>::new(options, finder, Arc::new(dialect)))
        }
        Layout::Plain => {
            let dialect = plain::Plain::new(&options);
            Box::new(Server::<Foreign>::new(options, finder, Arc::new(dialect)))
        }
    }
}
