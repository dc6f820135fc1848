//! The state that all requests share.

use std::sync::Arc;
use std::time::Duration;

use postrider::state_records::{Put, RecordKey, RecordKind, StateRecords};
use postrider::tasks::{TaskClient, Tasks};
use postrider::{
    Deadline, Endpoint, Guarded, MessagingError, MessagingProvider, MessagingService, StateStorage, SystemContext,
    TaskStorage,
};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::access::Access;
use crate::access::rate::Rate;
use crate::audit::Audit;
use crate::claim_permits::ClaimPermits;
use crate::history::History;
use crate::in_flight::Budget;
use crate::jobs::Jobs;
use crate::live::Live;
use crate::metrics::Metrics;
use crate::options::ServerOptions;
use crate::percentiles::Durations;
use crate::readiness::Readiness;
use crate::receipts::Seal;
use crate::row_sizes::{ReleaseCost, RowSizes};
use crate::traces::Traces;
use crate::workers::Workers;

/// The message store, behind its circuit breaker.
pub(crate) type Store = Guarded<MessagingProvider>;

/// Client of the task store.
pub(crate) type Client = TaskClient<TaskStorage, Store>;

/// The state that all requests share.
#[derive(Debug)]
pub(crate) struct App {
    pub(crate) context: SystemContext,
    pub(crate) endpoint: Endpoint,
    pub(crate) provider: Arc<Store>,
    pub(crate) tasks: Tasks<TaskStorage, Store>,
    pub(crate) records: StateStorage,
    pub(crate) options: ServerOptions,
    pub(crate) access: Access,
    pub(crate) rate: Option<Rate>,
    /// Memory budget.
    pub(crate) budget: Arc<Budget>,
    pub(crate) seal: Seal,
    pub(crate) workers: Workers,
    pub(crate) claim_permits: ClaimPermits,
    pub(crate) message_sizes: RowSizes,
    pub(crate) task_sizes: RowSizes,
    pub(crate) readiness: Readiness,
    pub(crate) metrics: Metrics,
    /// Time of the next task count for the metrics. Locked during the count.
    pub(crate) count_tasks_again: tokio::sync::Mutex<Option<Instant>>,
    pub(crate) durations: Durations,
    pub(crate) history: History,
    pub(crate) live: Arc<Live>,
    pub(crate) jobs: Jobs,
    pub(crate) audit: Audit,
    pub(crate) traces: Option<Traces>,
    /// Cancelled when the server stops; ends every wait.
    pub(crate) stop: CancellationToken,
    /// Work that outlives its request. The store is closed after it has ended.
    pub(crate) background: TaskTracker,
}

impl App {
    pub(crate) async fn new(
        context: SystemContext,
        records: StateStorage,
        options: ServerOptions,
        stop: CancellationToken,
    ) -> Result<Self, crate::ServeError> {
        let endpoint = context.config.endpoint()?;
        let tasks = context.tasks().await?;
        let seal = Seal::new(secret(&records).await?);
        let live = Arc::new(Live::default());
        let background = TaskTracker::new();
        let provider = context.messaging_provider.clone();
        Ok(Self {
            endpoint,
            tasks,
            access: Access::new(records.clone(), options.listen.ip().is_loopback(), options.tls.is_some()),
            rate: options.requests_per_second.map(|rate| Rate::new(rate, rate)),
            budget: Arc::new(Budget::new(options.max_bytes_in_flight, options.max_request_bytes)),
            seal,
            workers: Workers::default(),
            claim_permits: ClaimPermits::default(),
            message_sizes: RowSizes::new(ReleaseCost::of(provider.capabilities())),
            task_sizes: RowSizes::new(ReleaseCost::Free),
            readiness: Readiness::default(),
            metrics: Metrics::new(provider.provider_name()),
            count_tasks_again: tokio::sync::Mutex::default(),
            durations: Durations::default(),
            history: History::default(),
            jobs: Jobs::new(live.clone(), stop.clone(), background.clone()),
            live,
            audit: Audit::new(records.clone(), background.clone()),
            traces: options.otlp_endpoint.as_ref().map(|url| Traces::new(url.as_str())).transpose()?,
            records,
            options,
            stop,
            background,
            provider,
            context,
        })
    }

    pub(crate) fn client(&self) -> &Client {
        self.tasks.client()
    }

    /// Upper bound of the bytes of one message.
    pub(crate) fn most_bytes(&self) -> usize {
        let limits = &self.provider.capabilities().limits;
        limits.max_body_bytes.saturating_add(limits.max_header_bytes)
    }
}

/// Returns the key that seals receipts. All servers on the same state share it, so a receipt is valid at each of them
/// and after a restart.
async fn secret(records: &StateStorage) -> Result<[u8; 32], MessagingError> {
    let new = crate::access::random::<32>();
    let deadline = Deadline::after(Duration::from_secs(30));
    let created = records
        .put_new(&RecordKind::constant("secret"), &RecordKey::new("receipts")?, new.to_vec().into(), None, deadline)
        .await?;
    let (Put::Made(record) | Put::Taken(record)) = created;
    <[u8; 32]>::try_from(&record.value[..]).map_err(|_| {
        MessagingError::invalid("secret of receipts", "the stored key has a wrong length; remove that record")
    })
}

/// A new store, removed with its folder.
#[cfg(test)]
pub(crate) async fn test_store() -> (SystemContext, StateStorage, tempfile::TempDir) {
    use postrider::{Config, Sources};
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", folder.path().join("queues.db").display());
    let config = Config::load(&Sources::none().flag("--url", "common.messaging.url", url)).unwrap();
    let context = SystemContext::from_config(config).await.unwrap();
    let state = StateStorage::new(context.messaging_provider.inner()).unwrap();
    (context, state, folder)
}

/// An app on a new store.
#[cfg(test)]
pub(crate) async fn test_app() -> (Arc<App>, tempfile::TempDir) {
    let (context, state, folder) = test_store().await;
    let app = App::new(context, state, ServerOptions::default(), CancellationToken::new()).await.unwrap();
    (Arc::new(app), folder)
}
