//! A limit on messages that are handled at the same time, in all or for each key.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use futures_util::FutureExt;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tower_layer::Layer;
use tower_service::Service;

use super::LayerFuture;
use super::unstarted::Unstarted;
use crate::delivery::Delivery;
use crate::error::HandlerError;

/// Limits the messages that are handled at the same time; others wait, first come first served.
///
/// All services of one layer, or of a clone of it, share the limit, also in different subscribers. A limit of 0 counts
/// as 1: otherwise messages would be leased and never handled.
#[derive(Clone)]
pub struct ConcurrencyLimitLayer {
    limits: Arc<Limits>,
}

type KeyOf = dyn Fn(&Delivery) -> Option<String> + Send + Sync;

struct Limits {
    limit: usize,
    key_of: Box<KeyOf>,
    // A blocking mutex, held for a look-up and never across an await.
    semaphores: Mutex<HashMap<String, Arc<Semaphore>>>,
}

impl ConcurrencyLimitLayer {
    /// At most `limit` messages at a time.
    pub fn new(limit: usize) -> Self {
        Self::per(limit, |_| Some(String::new()))
    }

    /// At most `limit` messages of each ordering key at a time. Messages without a key have no limit.
    ///
    /// A queue delivers one message of a key at a time anyway; this is for keys that several queues share.
    pub fn per_ordering_key(limit: usize) -> Self {
        Self::per(limit, |delivery| delivery.envelope.ordering_key.as_ref().map(ToString::to_string))
    }

    /// At most `limit` messages of each value of a header at a time. Messages without the header have no limit.
    pub fn per_header(limit: usize, name: impl Into<String>) -> Self {
        let name = name.into();
        Self::per(limit, move |delivery| delivery.envelope.headers.get(&name).map(str::to_owned))
    }

    /// At most `limit` messages of each key of the function at a time. Messages without a key have no limit.
    pub fn per(limit: usize, key_of: impl Fn(&Delivery) -> Option<String> + Send + Sync + 'static) -> Self {
        let limit = limit.clamp(1, Semaphore::MAX_PERMITS);
        Self { limits: Arc::new(Limits { limit, key_of: Box::new(key_of), semaphores: Mutex::default() }) }
    }
}

impl fmt::Debug for ConcurrencyLimitLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConcurrencyLimitLayer").field("limit", &self.limits.limit).finish_non_exhaustive()
    }
}

impl<S> Layer<S> for ConcurrencyLimitLayer {
    type Service = ConcurrencyLimit<S>;

    fn layer(&self, inner: S) -> ConcurrencyLimit<S> {
        ConcurrencyLimit { inner, layer: self.clone() }
    }
}

/// The service of [`ConcurrencyLimitLayer`].
#[derive(Debug, Clone)]
pub struct ConcurrencyLimit<S> {
    inner: S,
    layer: ConcurrencyLimitLayer,
}

impl<S> Service<Delivery> for ConcurrencyLimit<S>
where
    S: Service<Delivery, Error = HandlerError, Future: Send + 'static> + Clone + Send + 'static,
{
    type Response = S::Response;
    type Error = HandlerError;
    type Future = LayerFuture<S::Response>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), HandlerError>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, delivery: Delivery) -> Self::Future {
        let limits = &self.layer.limits;
        let Some(key) = (limits.key_of)(&delivery) else { return self.inner.call(delivery).boxed() };
        let mut permit = KeyPermit::new(limits.clone(), key);
        // The ready service goes with the message; its clone must become ready again.
        let clone = self.inner.clone();
        let mut ready = std::mem::replace(&mut self.inner, clone);
        async move {
            Unstarted::new(&delivery).wait(permit.acquire()).await?;
            let outcome = ready.call(delivery).await;
            drop(permit);
            outcome
        }
        .boxed()
    }
}

/// A message's permit among those of its key, also while it waits for it. The key is forgotten with its last message.
struct KeyPermit {
    limits: Arc<Limits>,
    key: String,
    semaphore: Arc<Semaphore>,
    permit: Option<OwnedSemaphorePermit>,
}

impl KeyPermit {
    fn new(limits: Arc<Limits>, key: String) -> Self {
        let mut all = limits.semaphores.lock().unwrap_or_else(PoisonError::into_inner);
        let semaphore = match all.get(&key) {
            Some(semaphore) => semaphore.clone(),
            None => all.entry(key.clone()).or_insert_with(|| Arc::new(Semaphore::new(limits.limit))).clone(),
        };
        drop(all);
        Self { limits, key, semaphore, permit: None }
    }

    async fn acquire(&mut self) {
        // It fails only for a closed semaphore, and these are never closed.
        self.permit = self.semaphore.clone().acquire_owned().await.ok();
    }
}

