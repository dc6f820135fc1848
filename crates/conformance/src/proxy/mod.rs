//! A stretch of network before a server, whose faults a test chooses.
//!
//! Unlike a [`Link`](crate::link::Link), which stands between a caller and a provider, this stands between a provider and
//! its server: what is tried is the provider's own connecting, its reading of half an answer, its giving up. It knows
//! nothing of what it carries, so every provider that speaks TCP can be put behind one.
//!
//! Faults can be chosen at any moment and together; [`restore`](FaultProxy::restore) ends them all. Connections live on
//! the runtime that the proxy was started on, and end with the proxy. What is on its way is bounded: when the other end
//! does not read, the sender is made to wait, as by a real network.

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

/// What is wrong with the network.
#[derive(Debug, Clone, Default)]
struct Faults {
    /// How often all connections were cut: one that was made before the last time ends.
    cuts: u64,
    refuses: bool,
    stalls: bool,
    /// What is said after that many more pieces is lost.
    loses_after: Option<u64>,
    request_delay: Duration,
    reply_delay: Duration,
}

/// A server's address at which faults happen.
#[derive(Debug)]
pub struct FaultProxy {
    address: SocketAddr,
    url: Option<String>,
    faults: watch::Sender<Faults>,
    /// How many pieces the server said since replies were to be lost, those that still passed included.
    said: watch::Sender<u64>,
    /// The accepting task, which owns those of the connections. Dropped, they end.
    _accepting: JoinSet<()>,
}

impl FaultProxy {
    /// Listens on a free port of 127.0.0.1, for a server at `host:port`.
    pub async fn start(server: impl Into<String>) -> io::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let address = listener.local_addr()?;
        let (faults, said) = (watch::Sender::new(Faults::default()), watch::Sender::new(0));
        let mut accepting = JoinSet::new();
        accepting.spawn(accept(listener, server.into(), faults.clone(), said.clone()));
        Ok(Self { address, url: None, faults, said, _accepting: accepting })
    }

    /// Stands before the server of a URL that names its port, `scheme://user:password@host:port/rest`. The same URL
    /// through the proxy is [`url`](Self::url).
    pub async fn before(url: &str) -> io::Result<Self> {
        let no_port = || io::Error::new(io::ErrorKind::InvalidInput, format!("no host and port are named in {url}"));
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

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The URL that it was put [before](Self::before), with its own address; else the address alone.
    pub fn url(&self) -> String {
        self.url.clone().unwrap_or_else(|| self.address.to_string())
    }

    /// Ends all connections, at whatever byte they are. New ones can be made at once.
    pub fn cut(&self) {
        self.faults.send_modify(|faults| faults.cuts += 1);
    }

    /// Takes the server away: ends all connections, and each new one as soon as it is made.
    pub fn refuse(&self) {
        self.faults.send_modify(|faults| {
            faults.refuses = true;
            faults.cuts += 1;
        });
    }

    /// Holds everything back, in both directions, also on new connections. Nothing is lost: it arrives when the network
    /// is restored.
    pub fn stall(&self) {
        self.faults.send_modify(|faults| faults.stalls = true);
    }

    /// Makes what is sent from now on travel that long, to the server and back.
    pub fn delay(&self, requests: Duration, replies: Duration) {
        self.faults.send_modify(|faults| {
            faults.request_delay = requests;
            faults.reply_delay = replies;
        });
    }

    /// Loses what the server says; what it is asked still reaches it. Of a connection that has lost something nothing
    /// arrives any more, also when the network is restored: [`cut`](Self::cut) it, or leave its client to give up.
    pub fn drop_replies(&self) {
        self.drop_replies_after(0);
    }

    /// The same, after that many more pieces of replies have passed: so a fault can be led through the steps of a
    /// conversation.
    pub fn drop_replies_after(&self, pieces: u64) {
        self.said.send_replace(0);
        self.faults.send_modify(|faults| faults.loses_after = Some(pieces));
    }

    /// Waits until something of a reply has been lost since replies [are lost](Self::drop_replies): a request has
    /// reached the server by then, and was answered.
    pub async fn reply_was_lost(&self) {
        let Some(passed) = self.faults.borrow().loses_after else { return std::future::pending().await };
        // The sender is ours, so there is always an answer.
        let _ = self.said.subscribe().wait_for(|said| *said > passed).await;
    }

    /// Ends every fault. Connections that were cut stay cut.
    pub fn restore(&self) {
        self.faults.send_modify(|faults| *faults = Faults { cuts: faults.cuts, ..Faults::default() });
    }

    /// Restores the network when it is dropped, so that a loop of faults that is given up leaves none behind.
    pub fn restored_at_end(&self) -> RestoredAtEnd<'_> {
        RestoredAtEnd(self)
    }
}

/// Restores the network of a [`FaultProxy`] when it is dropped.
#[derive(Debug)]
pub struct RestoredAtEnd<'a>(&'a FaultProxy);

impl Drop for RestoredAtEnd<'_> {
    fn drop(&mut self) {
        self.0.restore();
    }
}

async fn accept(listener: TcpListener, server: String, faults: watch::Sender<Faults>, said: watch::Sender<u64>) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                // An error is about one connection, which ended before it was taken.
                let Ok((client, _)) = accepted else { continue };
                let seen = faults.borrow().clone();
                if !seen.refuses {
                    connections.spawn(connection(client, server.clone(), faults.clone(), said.clone(), seen.cuts));
                }
            }
            Some(_) = connections.join_next() => {}
        }
    }
}

/// Carries one connection until either side ends it or it is cut.
async fn connection(
    client: TcpStream,
    server: String,
    faults: watch::Sender<Faults>,
    said: watch::Sender<u64>,
    cuts: u64,
) {
    let mut watched = faults.subscribe();
    let carried = async {
        let server = TcpStream::connect(server).await?;
        // Delays are to be those that were asked for.
        server.set_nodelay(true)?;
        client.set_nodelay(true)?;
        let (from_client, to_client) = client.into_split();
        let (from_server, to_server) = server.into_split();
        tokio::try_join!(
            carry(from_client, to_server, Direction::Requests, faults.subscribe(), &said),
            carry(from_server, to_client, Direction::Replies, faults.subscribe(), &said),
        )
        .map(drop)
    };
    tokio::select! {
        // Either way both sockets are closed with it.
        _ = carried => {}
        _ = watched.wait_for(|faults| faults.cuts != cuts) => {}
    }
}
