//! Accepting connections, and ending them.

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

use super::connection::{Peer, Watched};
use super::places::{BusyBody, Place, Places};
use crate::app::App;

/// Upper bound of what is read of a connection ahead of its request: of the head, too.
const MOST_BUFFERED: usize = 64 * 1024;

/// How long a client may take to agree on TLS.
const HANDSHAKE: Duration = Duration::from_secs(10);

/// Serves connections until the server is asked to stop, then lets running requests end for as long as they may take, and
/// ends those that take longer. No connection is left.
pub(crate) async fn accept(app: Arc<App>, listener: TcpListener, router: Router, tls: Option<TlsAcceptor>) {
    let places = Places::new(app.options.max_connections);
    // As many may wait for a place here, so that a newcomer from elsewhere can be told from one who has many; what is
    // beyond that waits in the kernel's line.
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
        let places = places.clone();
        connections.spawn(async move {
            let peer = Peer { address: address.ip().to_string().into(), ..Peer::default() };
            let entered = async {
                tokio::select! {
                    place = places.enter(address.ip(), &peer.unflushed) => place,
                    () = app.stop.cancelled() => None,
                }
            };
            let Some(place) = cut_off.run_until_cancelled(entered).await.flatten() else { return };
            drop(waits);
            let count = app.meter.connections().clone();
            count.inc();
            let place = Arc::new(place);
            let _ = cut_off.run_until_cancelled(connect(app, stream, peer, place, router, tls)).await;
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
    place: Arc<Place>,
    router: Router,
    tls: Option<TlsAcceptor>,
) {
    match tls {
        None => serve(app, stream, peer, place, router).await,
        Some(tls) => {
            let agreed = tokio::select! {
                agreed = tokio::time::timeout(HANDSHAKE, tls.accept(stream)) => agreed,
                () = place.is_asked_to_leave() => return,
            };
            match agreed {
                Ok(Ok(stream)) => serve(app, stream, peer, place, router).await,
                Ok(Err(error)) => tracing::debug!(%error, "a client did not agree on TLS"),
                Err(_) => tracing::debug!("a client took too long to agree on TLS"),
            }
        }
    }
}

async fn serve<S>(app: Arc<App>, stream: S, peer: Peer, place: Arc<Place>, router: Router)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let stream = Watched::new(stream, app.options.write_timeout, peer.unflushed.clone());
    let own = place.clone();
    let service = tower::service_fn(move |mut request: axum::http::Request<hyper::body::Incoming>| {
        let busy = own.busy();
        request.extensions_mut().insert(peer.clone());
        let answer = router.clone().oneshot(request.map(Body::new));
        async move { answer.await.map(|response| response.map(|inner| Body::new(BusyBody { inner, _busy: busy }))) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(app.options.head_timeout)
        .max_buf_size(MOST_BUFFERED)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(service));
    let mut connection = std::pin::pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        // Others are waiting for its place, and nothing is asked on it.
        () = place.is_asked_to_leave() => {
            if place.is_idle() {
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
