//! Connections: sockets, TLS, time-outs, and closing them.

mod connection;
mod connection_permits;
mod listen;
mod middleware;
mod tls;

pub(crate) use connection::Peer;
pub(crate) use listen::accept;
pub(crate) use middleware::{CallerName, outermost};
pub(crate) use tls::acceptor;
