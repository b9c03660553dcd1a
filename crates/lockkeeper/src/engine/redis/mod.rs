//! Redis: one server, in our own layout or in one shared with other programs.
//!
//! | file | what it is |
//! |---|---|
//! | `url`, `options`, `facts`, `errors` | what the URL says, what the server is, what its errors mean |
//! | `resp`, `stream`, `tls`, `pipe`, `wire` | the protocol, the socket, one connection, connections that are remade |
//! | `keys`, `record`, `reply`, `script` | the native layout: keys, what stands in them, what its scripts answer |
//! | `recipe`, `anchor` | the native layout as a pure machine |
//! | `native`, `look` | the native layout as an engine: locking, and telling who holds what |

mod anchor;
mod errors;
mod facts;
mod keys;
mod look;
mod native;
mod options;
mod pipe;
mod recipe;
mod record;
mod reply;
mod resp;
mod script;
mod stream;
mod tls;
mod url;
mod wire;

#[cfg(test)]
mod tests;

use options::{Layout, RedisOptions};
pub(crate) use url::options;

use crate::engine::Engine;
use crate::error::{Error, ErrorKind, Result};

/// The engine for one server; nothing is sent before [`Engine::open`].
///
/// # Errors
/// `Unsupported` for a layout that is not built in.
pub(crate) fn connect(options: RedisOptions) -> Result<Box<dyn Engine>> {
    match options.layout {
        Layout::Native => Ok(Box::new(native::Native::new(options))),
        Layout::Redisson | Layout::Plain => {
            Err(Error::new(ErrorKind::Unsupported, format!("layout={} is not built in", options.layout.as_str())))
        }
    }
}
