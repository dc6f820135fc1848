//! A worker: handlers, and the loop that runs tasks with them.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use postrider_core::message::MAX_DURATION;
use postrider_core::task::{TaskMode, TaskOutcome, TaskStore, TaskType};
use postrider_core::{Json, MessagingError, MessagingService};
use postrider_subscriber::{CancellationToken, Delivery, FromDelivery, HandlerError, IntoHandler, Shutdown};
use tower::{Service, ServiceExt};

use crate::attempt::{EndedAttempt, Runner};
use crate::context::TaskContext;
use crate::delivered;
use crate::handlers::{Handlers, IntoTaskResult};
use crate::kind::TaskKind;
use crate::observer::{Counters, TaskCounts, TaskEnded, TaskObserver, log_failure};
use crate::polling::Polling;
use crate::running::{Attempts, keep_alive};

/// Lower bound of a lease: a shorter one would end between two heartbeats on a busy machine.
const MIN_LEASE: Duration = Duration::from_millis(100);
const MAX_WORKERS: usize = 100_000;

/// Options of a worker. Every field has a default.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskWorkerOptions {
    /// Its name in the history of its tasks; by default the host's name, the process id and a random part.
    pub name: Option<String>,
    /// Number of handlers that run at the same time. 16 by default.
    pub max_workers: usize,
    /// Length of a lease, which is renewed at a third of it. 30 s by default.
    pub lease: Duration,
    /// Time limit of an attempt; `None` is no limit.
    pub timeout: Option<Duration>,
    /// Interval at which due tasks are claimed when no hint comes. A second by default.
    pub poll_interval: Duration,
    /// Time for running handlers to end after a stop is requested. 30 s by default.
    pub graceful_timeout: Duration,
    /// Time for a handler to end after its token was cancelled, before it is dropped. A second by default.
    pub cancel_timeout: Duration,
    /// Stop when nothing is due and nothing runs here. Off by default.
    pub stop_when_empty: bool,
}

impl Default for TaskWorkerOptions {
    fn default() -> Self {
        Self {
            name: None,
            max_workers: 16,
            lease: Duration::from_secs(30),
            timeout: None,
            poll_interval: Duration::from_secs(1),
            graceful_timeout: Duration::from_secs(30),
            cancel_timeout: Duration::from_secs(1),
            stop_when_empty: false,
        }
    }
}

impl TaskWorkerOptions {
    fn check(&self) -> Result<(), MessagingError> {
        if self.max_workers == 0 || self.max_workers > MAX_WORKERS {
            let why = format!("{} handlers cannot run at a time; use 1 to {MAX_WORKERS}", self.max_workers);
            return Err(MessagingError::invalid("max_workers", why));
        }
        if self.lease < MIN_LEASE {
            let why = format!("{:?} is too short to be renewed in time; use {MIN_LEASE:?} or more", self.lease);
            return Err(MessagingError::invalid("lease", why));
        }
        for (option, time) in [("poll_interval", Some(self.poll_interval)), ("timeout", self.timeout)] {
            if time.is_some_and(|time| time.is_zero()) {
                return Err(MessagingError::invalid(option, "0 leaves no time; use 1ms or more"));
            }
        }
        for (option, time) in [
            ("lease", self.lease),
            ("poll_interval", self.poll_interval),
            ("timeout", self.timeout.unwrap_or_default()),
            ("graceful_timeout", self.graceful_timeout),
            ("cancel_timeout", self.cancel_timeout),
        ] {
            if time > MAX_DURATION {
                return Err(MessagingError::invalid(option, "it is longer than a hundred years; use less"));
            }
        }
        Ok(())
    }
}

/// Builds a worker. Everything but a handler has a default.
#[must_use = "a worker does nothing until it is built and run"]
pub struct TaskWorkerBuilder<S, P> {
    store: S,
    provider: P,
    handlers: Handlers,
    wrong: Option<MessagingError>,
    options: TaskWorkerOptions,
    observer: Option<Arc<dyn TaskObserver>>,
}

