//! Accepting connections, and ending them.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
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

use super::connection::{Peer, Watched};
use crate::app::App;

/// How long a client may take to agree on TLS.
const HANDSHAKE: Duration = Duration::from_secs(10);

/// Serves connections until the server is asked to stop, then lets running requests end for as long as they may take, and
/// ends those that take longer. No connection is left.
pub(crate) async fn accept(app: Arc<App>, listener: TcpListener, router: Router, tls: Option<TlsAcceptor>) {
    let places = Arc::new(Semaphore::new(app.options.max_connections));
    let (connections, cut_off) = (TaskTracker::new(), CancellationToken::new());
    loop {
        // Before the connection is taken: what there is no place for waits in the kernel's line.
        let place = tokio::select! {
            place = places.clone().acquire_owned() => place,
            () = app.stop.cancelled() => break,
        };
        let Ok(place) = place else { break };
        let (stream, address) = tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    // Out of file descriptors, or a client that left at once: neither is helped by trying at once.
                    tracing::warn!(%error, "a connection could not be accepted");
                    tokio::time::sleep(Duration::from_millis(50)).await;
                    continue;
                }
            },
            () = app.stop.cancelled() => break,
        };
        // A small answer must not wait for the next one.
        let _ = stream.set_nodelay(true);
        let (app, router, tls, cut_off) = (app.clone(), router.clone(), tls.clone(), cut_off.clone());
        connections.spawn(async move {
            let count = app.meter.connections().clone();
            count.inc();
            let _ = cut_off.run_until_cancelled(connect(app, stream, address, router, tls)).await;
            count.dec();
            drop(place);
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

async fn connect(app: Arc<App>, stream: TcpStream, address: SocketAddr, router: Router, tls: Option<TlsAcceptor>) {
    match tls {
        None => serve(app, stream, address, router).await,
        Some(tls) => match tokio::time::timeout(HANDSHAKE, tls.accept(stream)).await {
            Ok(Ok(stream)) => serve(app, stream, address, router).await,
            Ok(Err(error)) => tracing::debug!(%error, "a client did not agree on TLS"),
            Err(_) => tracing::debug!("a client took too long to agree on TLS"),
        },
    }
}

async fn serve<S>(app: Arc<App>, stream: S, address: SocketAddr, router: Router)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let peer = Peer { address: address.ip().to_string().into(), ..Peer::default() };
    let stream = Watched::new(stream, app.options.write_timeout, peer.unflushed.clone());
    let service = router.map_request(move |mut request: axum::http::Request<hyper::body::Incoming>| {
        request.extensions_mut().insert(peer.clone());
        request.map(axum::body::Body::new)
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(app.options.head_timeout)
        .max_buf_size(256 * 1024)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(service));
    let mut connection = std::pin::pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = app.stop.cancelled() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "a connection ended early");
    }
}
