//! The idempotency layer: completed work is not repeated.

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
use record::{Cleanup, Record};

const DEFAULT_LEASE: Duration = Duration::from_secs(30);
const DEFAULT_RETENTION: Duration = Duration::from_secs(7 * 24 * 3600);

/// Bounds of the interval at which the record of another worker is checked: it may be almost done, but frequent checks
/// do not make it faster, and its lease may last much longer than its work.
const MIN_CHECK_INTERVAL: Duration = Duration::from_millis(100);
const MAX_CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Handles each message's work once, by a record of completed work.
///
/// Before the handler runs, the layer looks up its key: completed work is not repeated, and the message is
/// acknowledged; while another worker does the work, the message waits, with its worker and its lease, until that
/// worker is done or its lease on the record has ended. After the handler has succeeded, and *before* the message is
/// acknowledged, the record is completed. So a message that is delivered again because its ack was lost is skipped.
///
/// # What it promises
///
/// Effectively-once, for effects that are complete when the handler returns `Ok`. It does not promise more:
///
/// - A worker that dies *in the middle* of its handler leaves half of the work; the next delivery does all of it.
/// - A worker that dies *between* its handler's last effect and the record has done the work, and the next delivery
///   repeats it. To avoid that, commit the record together with the effect: the handler takes the
///   [`IdempotencyToken`](postrider_core::IdempotencyToken) as an [`Extension`](crate::Extension) and completes it in
///   its own transaction (on SQLite, `SqliteStore::complete_in`).
/// - A worker that is suspended for longer than the lease may continue beside its successor. Its record is fenced, its
///   effects are not. The message's token is cancelled as soon as the loss is noticed.
/// - When the record cannot be written after the work was done, the message is acknowledged with a warning: a retry
///   would certainly repeat the work, an ack repeats it only if the ack is lost as well.
///
/// A message that its handler settled by hand is done if it was acknowledged, whatever the handler returned. A record
/// is kept for [`retention`](Self::retention); a message that is delivered again later is handled again.
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
    cleanup: Arc<Cleanup>,
}

type KeyOf = dyn Fn(&Delivery) -> Option<String> + Send + Sync;

#[derive(Clone)]
struct Settings {
    key_of: Arc<KeyOf>,
    lease: Duration,
    retention: Duration,
}

impl<R: IdempotencyStore> IdempotencyLayer<R> {
    /// Handles each message once, identified by its queue and id, with records in this store.
    pub fn new(records: R) -> Self {
        let key_of = |delivery: &Delivery| Some(format!("{}/id/{}", delivery.envelope.queue, delivery.id()));
        let settings = Settings { key_of: Arc::new(key_of), lease: DEFAULT_LEASE, retention: DEFAULT_RETENTION };
        Self { records: Arc::new(records), settings: Arc::new(settings), cleanup: Arc::default() }
    }

    /// Identifies work by queue and dedup key, so that two messages with the same key are one piece of work, also when
    /// the second is sent after the first was handled. A message without a dedup key is identified by its id.
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

    /// Identifies work by the key of this function: 1 to 512 bytes. A message without a key is always handled. All
    /// layers over one store share their keys, so include the queue or the purpose.
    #[must_use]
    pub fn by(self, key_of: impl Fn(&Delivery) -> Option<String> + Send + Sync + 'static) -> Self {
        self.with(|settings| settings.key_of = Arc::new(key_of))
    }

    /// Sets the length of the lease on a record, 30 seconds by default. The lease is extended while the handler runs,
    /// so it bounds how long the message of a crashed worker waits, and not how long work may take.
    #[must_use]
    pub fn lease(self, lease: Duration) -> Self {
        self.with(|settings| settings.lease = lease)
    }

    /// Sets how long records are kept, 7 days by default. Use a longer time than any message can be redelivered after.
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
        Self { records: self.records.clone(), settings: self.settings.clone(), cleanup: self.cleanup.clone() }
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
        // The ready service goes with the message; its clone must become ready again.
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
                // By hand, so that it is acknowledged under every policy.
                delivery.control().ack();
                return Ok(());
            }
            Begun::Busy { remaining } => {
                // Waits here and not in the queue, where each delivery would be counted until the message is
                // dead-lettered.
                tracing::debug!(%key, ?remaining, "another worker is doing it; waiting");
                let pause = tokio::time::sleep(remaining.clamp(MIN_CHECK_INTERVAL, MAX_CHECK_INTERVAL));
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
        layer.cleanup.forget_old(&layer.records, layer.settings.retention);
    } else {
        record.abandon().await;
    }
    outcome
}

#[cfg(test)]
mod tests;
