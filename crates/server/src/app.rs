//! What every request works with.

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
use crate::history::History;
use crate::in_flight::Budget;
use crate::jobs::Jobs;
use crate::line::Lines;
use crate::live::Live;
use crate::meter::Meter;
use crate::options::ServerOptions;
use crate::percentiles::Durations;
use crate::portions::{Portions, Surplus};
use crate::readiness::Readiness;
use crate::receipts::Seal;
use crate::traces::Traces;
use crate::workers::Workers;

/// The store of messages, behind its breaker.
pub(crate) type Store = Guarded<MessagingProvider>;

/// Whoever makes and reads tasks.
pub(crate) type Client = TaskClient<TaskStorage, Store>;

/// Everything that requests share.
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
    /// Of memory.
    pub(crate) budget: Arc<Budget>,
    pub(crate) seal: Seal,
    pub(crate) workers: Workers,
    pub(crate) lines: Lines,
    /// Of messages.
    pub(crate) portions: Portions,
    pub(crate) portions_of_tasks: Portions,
    pub(crate) readiness: Readiness,
    pub(crate) meter: Meter,
    /// When tasks are counted again for the metrics. A lock, held while they are.
    pub(crate) count_tasks_again: tokio::sync::Mutex<Option<Instant>>,
    pub(crate) durations: Durations,
    pub(crate) history: History,
    pub(crate) live: Arc<Live>,
    pub(crate) jobs: Jobs,
    pub(crate) audit: Audit,
    pub(crate) traces: Option<Traces>,
    /// Asked to end: nothing new is waited for.
    pub(crate) stop: CancellationToken,
    /// What goes on without its request. The store is closed after it has ended.
    pub(crate) begun: TaskTracker,
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
        let begun = TaskTracker::new();
        let provider = context.messaging_provider.clone();
        Ok(Self {
            endpoint,
            tasks,
            access: Access::new(records.clone(), options.listen.ip().is_loopback(), options.tls.is_some()),
            rate: options.requests_per_second.map(|rate| Rate::new(rate, rate)),
            budget: Arc::new(Budget::new(options.max_bytes_in_flight, options.max_request_bytes)),
            seal,
            workers: Workers::default(),
            lines: Lines::default(),
            portions: Portions::new(Surplus::of(provider.capabilities())),
            portions_of_tasks: Portions::new(Surplus::IsFree),
            readiness: Readiness::default(),
            meter: Meter::new(provider.provider_name()),
            count_tasks_again: tokio::sync::Mutex::default(),
            durations: Durations::default(),
            history: History::default(),
            jobs: Jobs::new(live.clone(), stop.clone(), begun.clone()),
            live,
            audit: Audit::new(records.clone(), begun.clone()),
            traces: options.otlp_endpoint.as_ref().map(|url| Traces::new(url.as_str())).transpose()?,
            records,
            options,
            stop,
            begun,
            provider,
            context,
        })
    }

    pub(crate) fn client(&self) -> &Client {
        self.tasks.client()
    }

    /// The most bytes that a message has.
    pub(crate) fn most_bytes(&self) -> usize {
        let limits = &self.provider.capabilities().limits;
        limits.max_body_bytes.saturating_add(limits.max_header_bytes)
    }
}

/// What receipts are sealed with: the same for every server on the same state, so that a receipt of one is good at another
/// and after a restart.
async fn secret(records: &StateStorage) -> Result<[u8; 32], MessagingError> {
    let new = crate::access::random::<32>();
    let deadline = Deadline::after(Duration::from_secs(30));
    let made = records
        .put_new(&RecordKind::constant("secret"), &RecordKey::new("receipts")?, new.to_vec().into(), None, deadline)
        .await?;
    let (Put::Made(record) | Put::Taken(record)) = made;
    <[u8; 32]>::try_from(&record.value[..]).map_err(|_| {
        MessagingError::invalid("secret of receipts", "what the state has of it has another length; remove that record")
    })
}

/// A store of its own that ends with the folder.
#[cfg(test)]
pub(crate) async fn example_store() -> (SystemContext, StateStorage, tempfile::TempDir) {
    use postrider::{Config, Sources};
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", folder.path().join("queues.db").display());
    let config = Config::load(&Sources::none().flag("--url", "common.messaging.url", url)).unwrap();
    let context = SystemContext::from_config(config).await.unwrap();
    let state = StateStorage::new(context.messaging_provider.inner()).unwrap();
    (context, state, folder)
}

/// What requests work with, on such a store.
#[cfg(test)]
pub(crate) async fn example() -> (Arc<App>, tempfile::TempDir) {
    let (context, state, folder) = example_store().await;
    let app = App::new(context, state, ServerOptions::default(), CancellationToken::new()).await.unwrap();
    (Arc::new(app), folder)
}
