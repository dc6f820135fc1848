//! Asking subscribers to stop.

use tokio_util::sync::CancellationToken;

/// Asks subscribers to stop: once to finish what has begun, twice to stop at once. Clones are the same.
#[derive(Debug, Clone, Default)]
pub struct Shutdown {
    asked: CancellationToken,
    at_once: CancellationToken,
}

impl Shutdown {
    /// Nothing asked for yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Asks to stop; asked a second time, at once.
    pub fn request(&self) {
        if self.asked.is_cancelled() {
            self.at_once.cancel();
        }
        self.asked.cancel();
    }

    /// Asks to stop at once.
    pub fn request_at_once(&self) {
        self.at_once.cancel();
        self.asked.cancel();
    }

    /// Whether a stop was asked for.
    pub fn is_requested(&self) -> bool {
        self.asked.is_cancelled()
    }

    /// Waits until a stop is asked for.
    pub async fn requested(&self) {
        self.asked.cancelled().await;
    }

    /// Waits until a stop at once is asked for.
    pub async fn requested_at_once(&self) {
        self.at_once.cancelled().await;
    }

    pub(crate) fn is_at_once(&self) -> bool {
        self.at_once.is_cancelled()
    }

    /// Asked for by every SIGINT and SIGTERM of this process from now on: the second stops at once.
    ///
    /// Needs a tokio runtime with I/O on.
    pub fn on_signals() -> std::io::Result<Self> {
        let shutdown = Self::new();
        let asked = shutdown.clone();
        let mut signals = Signals::new()?;
        tokio::spawn(async move {
            while !asked.is_at_once() {
                signals.next().await;
                asked.request();
            }
        });
        Ok(shutdown)
    }
}

/// A stop asked for by cancelling a token of one's own.
impl From<CancellationToken> for Shutdown {
    fn from(asked: CancellationToken) -> Self {
        Self { asked, at_once: CancellationToken::new() }
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
