//! A server from its start to its end.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use postrider::config::ConfigError;
use postrider::state_records::StateRecords;
use postrider::tasks::{Shutdown, TaskKeeperOptions};
use postrider::{BoxFuture, ContextError, Deadline, MessagingError, StateStorage, SystemContext};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::access::Tokens;
use crate::app::App;
use crate::options::ServerOptions;
use crate::workers::SWEEP;
use crate::{edge, looking, routes};

/// How long chores, jobs and leases that go back have when no connection is left.
const LAST_WORK: Duration = Duration::from_secs(10);

/// Why a server cannot be started.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// The configuration is wrong.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The store cannot be used.
    #[error(transparent)]
    Messaging(#[from] MessagingError),
    /// Either.
    #[error(transparent)]
    Context(#[from] ContextError),
    /// Nobody may listen there.
    #[error("cannot listen on {address}: {source}. Choose another address with --listen, or end what uses it")]
    Listen {
        /// Where.
        address: SocketAddr,
        /// Why not.
        source: std::io::Error,
    },
    /// Everybody could reach it, and nobody would be asked who they are.
    #[error(
        "{address} can be reached from other machines, and there is no token. Make one with `postrider token create \
         NAME --role admin` and the --url of this store, then start the server again"
    )]
    Open {
        /// Where.
        address: SocketAddr,
    },
    /// The certificate or its key cannot be used.
    #[error("the certificate cannot be used: {}: {why}. Give a certificate and its key as PEM files", file.display())]
    Certificate {
        /// Which file.
        file: PathBuf,
        /// What is wrong with it.
        why: String,
    },
}

/// A server that listens and does not answer yet.
#[must_use = "a server does nothing until it is run"]
pub struct Server {
    app: Arc<App>,
    listener: TcpListener,
    tls: Option<TlsAcceptor>,
    address: SocketAddr,
    keeper: TaskKeeperOptions,
}

impl Server {
    /// Listens, with the store and the state that the context names.
    pub fn bind(
        context: SystemContext,
        state: StateStorage,
        options: ServerOptions,
    ) -> BoxFuture<'static, Result<Self, ServeError>> {
        Box::pin(async move {
            if !options.listen.ip().is_loopback() && !Tokens::new(state.clone()).any(Deadline::default()).await? {
                return Err(ServeError::Open { address: options.listen });
            }
            let tls = options.tls.as_ref().map(edge::acceptor).transpose()?;
            let refused = |source| ServeError::Listen { address: options.listen, source };
            let listener = TcpListener::bind(options.listen).await.map_err(refused)?;
            let address = listener.local_addr().map_err(refused)?;
            let tasks = context.config.tasks();
            let keeper = TaskKeeperOptions {
                grace: tasks.grace,
                retention: Some(tasks.retention).filter(|retention| !retention.is_zero()),
                ..TaskKeeperOptions::default()
            };
            let app = App::new(context, state, options, CancellationToken::new()).await?;
            Ok(Self { app: Arc::new(app), listener, tls, address, keeper })
        })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Where the dashboard is.
    pub fn url(&self) -> String {
        format!("{}://{}", if self.tls.is_some() { "https" } else { "http" }, self.address)
    }

    /// Serves until a stop is asked for; then long polls end, running requests finish, and what was begun is ended.
    pub async fn run(self, shutdown: impl Into<Shutdown>) -> Result<(), ServeError> {
        let shutdown = shutdown.into();
        let Self { app, listener, tls, keeper, .. } = self;
        let others = TaskTracker::new();
        // Nothing is lost where these are left in the middle.
        others.spawn(app.stop.clone().run_until_cancelled_owned(looking::watch(app.clone())));
        others.spawn(app.stop.clone().run_until_cancelled_owned(forget(app.clone())));
        others.spawn(app.stop.clone().run_until_cancelled_owned(sweep(app.clone())));
        let chores = Shutdown::new();
        let keeper = app.tasks.keeper(keeper).run(chores.clone());
        let keeping = others.spawn(async move {
            if let Err(error) = keeper.await {
                tracing::error!(%error, "the chores of tasks are not done any more");
            }
        });
        let stop = app.stop.clone();
        let serving = edge::accept(app.clone(), listener, routes::router(&app), tls);
        let mut serving = std::pin::pin!(serving);
        tokio::select! {
            () = serving.as_mut() => {}
            () = shutdown.requested() => {
                stop.cancel();
                serving.await;
            }
        }
        stop.cancel();
        chores.request();
        others.close();
        app.begun.close();
        let ended = async { tokio::join!(others.wait(), app.begun.wait()) };
        // Each is short; what takes longer is safe to be cut off.
        if tokio::time::timeout(LAST_WORK, ended).await.is_err() {
            tracing::warn!(
                left = others.len() + app.begun.len(),
                "what was begun was cut off: it took too long to end"
            );
            keeping.abort();
        }
        app.context.close(Deadline::default()).await?;
        Ok(())
    }
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Server").field("address", &self.address).finish_non_exhaustive()
    }
}

/// Removes records that have ended, now and then.
async fn forget(app: Arc<App>) -> Infallible {
    loop {
        if let Err(error) = app.records.forget_expired(Deadline::default()).await {
            tracing::warn!(%error, "records that have ended could not be removed");
        }
        tokio::time::sleep(Duration::from_secs(600)).await;
    }
}

/// Forgets workers that are gone, now and then.
async fn sweep(app: Arc<App>) -> Infallible {
    loop {
        tokio::time::sleep(SWEEP).await;
        app.workers.sweep();
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use postrider::{Message, MessagingService, QueueName};

    use super::*;

    #[tokio::test]
    async fn the_store_is_closed_after_what_was_begun_has_ended() {
        let (context, state, _folder) = crate::app::example_store().await;
        let options = ServerOptions { listen: (Ipv4Addr::LOCALHOST, 0).into(), ..ServerOptions::default() };
        let server = Server::bind(context, state, options).await.unwrap();
        let (app, sent) = (server.app.clone(), Arc::new(AtomicUsize::new(0)));
        let counted = sent.clone();
        server.app.begun.spawn(async move {
            app.stop.cancelled().await;
            let queue = QueueName::new("orders").unwrap();
            for _ in 0..100 {
                app.provider.send_message(&queue, Message::new("a"), Deadline::default()).await.unwrap();
                counted.fetch_add(1, Ordering::Relaxed);
            }
        });
        let shutdown = Shutdown::new();
        shutdown.request();
        server.run(shutdown).await.unwrap();
        assert_eq!(sent.load(Ordering::Relaxed), 100);
    }
}
