//! Redis: one server, in our own layout or in one shared with other programs.
//!
//! | file | what it is |
//! |---|---|
//! | `options`, `facts`, `errors` | what the URL says, what the server is, what its errors mean |
//! | `resp`, `stream`, `pipe`, `wire` | the protocol, the socket, one connection, connections that are remade |
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
mod wire;

#[cfg(test)]
mod tests;

pub(crate) use options::{Address, Layout, RedisOptions, Secret, Tls, ValueFormat};

use crate::engine::Engine;

/// The engine for one server; nothing is sent before [`Engine::open`].
pub(crate) fn connect(options: RedisOptions) -> Box<dyn Engine> {
    Box::new(native::Native::new(options))
}
