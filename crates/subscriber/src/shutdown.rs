//! Requests to stop subscribers.

use tokio_util::sync::CancellationToken;

/// Requests a stop of subscribers: once to finish running handlers, twice to stop at once. Clones are the same.
#[derive(Debug, Clone, Default)]
pub struct Shutdown {
    requested: CancellationToken,
    at_once: CancellationToken,
}

impl Shutdown {
    /// No stop is requested yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Requests a stop; a second request stops at once.
    pub fn request(&self) {
        if self.requested.is_cancelled() {
            self.at_once.cancel();
        }
        self.requested.cancel();
    }

    /// Requests a stop at once.
    pub fn request_at_once(&self) {
        self.at_once.cancel();
        self.requested.cancel();
    }

    /// Whether a stop was requested.
    pub fn is_requested(&self) -> bool {
        self.requested.is_cancelled()
    }

    /// Waits until a stop is requested.
    pub async fn requested(&self) {
        self.requested.cancelled().await;
    }

    /// Waits until a stop at once is requested.
    pub async fn requested_at_once(&self) {
        self.at_once.cancelled().await;
    }

    pub(crate) fn is_at_once(&self) -> bool {
        self.at_once.is_cancelled()
    }

    /// Requests a stop at every SIGINT and SIGTERM of this process from now on: the second stops at once.
    ///
    /// Needs a tokio runtime with I/O on.
    pub fn on_signals() -> std::io::Result<Self> {
        let shutdown = Self::new();
        let requested = shutdown.clone();
        let mut signals = Signals::new()?;
        tokio::spawn(async move {
            while !requested.is_at_once() {
                signals.next().await;
                requested.request();
            }
        });
        Ok(shutdown)
    }
}

/// A stop that is requested by cancelling this token.
impl From<CancellationToken> for Shutdown {
    fn from(requested: CancellationToken) -> Self {
        Self { requested, at_once: CancellationToken::new() }
    }
}

#[cfg(unix)]
struct Signals {
    interrupt: tokio::signal::unix::Signal,
    terminate: tokio::signal::unix::Signal,
}

#[cfg(unix)]
impl Signals {
    fn new() -> std::io::Result<Self> {
        use tokio::signal::unix::{SignalKind, signal};
        Ok(Self { interrupt: signal(SignalKind::interrupt())?, terminate: signal(SignalKind::terminate())? })
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}

#[cfg(not(unix))]
struct Signals;

#[cfg(not(unix))]
impl Signals {
    fn new() -> std::io::Result<Self> {
        Ok(Self)
    }

    async fn next(&mut self) {
        if tokio::signal::ctrl_c().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}
