//! Work that was done is not done again.

mod record;

use std::fmt;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::FutureExt;
use postrider_core::{Begun, Deadline, Disposition, IdempotencyKey, IdempotencyStore};
use tower_layer::Layer;
use tower_service::Service;

use super::LayerFuture;
use super::unstarted::Unstarted;
use crate::delivery::Delivery;
use crate::error::HandlerError;
use record::{Record, Upkeep};

const DEFAULT_LEASE: Duration = Duration::from_secs(30);
const DEFAULT_RETENTION: Duration = Duration::from_secs(7 * 24 * 3600);

/// The record of work that somebody else does is not looked at again before that long: the other may be almost done, but
/// a hot loop would not make it faster. Nor later than that, although its lease may last longer.
const SHORTEST_ABSENCE: Duration = Duration::from_millis(100);
const LONGEST_ABSENCE: Duration = Duration::from_secs(1);

/// Handles each message's work once, by a record of what was done.
///
/// Before the handler runs, its key is looked up: work that is done is not done again, and the message is
/// acknowledged; work that another worker is doing is left to it, and the message waits, with its worker and its lease,
/// until that one is done or its lease on the record is over. After the handler has succeeded, and *before* the message is acknowledged, the record says
/// done. So a message that is delivered again because its ack was lost is skipped.
///
/// # What it promises
///
/// Effectively-once, for effects that are complete when the handler returns `Ok`. It does not promise more:
///
/// - A worker that dies *in the middle* of its handler leaves half of the work; the next delivery does all of it.
/// - A worker that dies *between* its handler's last effect and the record has done the work, and the next delivery does
///   it again. To close that gap let the record commit together with the effect: the handler takes the
///   [`IdempotencyToken`](postrider_core::IdempotencyToken) as an [`Extension`](crate::Extension) and completes it in
///   its own transaction (on SQLite, `SqliteStore::complete_in`).
/// - A worker that is stopped for longer than the lease may go on beside its successor. Its record is fenced, its
///   effects are not. The message's token is cancelled as soon as the loss is seen.
/// - When the record cannot be written after the work was done, the message is acknowledged all the same, with a
///   warning: to retry it would do the work twice for certain, and to acknowledge it only if the ack is lost as well.
///
/// A message that its handler settled by hand is done if it was acknowledged, and not done otherwise, whatever the
/// handler answered. A record is kept for [`retention`](Self::retention); a message that comes again later is handled
/// again.
///
/// ```
/// use postrider_core::MemoryStore;
/// use postrider_subscriber::{handler, layers::IdempotencyLayer};
/// use tower::ServiceBuilder;
///
/// let records = MemoryStore::new().open();
/// let service = ServiceBuilder::new()
///     .layer(IdempotencyLayer::new(records))
///     .service(handler(async |text: String| println!("once: {text}")));
/// # fn is_service<S: tower_service::Service<postrider_subscriber::Delivery>>(_: S) {}
/// # is_service(service);
/// ```
pub struct IdempotencyLayer<R> {
    records: Arc<R>,
    settings: Arc<Settings>,
    upkeep: Arc<Upkeep>,
}

type KeyOf = dyn Fn(&Delivery) -> Option<String> + Send + Sync;

#[derive(Clone)]
struct Settings {
    key_of: Arc<KeyOf>,
    lease: Duration,
    retention: Duration,
}

impl<R: IdempotencyStore> IdempotencyLayer<R> {
    /// Each message once, known by its queue and id, with records in this store.
    pub fn new(records: R) -> Self {
        let key_of = |delivery: &Delivery| Some(format!("{}/id/{}", delivery.envelope.queue, delivery.id()));
        let settings = Settings { key_of: Arc::new(key_of), lease: DEFAULT_LEASE, retention: DEFAULT_RETENTION };
        Self { records: Arc::new(records), settings: Arc::new(settings), upkeep: Arc::default() }
    }

    /// Known by queue and dedup key, so that two messages with the same key are one piece of work also when the second
    /// is sent after the first was handled. A message without a dedup key is known by its id.
    #[must_use]
    pub fn by_dedup_key(self) -> Self {
        self.by(|delivery| {
            let envelope = &delivery.envelope;
            Some(match &envelope.dedup_key {
                Some(key) => format!("{}/dedup/{key}", envelope.queue),
                None => format!("{}/id/{}", envelope.queue, envelope.id),
            })
        })
    }

    /// Known by the key that the function gives: 1 to 512 bytes. A message without one is always handled. Keys of all
    /// layers over one store are compared, so name the queue or the purpose in them.
    #[must_use]
    pub fn by(self, key_of: impl Fn(&Delivery) -> Option<String> + Send + Sync + 'static) -> Self {
        self.with(|settings| settings.key_of = Arc::new(key_of))
    }

