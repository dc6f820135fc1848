//! A TCP proxy before a server that injects network faults.
//!
//! Unlike a [`LinkedProvider`](crate::link::LinkedProvider), which is between a caller and a provider, this is between a
//! provider and its server: it tests how the provider connects, reads half an answer and times out. It does not parse
//! its bytes, so any TCP protocol works.
//!
//! Faults can be set at any moment and combined; [`restore`](FaultProxy::restore) ends them all. Connections run on the
//! runtime that the proxy was started on, and end with the proxy. Bytes in flight are bounded: when the receiving end
//! does not read, the sender waits, as on a real network.

mod pump;

#[cfg(test)]
mod tests;

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

use pump::{Direction, carry};

/// The faults of the network.
#[derive(Debug, Clone, Default)]
struct Faults {
    /// The number of cuts: a connection made before the last one ends.
    cuts: u64,
    refuses: bool,
    stalls: bool,
    /// The number of reply chunks that pass before the rest is lost.
    loses_after: Option<u64>,
    request_delay: Duration,
    reply_delay: Duration,
}

/// A proxy with faults before a server.
#[derive(Debug)]
pub struct FaultProxy {
    address: SocketAddr,
    url: Option<String>,
    faults: watch::Sender<Faults>,
    /// The number of reply chunks since the loss of replies was set, including those that still chunks.
    reply_chunks: watch::Sender<u64>,
    /// The accepting task, which owns the tasks of the connections. They end on drop.
    _accepting: JoinSet<()>,
}

impl FaultProxy {
    /// Listens on a free port of 127.0.0.1, for a server at `host:port`.
    pub async fn start(server: impl Into<String>) -> io::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let address = listener.local_addr()?;
        let (faults, reply_chunks) = (watch::Sender::new(Faults::default()), watch::Sender::new(0));
        let mut accepting = JoinSet::new();
        accepting.spawn(accept(listener, server.into(), faults.clone(), reply_chunks.clone()));
        Ok(Self { address, url: None, faults, reply_chunks, _accepting: accepting })
    }

    /// Starts a proxy for the server of a URL with a port, `scheme://user:password@host:port/rest`. The same URL through
    /// the proxy is [`url`](Self::url).
    pub async fn before(url: &str) -> io::Result<Self> {
        let no_port = || {
            io::Error::new(io::ErrorKind::InvalidInput, format!("no host and port in {url}; pass scheme://host:port"))
        };
        let (scheme, rest) = url.split_once("://").ok_or_else(no_port)?;
        let end = rest.find(['/', '?']).unwrap_or(rest.len());
        let (authority, path) = rest.split_at(end);
        let (user, server) = authority.rsplit_once('@').map_or(("", authority), |(user, server)| (user, server));
        if !server.contains(':') {
            return Err(no_port());
        }
        let mut proxy = Self::start(server).await?;
        let at = if user.is_empty() { "" } else { "@" };
        proxy.url = Some(format!("{scheme}://{user}{at}{}{path}", proxy.address));
        Ok(proxy)
    }

    /// Its listening address.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The URL chunks to [`before`](Self::before) with the proxy's address; else the address alone.
    pub fn url(&self) -> String {
        self.url.clone().unwrap_or_else(|| self.address.to_string())
    }

    /// Ends all connections at once. New ones can be made.
    pub fn cut(&self) {
        self.faults.send_modify(|faults| faults.cuts += 1);
    }

    /// Makes the server unreachable: ends all connections, and each new one as soon as it is made.
    pub fn refuse(&self) {
        self.faults.send_modify(|faults| {
            faults.refuses = true;
            faults.cuts += 1;
        });
    }

    /// Holds back all bytes in both directions, also on new connections. They arrive when the network is restored.
    pub fn stall(&self) {
        self.faults.send_modify(|faults| faults.stalls = true);
    }

    /// Delays bytes from now on, to the server and back.
    pub fn delay(&self, requests: Duration, replies: Duration) {
        self.faults.send_modify(|faults| {
            faults.request_delay = requests;
            faults.reply_delay = replies;
        });
    }

    /// Loses replies; requests still reach the server. After a loss nothing more arrives on the connection, also when the
    /// network is restored: [`cut`](Self::cut) it, or wait for the client's time-out.
    pub fn drop_replies(&self) {
        self.drop_replies_after(0);
    }

    /// The same after `chunks` more reply chunks, so that a test can step a fault through a conversation.
    pub fn drop_replies_after(&self, chunks: u64) {
        self.reply_chunks.send_replace(0);
        self.faults.send_modify(|faults| faults.loses_after = Some(chunks));
    }

    /// Waits until a reply chunk has been lost since [`drop_replies`](Self::drop_replies): by then a request has reached
    /// the server and was answered.
    pub async fn reply_was_lost(&self) {
        let Some(chunks) = self.faults.borrow().loses_after else { return std::future::pending().await };
        // `self` owns the sender, so this cannot fail.
        let _ = self.reply_chunks.subscribe().wait_for(|reply_chunks| *reply_chunks > chunks).await;
    }

    /// Ends every fault. Connections that were cut stay cut.
    pub fn restore(&self) {
        self.faults.send_modify(|faults| *faults = Faults { cuts: faults.cuts, ..Faults::default() });
    }

    /// Restores the network on drop, so that a cancelled loop of faults leaves none behind.
    pub fn restored_at_end(&self) -> RestoredAtEnd<'_> {
        RestoredAtEnd(self)
    }
}

/// Restores the network of a [`FaultProxy`] on drop.
#[derive(Debug)]
pub struct RestoredAtEnd<'a>(&'a FaultProxy);

impl Drop for RestoredAtEnd<'_> {
    fn drop(&mut self) {
        self.0.restore();
    }
}

async fn accept(
    listener: TcpListener,
    server: String,
    faults: watch::Sender<Faults>,
    reply_chunks: watch::Sender<u64>,
) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                // An error concerns one connection, which ended before it was accepted.
                let Ok((client, _)) = accepted else { continue };
                let seen = faults.borrow().clone();
                if !seen.refuses {
                    connections.spawn(connection(client, server.clone(), faults.clone(), reply_chunks.clone(), seen.cuts));
                }
            }
            Some(_) = connections.join_next() => {}
        }
    }
}

/// Forwards one connection until either side ends it or it is cut.
async fn connection(
    client: TcpStream,
    server: String,
    faults: watch::Sender<Faults>,
    reply_chunks: watch::Sender<u64>,
    cuts: u64,
) {
    let mut watched = faults.subscribe();
    let forwarding = async {
        let server = TcpStream::connect(server).await?;
        // Keeps Nagle's algorithm from adding delays.
        server.set_nodelay(true)?;
        client.set_nodelay(true)?;
        let (from_client, to_client) = client.into_split();
        let (from_server, to_server) = server.into_split();
        tokio::try_join!(
            carry(from_client, to_server, Direction::Requests, faults.subscribe(), &reply_chunks),
            carry(from_server, to_client, Direction::Replies, faults.subscribe(), &reply_chunks),
        )
        .map(drop)
    };
    tokio::select! {
        // Both sockets close when this returns.
        _ = forwarding => {}
        _ = watched.wait_for(|faults| faults.cuts != cuts) => {}
    }
}