impl Drop for KeyPermit {
    fn drop(&mut self) {
        let mut all = self.limits.semaphores.lock().unwrap_or_else(PoisonError::into_inner);
        // A permit shares its semaphore too.
        drop(self.permit.take());
        // The map and this value have the last two. Values are created under the mutex only, so no third can appear.
        if Arc::strong_count(&self.semaphore) == 2 {
            all.remove(&self.key);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use postrider_core::{Disposition, Key, Nack};
    use tower::ServiceExt;

    use super::*;
    use crate::testing::{delivery, with_header};
    use crate::{Context, handler};

    const SECOND: Duration = Duration::from_secs(1);

    #[derive(Clone, Default)]
    struct Counted {
        now: Arc<AtomicUsize>,
        max: Arc<AtomicUsize>,
        calls: Arc<AtomicUsize>,
    }

    impl Counted {
        /// Takes a second for each message.
        fn service(
            &self,
        ) -> impl Service<Delivery, Response = (), Error = HandlerError, Future: Send + 'static> + Clone + Send + 'static
        {
            let counted = self.clone();
            handler(move |_: Context| {
                let counted = counted.clone();
                async move {
                    counted.calls.fetch_add(1, Ordering::SeqCst);
                    let now = counted.now.fetch_add(1, Ordering::SeqCst) + 1;
                    counted.max.fetch_max(now, Ordering::SeqCst);
                    tokio::time::sleep(SECOND).await;
                    counted.now.fetch_sub(1, Ordering::SeqCst);
                }
            })
        }

        fn max(&self) -> usize {
            self.max.load(Ordering::SeqCst)
        }
    }

    async fn run_all(layer: &ConcurrencyLimitLayer, counted: &Counted, deliveries: Vec<Delivery>) -> Duration {
        let began = tokio::time::Instant::now();
        let services = deliveries.into_iter().map(|delivery| layer.layer(counted.service()).oneshot(delivery));
        for outcome in futures_util::future::join_all(services).await {
            outcome.unwrap();
        }
        began.elapsed()
    }

    fn tenant(name: &str) -> Delivery {
        with_header(delivery(""), "tenant", name)
    }

    #[tokio::test(start_paused = true)]
    async fn all_services_of_a_layer_share_its_permits() {
        for (limit, seconds) in [(0, 6), (1, 6), (2, 3), (usize::MAX, 1)] {
            let (layer, counted) = (ConcurrencyLimitLayer::new(limit), Counted::default());
            let took = run_all(&layer, &counted, (0..6).map(|_| delivery("")).collect()).await;
            assert_eq!((took, counted.max()), (SECOND * seconds, limit.clamp(1, 6)), "limit {limit}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn keys_do_not_wait_for_each_other_and_are_forgotten() {
        let (layer, counted) = (ConcurrencyLimitLayer::per_header(1, "tenant"), Counted::default());
        let deliveries = ["a", "a", "b", "a", "b"].map(tenant).into_iter().chain([delivery("")]).collect();
        let took = run_all(&layer, &counted, deliveries).await;
        assert_eq!((took, counted.max()), (SECOND * 3, 3), "a, b and the message without a key at once");
        assert!(layer.limits.semaphores.lock().unwrap().is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_key_is_kept_while_a_message_waits() {
        let (layer, counted) = (ConcurrencyLimitLayer::new(1), Counted::default());
        let late = async {
            // The first is done, and the second is being handled.
            tokio::time::sleep(SECOND * 3 / 2).await;
            layer.layer(counted.service()).oneshot(delivery("")).await.unwrap();
        };
        tokio::join!(run_all(&layer, &counted, vec![delivery(""), delivery("")]), late);
        assert_eq!(counted.max(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn ordering_keys_are_keys_too() {
        let (layer, counted) = (ConcurrencyLimitLayer::per_ordering_key(1), Counted::default());
        let keyed = |key| {
            let mut delivery = delivery("");
            delivery.envelope.ordering_key = Some(Key::new("ordering key", key).unwrap());
            delivery
        };
        let took = run_all(&layer, &counted, ["k", "k", "l"].map(keyed).into()).await;
        assert_eq!(took, SECOND * 2);
    }

    #[tokio::test(start_paused = true)]
    async fn a_cancelled_message_is_released_unstarted() {
        let (layer, counted) = (ConcurrencyLimitLayer::new(1), Counted::default());
        let first = tokio::spawn(layer.layer(counted.service()).oneshot(delivery("")));
        tokio::task::yield_now().await;
        let waiting = delivery("");
        let (control, token) = (waiting.control().clone(), waiting.cancellation().clone());
        let second = tokio::spawn(layer.layer(counted.service()).oneshot(waiting));
        tokio::time::sleep(SECOND / 2).await;
        token.cancel();
        second.await.unwrap().unwrap_err();
        assert_eq!(control.decided(), Some(Disposition::Nack(Nack::Release)));
        first.await.unwrap().unwrap();
        assert_eq!(counted.calls.load(Ordering::SeqCst), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_dropped_call_returns_its_permit() {
        let (layer, counted) = (ConcurrencyLimitLayer::new(1), Counted::default());
        for _ in 0..2 {
            // The first is dropped while it is handled, the second and third while they wait.
            let calls = (0..3).map(|_| layer.layer(counted.service()).oneshot(delivery("")));
            let cut = tokio::time::timeout(SECOND / 2, futures_util::future::join_all(calls)).await;
            assert!(cut.is_err());
        }
        assert!(layer.limits.semaphores.lock().unwrap().is_empty());
        assert_eq!(run_all(&layer, &counted, vec![delivery("")]).await, SECOND);
    }
}