    /// How long a record is leased to a worker at a time; 30 seconds unless told otherwise. The lease is extended while
    /// the handler runs, so this is how long a crashed worker's message waits, and not how long work may take.
    #[must_use]
    pub fn lease(self, lease: Duration) -> Self {
        self.with(|settings| settings.lease = lease)
    }

    /// How long done work is remembered; 7 days unless told otherwise. Longer than any message can come again.
    #[must_use]
    pub fn retention(self, retention: Duration) -> Self {
        self.with(|settings| settings.retention = retention)
    }

    fn with(mut self, change: impl FnOnce(&mut Settings)) -> Self {
        change(Arc::make_mut(&mut self.settings));
        self
    }
}

impl<R> Clone for IdempotencyLayer<R> {
    fn clone(&self) -> Self {
        Self { records: self.records.clone(), settings: self.settings.clone(), upkeep: self.upkeep.clone() }
    }
}

impl<R> fmt::Debug for IdempotencyLayer<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Settings { lease, retention, .. } = &*self.settings;
        f.debug_struct("IdempotencyLayer").field("lease", lease).field("retention", retention).finish_non_exhaustive()
    }
}

impl<R, S> Layer<S> for IdempotencyLayer<R> {
    type Service = Idempotency<R, S>;

    fn layer(&self, inner: S) -> Idempotency<R, S> {
        Idempotency { inner, layer: self.clone() }
    }
}

/// The service of [`IdempotencyLayer`].
pub struct Idempotency<R, S> {
    inner: S,
    layer: IdempotencyLayer<R>,
}

impl<R, S: Clone> Clone for Idempotency<R, S> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone(), layer: self.layer.clone() }
    }
}

impl<R, S: fmt::Debug> fmt::Debug for Idempotency<R, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Idempotency").field("inner", &self.inner).field("layer", &self.layer).finish()
    }
}

impl<R, S> Service<Delivery> for Idempotency<R, S>
where
    R: IdempotencyStore,
    S: Service<Delivery, Response = (), Error = HandlerError, Future: Send + 'static> + Clone + Send + 'static,
{
    type Response = ();
    type Error = HandlerError;
    type Future = LayerFuture;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), HandlerError>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, delivery: Delivery) -> LayerFuture {
        let Some(key) = (self.layer.settings.key_of)(&delivery) else { return self.inner.call(delivery).boxed() };
        // The one that is ready goes with the message; its clone is asked again.
        let clone = self.inner.clone();
        let ready = std::mem::replace(&mut self.inner, clone);
        once(self.layer.clone(), ready, key, delivery).boxed()
    }
}

async fn once<R, S>(
    layer: IdempotencyLayer<R>,
    mut inner: S,
    key: String,
    mut delivery: Delivery,
) -> Result<(), HandlerError>
where
    R: IdempotencyStore,
    S: Service<Delivery, Response = (), Error = HandlerError>,
{
    let key = IdempotencyKey::new(key).map_err(HandlerError::permanent)?;
    let lease = layer.settings.lease;
    let token = loop {
        let begin = layer.records.begin(&key, lease, Deadline::after(lease));
        match Unstarted::new(&delivery).wait(begin).await?? {
            Begun::Fresh(token) => break token,
            Begun::Done => {
                tracing::debug!(%key, "done before; acknowledged without its handler");
                // By hand, because it is to be acknowledged under every policy.
                delivery.control().ack();
                return Ok(());
            }
            Begun::Busy { remaining } => {
                // Here and not in the queue: given back, it would be charged with a delivery for each look, and die of
                // them while nothing is wrong with it.
                tracing::debug!(%key, ?remaining, "another worker is doing it; waiting");
                let pause = tokio::time::sleep(remaining.clamp(SHORTEST_ABSENCE, LONGEST_ABSENCE));
                Unstarted::new(&delivery).wait(pause).await?;
            }
        }
    };
    let control = delivery.control().clone();
    let record = Record::new(layer.records.clone(), token.clone(), lease, delivery.cancellation().clone());
    delivery.extensions_mut().insert(token);
    let outcome = record.while_held(inner.call(delivery)).await;
    let is_done = match control.decided() {
        Some(Disposition::Ack) => true,
        Some(Disposition::Nack(_)) => false,
        None => outcome.is_ok(),
    };
    if is_done {
        record.complete().await;
        layer.upkeep.forget_now_and_then(&layer.records, layer.settings.retention);
    } else {
        record.abandon().await;
    }
    outcome
}

#[cfg(test)]
mod tests;
