//! Where the server meets the network: sockets, TLS, time-outs, and the end of it all.

mod connection;
mod frame;
mod listen;
mod places;
mod tls;

pub(crate) use connection::Peer;
pub(crate) use frame::{Who, frame};
pub(crate) use listen::accept;
pub(crate) use tls::acceptor;
