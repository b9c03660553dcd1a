//! A client of one server, whatever is kept there: what every layout, and every deployment of
//! several servers, is made of.
//!
//! | file | what it is |
//! |---|---|
//! | `resp` | the protocol |
//! | `stream` | the socket, plain or TLS |
//! | `pipe` | one connection: what is sent, many names in one call, and whose answer comes back |
//! | `why` | what happened to a request that was not answered |
//! | `gate` | requests that wait for replicas, in front of a connection |
//! | `wire` | a connection that is remade whenever it breaks, and script calls over it |
//! | `lane` | what carries an engine's requests: such a connection, or one to each node |
//! | `node` | which server it is, where there are several |
//! | `inlets` | where the answers of several servers come in |
//! | `slots`, `nodes` | which node of a cluster has what, and the connections to all of them |
//! | `script`, `texts` | the scripts, by their SHA-1, and what they are given |

mod gate;
#[cfg(any(feature = "redlock", feature = "cluster"))]
pub(in crate::engine) mod inlets;
pub(in crate::engine) mod lane;
pub(in crate::engine) mod node;
#[cfg(feature = "cluster")]
pub(in crate::engine) mod nodes;
pub(in crate::engine) mod pipe;
pub(in crate::engine) mod resp;
pub(in crate::engine) mod script;
#[cfg(feature = "cluster")]
pub(in crate::engine) mod slots;
pub(in crate::engine) mod stream;
pub(in crate::engine) mod texts;
pub(in crate::engine) mod why;
pub(in crate::engine) mod wire;
