//! How the suite reaches a provider under test.

use std::future::Future;
use std::time::Duration;

use futures_util::future::BoxFuture;
use postrider_core::{MessagingError, Provider, SharedProvider};

/// The error of a worker's clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClockShift {
    /// Ahead of the store's clock.
    Ahead(Duration),
    /// Behind the store's clock.
    Behind(Duration),
}

/// How the suite reaches the store under test.
///
/// Any function or closure that opens a connection implements it:
///
/// ```
/// use postrider_conformance::{Settings, exercise};
/// use postrider_core::MemoryStore;
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() {
/// let store = MemoryStore::new();
/// let report = exercise(move || { let store = store.clone(); async move { Ok(store.open()) } }, Settings::default())
///     .await
///     .expect("the store can be reached");
/// assert!(report.is_lawful(), "{report}");
/// # }
/// ```
pub trait Harness: Send + Sync + 'static {
    /// The provider under test.
    type Provider: Provider;

    /// Opens one more connection to the same store: another worker.
    fn open(&self) -> impl Future<Output = Result<Self::Provider, MessagingError>> + Send;

    /// Stops the server or cuts the network, and restores it; the provider's connections are not closed. Without this
    /// hook, recovery (L14) and durability over a restart (L1) are not exercised.
    fn restart(&self) -> Option<BoxFuture<'_, Result<(), MessagingError>>> {
        None
    }

    /// Opens a connection for a worker whose clock is wrong. Without this hook, L16 is tested only with ids of wrong
    /// clocks.
    fn open_with_clock(&self, shift: ClockShift) -> Option<BoxFuture<'_, Result<Self::Provider, MessagingError>>> {
        let _ = shift;
        None
    }
}

impl<F, Fut, P> Harness for F
where
    F: Fn() -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<P, MessagingError>> + Send,
    P: Provider,
{
    type Provider = P;

    fn open(&self) -> impl Future<Output = Result<P, MessagingError>> + Send {
        self()
    }
}

/// A harness without its provider's type, so that the suite is compiled once instead of for every store.
pub(crate) trait AnyHarness: Send + Sync {
    /// [`Harness::open`]
    fn open(&self) -> BoxFuture<'_, Result<SharedProvider, MessagingError>>;

    /// [`Harness::restart`]
    fn restart(&self) -> Option<BoxFuture<'_, Result<(), MessagingError>>>;

    /// [`Harness::open_with_clock`]
    fn open_with_clock(&self, shift: ClockShift) -> Option<BoxFuture<'_, Result<SharedProvider, MessagingError>>>;
}

impl<H: Harness> AnyHarness for H {
    fn open(&self) -> BoxFuture<'_, Result<SharedProvider, MessagingError>> {
        Box::pin(async move { Harness::open(self).await.map(SharedProvider::new) })
    }

    fn restart(&self) -> Option<BoxFuture<'_, Result<(), MessagingError>>> {
        Harness::restart(self)
    }

    fn open_with_clock(&self, shift: ClockShift) -> Option<BoxFuture<'_, Result<SharedProvider, MessagingError>>> {
        let opening = Harness::open_with_clock(self, shift)?;
        Some(Box::pin(async move { opening.await.map(SharedProvider::new) }))
    }
}
