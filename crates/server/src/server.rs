//! Starting, running and stopping a server.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use postrider::config::ConfigError;
use postrider::provider::BoxFuture;
use postrider::state_records::StateRecords;
use postrider::tasks::{Shutdown, TaskKeeperOptions};
use postrider::{ContextError, Deadline, MessagingError, StateStorage, SystemContext};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::access::Tokens;
use crate::app::App;
use crate::options::ServerOptions;
use crate::workers::SWEEP_INTERVAL;
use crate::{edge, routes, sampler};

/// Time that chores, jobs and lease releases have after the last connection has closed.
const STOP_TIMEOUT: Duration = Duration::from_secs(10);

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
    /// The configuration is wrong, or the store cannot be used.
    #[error(transparent)]
    Context(#[from] ContextError),
    /// The address cannot be bound.
    #[error("cannot listen on {address}: {source}. Choose another address with --listen, or end what uses it")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The cause.
        source: std::io::Error,
    },
    /// Other machines could reach the server, and no token exists.
    #[error(
        "{address} can be reached from other machines, and there is no token. Make one with `postrider token create \
         NAME --role admin` and the --url of this store, then start the server again"
    )]
    Open {
        /// The address.
        address: SocketAddr,
    },
    /// The certificate or its key cannot be used.
    #[error("the certificate cannot be used: {}: {why}. Give a certificate and its key as PEM files", file.display())]
    Certificate {
        /// The file.
        file: PathBuf,
        /// The cause.
        why: String,
    },
}

/// A server that is bound to its address and not yet running.
#[must_use = "a server does nothing until it is run"]
pub struct Server {
    app: Arc<App>,
    listener: TcpListener,
    tls: Option<TlsAcceptor>,
    address: SocketAddr,
    keeper: TaskKeeperOptions,
}

impl Server {
    /// Binds the address, with the store and the state of the context.
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

    /// The bound address.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// URL of the dashboard.
    pub fn url(&self) -> String {
        format!("{}://{}", if self.tls.is_some() { "https" } else { "http" }, self.address)
    }

    /// Serves until `shutdown`; then long polls end, running requests finish, and background work is awaited.
    pub async fn run(self, shutdown: impl Into<Shutdown>) -> Result<(), ServeError> {
        let shutdown = shutdown.into();
        let Self { app, listener, tls, keeper, .. } = self;
        let others = TaskTracker::new();
        // These can be aborted anywhere without loss.
        others.spawn(app.stop.clone().run_until_cancelled_owned(sampler::run(app.clone())));
        others.spawn(app.stop.clone().run_until_cancelled_owned(forget(app.clone())));
        others.spawn(app.stop.clone().run_until_cancelled_owned(sweep(app.clone())));
        let chores = Shutdown::new();
        let keeper = app.tasks.keeper(keeper).run(chores.clone());
        let keeping = others.spawn(async move {
            if let Err(error) = keeper.await {
                tracing::error!(%error, "the chores of tasks have stopped");
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
        app.background.close();
        let ended = async { tokio::join!(others.wait(), app.background.wait()) };
        // Each is short, and safe to abort if it takes longer.
        if tokio::time::timeout(STOP_TIMEOUT, ended).await.is_err() {
            tracing::warn!(
                left = others.len() + app.background.len(),
                "background work was aborted: it took too long to end"
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

/// Removes expired records, periodically.
async fn forget(app: Arc<App>) -> Infallible {
    loop {
        if let Err(error) = app.records.forget_expired(Deadline::default()).await {
            tracing::warn!(%error, "expired records could not be removed");
        }
        tokio::time::sleep(Duration::from_secs(600)).await;
    }
}

/// Removes idle workers from the list, periodically.
async fn sweep(app: Arc<App>) -> Infallible {
    loop {
        tokio::time::sleep(SWEEP_INTERVAL).await;
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
    async fn the_store_is_closed_after_background_work_has_ended() {
        let (context, state, _folder) = crate::app::test_store().await;
        let options = ServerOptions { listen: (Ipv4Addr::LOCALHOST, 0).into(), ..ServerOptions::default() };
        let server = Server::bind(context, state, options).await.unwrap();
        let (app, sent) = (server.app.clone(), Arc::new(AtomicUsize::new(0)));
        let counted = sent.clone();
        server.app.background.spawn(async move {
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
