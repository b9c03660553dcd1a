//! A client of one server, whatever is kept there: what every layout, and every deployment of
//! several servers, is made of.
//!
//! | file | what it is |
//! |---|---|
//! | `resp` | the protocol |
//! | `stream` | the socket, plain or TLS |
//! | `pipe` | one connection: what is sent, and whose answer comes back |
//! | `gate` | requests that wait for replicas, in front of a connection |
//! | `wire` | a connection that is remade whenever it breaks, and script calls over it |
//! | `script` | the scripts, by their SHA-1 |

mod gate;
pub(in crate::engine) mod pipe;
pub(in crate::engine) mod resp;
pub(in crate::engine) mod script;
pub(in crate::engine) mod stream;
pub(in crate::engine) mod wire;