impl<S, P> TaskWorkerBuilder<S, P>
where
    S: TaskStore + Clone,
    P: MessagingService + Clone,
{
    pub(crate) fn new(store: S, provider: P) -> Self {
        let (handlers, options) = (Handlers::default(), TaskWorkerOptions::default());
        Self { store, provider, handlers, wrong: None, options, observer: None }
    }

    /// Sets the handler of a type.
    ///
    /// Its return value is the task's result; an error is retried by the task's strategy, unless it was marked as
    /// permanent ([`Classify`](postrider_subscriber::Classify)).
    pub fn handler<F, Fut, R, E>(self, task_type: impl AsRef<str>, handler: F) -> Self
    where
        F: Fn(TaskContext) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<R, E>> + Send + 'static,
        R: IntoTaskResult,
        E: Into<HandlerError>,
    {
        let handler = Arc::new(handler);
        let service = tower::service_fn(move |mut delivery: Delivery| {
            let handler = handler.clone();
            async move {
                let context = TaskContext::from_delivery(&mut delivery, &())?;
                handler(context).await.map_err(Into::into)?.into_task_result()
            }
        });
        self.register(task_type, service)
    }

    /// Sets the handler of a type: an `async fn` with the [arguments](postrider_subscriber::extract) of a subscriber's
    /// handler, in any order, or a service with [layers]. The task's payload is the body, and [`TaskContext`] is an
    /// argument too. A function with a state is [`handler(function)`](postrider_subscriber::handler()) with its state.
    ///
    /// ```
    /// use std::time::Duration;
    /// use postrider_core::Json;
    /// use postrider_tasks::layers::{RateLimitLayer, TimeoutLayer};
    /// use postrider_tasks::{HandlerError, State, TaskContext, handler};
    /// use tower::ServiceBuilder;
    /// # use postrider_core::memory::MemoryProvider;
    /// # use postrider_sqlite::SqliteTasks;
    /// # use postrider_tasks::TaskWorkerBuilder;
    ///
    /// async fn greet(State(greeting): State<&'static str>, Json(name): Json<String>) -> Result<String, HandlerError> {
    ///     Ok(format!("{greeting} {name}"))
    /// }
    ///
    /// # fn add(worker: TaskWorkerBuilder<SqliteTasks, MemoryProvider>) -> TaskWorkerBuilder<SqliteTasks, MemoryProvider> {
    /// let greet = ServiceBuilder::new()
    ///     .layer(RateLimitLayer::new(100, Duration::from_secs(1)))
    ///     .layer(TimeoutLayer::new(Duration::from_secs(5)))
    ///     .service(handler(greet).with_state("hello"));
    /// worker.service("greet", greet)
    /// # }
    /// ```
    ///
    /// [layers]: postrider_subscriber::layers
    pub fn service<H, Kind, A>(self, task_type: impl AsRef<str>, handler: H) -> Self
    where
        H: IntoHandler<Kind, A>,
        A: IntoTaskResult + 'static,
    {
        let service = handler.into_handler();
        self.register(task_type, service.map_result(|answer: Result<A, _>| answer?.into_task_result()))
    }

    /// Sets the handler of a typed task: a function or service, as for [`service`](Self::service), which returns a
    /// `Result` of the task's result. Its payload is an argument `Json<K>`.
    pub fn handler_of<K: TaskKind, Kind>(self, handler: impl IntoHandler<Kind, K::Result>) -> Self {
        let service = handler.into_handler();
        self.register(K::TYPE, service.map_result(|answer: Result<K::Result, _>| Json(answer?).into_task_result()))
    }

    fn register<H>(mut self, task_type: impl AsRef<str>, service: H) -> Self
    where
        H: Service<Delivery, Response = Option<Bytes>, Error = HandlerError, Future: Send>,
        H: Clone + Send + Sync + 'static,
    {
        let registered = TaskType::new(task_type).and_then(|task_type| {
            let queue = self.store.routes().queue(&task_type)?;
            self.handlers.register(task_type, queue, service)
        });
        // `build` returns the first error.
        self.wrong = self.wrong.or(registered.err());
        self
    }

    /// Sets all options.
    pub fn options(mut self, options: TaskWorkerOptions) -> Self {
        self.options = options;
        self
    }

    /// Number of handlers that run at the same time.
    pub fn max_workers(mut self, max_workers: usize) -> Self {
        self.options.max_workers = max_workers;
        self
    }

    /// Length of a lease.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.options.lease = lease;
        self
    }

    /// Whether to stop when nothing is due and nothing runs.
    pub fn stop_when_empty(mut self, stop_when_empty: bool) -> Self {
        self.options.stop_when_empty = stop_when_empty;
        self
    }

    /// Reports each attempt to `observer`.
    pub fn observer(mut self, observer: impl TaskObserver) -> Self {
        self.observer = Some(Arc::new(observer));
        self
    }

    /// Builds the worker; an error if it is invalid.
    pub fn build(self) -> Result<TaskWorker<S, P>, MessagingError> {
        let Self { store, provider, handlers, wrong, options, observer } = self;
        if let Some(error) = wrong {
            return Err(error);
        }
        if handlers.types().is_empty() {
            return Err(MessagingError::invalid("handlers", "there is none; add one with handler(type, function)"));
        }
        options.check()?;
        let worker = options.name.clone().unwrap_or_else(crate::default_worker_name);
        let runner = Runner {
            handlers,
            attempts: Arc::new(Attempts::new(options.lease)),
            worker: crate::decide::storable(&worker).into(),
            timeout: options.timeout,
            cancel_timeout: options.cancel_timeout,
            max_result_bytes: store.max_payload_bytes(),
            stopping: Arc::default(),
        };
        let (counters, is_away) = (Counters::default(), AtomicBool::new(false));
        let shared = Shared { store, runner, options, counters, observer, is_away };
        Ok(TaskWorker { shared: Arc::new(shared), provider })
    }
}

impl<S, P> fmt::Debug for TaskWorkerBuilder<S, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TaskWorkerBuilder")
            .field("handlers", &self.handlers)
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}

/// The state that both modes share.
pub(crate) struct Shared<S> {
    pub(crate) store: S,
    pub(crate) runner: Runner,
    pub(crate) options: TaskWorkerOptions,
    pub(crate) counters: Counters,
    observer: Option<Arc<dyn TaskObserver>>,
    /// Whether the last call of the store failed.
    is_away: AtomicBool,
}

