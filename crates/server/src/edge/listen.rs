//! Accepting and closing connections.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower::ServiceExt;

use super::connection::{Peer, TimedStream};
use super::connection_permits::{BusyBody, ConnectionPermit, ConnectionPermits};
use crate::app::App;

/// Upper bound of a connection's read buffer, and so of a request's head.
const MAX_BUFFERED: usize = 64 * 1024;

/// Time-out of the TLS handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// Serves connections until the server stops, then waits up to `graceful_timeout` for running requests and aborts the
/// rest. No connection is open when it returns.
pub(crate) async fn accept(app: Arc<App>, listener: TcpListener, router: Router, tls: Option<TlsAcceptor>) {
    let permits = ConnectionPermits::new(app.options.max_connections);
    // As many again are accepted and wait for a permit, so that their addresses are known and shared fairly; the rest
    // stays in the kernel's backlog.
    let waiting = Arc::new(Semaphore::new(app.options.max_connections));
    let (connections, cut_off) = (TaskTracker::new(), CancellationToken::new());
    loop {
        let waits = tokio::select! {
            waits = waiting.clone().acquire_owned() => waits,
            () = app.stop.cancelled() => break,
        };
        let Ok(waits) = waits else { break };
        let (stream, address) = tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    // Out of file descriptors, or the client has left: an immediate retry helps with neither.
                    tracing::warn!(%error, "a connection could not be accepted");
                    tokio::time::sleep(Duration::from_millis(50)).await;
                    continue;
                }
            },
            () = app.stop.cancelled() => break,
        };
        // Nagle's algorithm would delay small answers.
        let _ = stream.set_nodelay(true);
        let (app, router, tls, cut_off) = (app.clone(), router.clone(), tls.clone(), cut_off.clone());
        let permits = permits.clone();
        connections.spawn(async move {
            let peer = Peer { address: address.ip().to_string().into(), ..Peer::default() };
            let granted = async {
                tokio::select! {
                    permit = permits.acquire(address.ip(), &peer.unflushed) => permit,
                    () = app.stop.cancelled() => None,
                }
            };
            let Some(permit) = cut_off.run_until_cancelled(granted).await.flatten() else { return };
            drop(waits);
            let count = app.metrics.connections().clone();
            count.inc();
            let permit = Arc::new(permit);
            let _ = cut_off.run_until_cancelled(connect(app, stream, peer, permit, router, tls)).await;
            count.dec();
        });
    }
    drop(listener);
    connections.close();
    if tokio::time::timeout(app.options.graceful_timeout, connections.wait()).await.is_err() {
        tracing::warn!(left = connections.len(), "connections were cut off: their requests took too long to end");
        cut_off.cancel();
        connections.wait().await;
    }
}

async fn connect(
    app: Arc<App>,
    stream: TcpStream,
    peer: Peer,
    permit: Arc<ConnectionPermit>,
    router: Router,
    tls: Option<TlsAcceptor>,
) {
    match tls {
        None => serve(app, stream, peer, permit, router).await,
        Some(tls) => {
            let agreed = tokio::select! {
                agreed = tokio::time::timeout(HANDSHAKE_TIMEOUT, tls.accept(stream)) => agreed,
                () = permit.evicted() => return,
            };
            match agreed {
                Ok(Ok(stream)) => serve(app, stream, peer, permit, router).await,
                Ok(Err(error)) => tracing::debug!(%error, "the TLS handshake failed"),
                Err(_) => tracing::debug!("the TLS handshake timed out"),
            }
        }
    }
}

async fn serve<S>(app: Arc<App>, stream: S, peer: Peer, permit: Arc<ConnectionPermit>, router: Router)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let stream = TimedStream::new(stream, app.options.write_timeout, peer.unflushed.clone());
    let own = permit.clone();
    let service = tower::service_fn(move |mut request: axum::http::Request<hyper::body::Incoming>| {
        let busy = own.busy();
        request.extensions_mut().insert(peer.clone());
        let answer = router.clone().oneshot(request.map(Body::new));
        async move { answer.await.map(|response| response.map(|inner| Body::new(BusyBody { inner, _busy: busy }))) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(app.options.head_timeout)
        .max_buf_size(MAX_BUFFERED)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(service));
    let mut connection = std::pin::pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        // Another connection waits for its permit, and no request runs on it.
        () = permit.evicted() => {
            if permit.is_idle() {
                return;
            }
            connection.as_mut().graceful_shutdown();
            connection.await
        }
        () = app.stop.cancelled() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "a connection ended early");
    }
}