impl<S> Shared<S> {
    /// Counts a reported attempt, logs it and notifies the observer. `kept` is the recorded outcome; `None` if the task
    /// was no longer this worker's.
    pub(crate) fn record_end(&self, ended: &EndedAttempt, kept: Option<TaskOutcome>) {
        self.counters.count(kept.as_ref());
        if let Some(outcome) = &kept {
            log_failure(Some(&ended.task_type), ended.lease.id, ended.attempt_count, outcome);
        }
        if let Some(observer) = &self.observer {
            observer.ended(&TaskEnded {
                id: ended.lease.id,
                task_type: ended.task_type.clone(),
                attempt: ended.attempt_count,
                outcome: kept,
                took: ended.took,
            });
        }
    }

    /// Records that the store or the queue did not answer. Logged once for each outage.
    pub(crate) fn store_failed(&self, error: &MessagingError) {
        match self.is_away.swap(true, Ordering::Relaxed) {
            false => tracing::warn!(%error, "the task store does not answer; retrying"),
            true => tracing::debug!(%error, "the task store still does not answer"),
        }
        if let Some(observer) = &self.observer {
            observer.trouble(error);
        }
    }

    /// Records that the store has answered.
    pub(crate) fn store_answered(&self) {
        if self.is_away.swap(false, Ordering::Relaxed) {
            tracing::warn!("the task store answers again");
        }
    }
}

impl<S> fmt::Debug for Shared<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").field("runner", &self.runner).field("options", &self.options).finish_non_exhaustive()
    }
}

/// Why a worker stopped.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum TaskStopCause {
    /// A stop was requested.
    Requested,
    /// Nothing was left, and `stop_when_empty` is on.
    NothingLeft,
    /// The store or the queue was closed.
    StoreClosed,
    /// One of its loops panicked, which is a bug.
    Panicked(String),
}

impl fmt::Display for TaskStopCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Requested => f.write_str("a stop was requested"),
            Self::NothingLeft => f.write_str("nothing was left"),
            Self::StoreClosed => f.write_str("the store was closed"),
            Self::Panicked(what) => f.write_str(what),
        }
    }
}

/// The report of a stopped worker.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct TaskStopReport {
    /// Why it stopped.
    pub cause: TaskStopCause,
    /// Its attempts by outcome.
    pub counts: TaskCounts,
}

/// Reads the counts of a worker while it runs, and after. Clones are the same.
#[derive(Clone)]
pub struct TaskMonitor(Arc<dyn Fn() -> TaskCounts + Send + Sync>);

impl TaskMonitor {
    /// Its attempts by outcome.
    pub fn counts(&self) -> TaskCounts {
        self.0()
    }
}

impl fmt::Debug for TaskMonitor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("TaskMonitor").field(&self.counts()).finish()
    }
}

/// Runs tasks of the types that it has handlers for.
#[must_use = "a worker does nothing until it is run"]
pub struct TaskWorker<S, P> {
    shared: Arc<Shared<S>>,
    provider: P,
}

impl<S, P> TaskWorker<S, P>
where
    S: TaskStore + Clone,
    P: MessagingService + Clone,
{
    /// A monitor of the worker.
    pub fn monitor(&self) -> TaskMonitor {
        let shared = self.shared.clone();
        TaskMonitor(Arc::new(move || shared.counters.read()))
    }

    /// Runs until a stop is requested, the store is closed, or nothing is left and `stop_when_empty` is on.
    pub async fn run(self, shutdown: impl Into<Shutdown>) -> Result<TaskStopReport, MessagingError> {
        let shutdown = shutdown.into();
        let Self { shared, provider } = self;
        tracing::info!(types = ?shared.runner.handlers, mode = %shared.store.routes().mode, "task worker started");
        let end = CancellationToken::new();
        // Dropping this future ends the heartbeat too.
        let _ends = end.clone().drop_guard();
        let heartbeat =
            keep_alive(shared.store.clone(), shared.runner.attempts.clone(), shared.options.lease, end.clone());
        // A separate task, so that a slow call of the store does not cost the leases.
        let heartbeat = tokio::spawn(heartbeat);
        let run = async {
            match shared.store.routes().mode {
                TaskMode::Polling => Ok(Polling::new(shared.clone()).run(&shutdown).await),
                TaskMode::Queue => delivered::run(shared.clone(), provider, &shutdown).await,
            }
        };
        let stopping = async {
            shutdown.requested().await;
            shared.runner.stopping.cancel();
            std::future::pending().await
        };
        let cause = tokio::select! {
            cause = run => cause,
            // It only tells the attempts, and never ends.
            cause = stopping => cause,
        };
        end.cancel();
        // It ends at once, or it has panicked.
        let _ = heartbeat.await;
        Ok(TaskStopReport { cause: cause?, counts: shared.counters.read() })
    }
}

impl<S, P> fmt::Debug for TaskWorker<S, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TaskWorker").field("shared", &self.shared).finish_non_exhaustive()
    }
}
