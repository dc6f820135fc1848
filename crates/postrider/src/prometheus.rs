//! Prometheus metrics of subscribers: the hook [`Metrics`] over a registry of `prometheus-client`.
//!
//! ```
//! use postrider::prometheus::{PrometheusMetrics, Registry};
//! use postrider::subscriber::Subscriber;
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let mut registry = Registry::default();
//! let metrics = PrometheusMetrics::register(&mut registry);
//! let provider = postrider::connect("memory:").await?;
//! let subscriber = Subscriber::builder(provider, "orders").metrics(metrics).handler(|| async {}).build()?;
//! # drop(subscriber);
//! // The body of the application's `/metrics`, as OpenMetrics.
//! let mut text = String::new();
//! postrider::prometheus::encode(&mut text, &registry)?;
//! # Ok(())
//! # }
//! ```

use std::collections::HashSet;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use postrider_core::QueueName;
use postrider_subscriber::{Metrics, Outcome};
pub use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{EncodeLabel, EncodeLabelSet, LabelSetEncoder};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
pub use prometheus_client::registry::Registry;
use prometheus_client::registry::Unit;

/// Upper bound of queues with their own label.
const MOST_QUEUES: usize = 1000;

/// The label of all other queues. No queue can have this name.
const OTHER: &str = "(other)";

/// Bounds of the times of handlers and of the ages of messages: a millisecond to a day.
const BOUNDS: [f64; 20] = [
    0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0, 14_400.0,
    43_200.0, 86_400.0,
];

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Labels {
    queue: String,
    /// `None` where a family has no such label.
    outcome: Option<&'static str>,
}

impl EncodeLabelSet for Labels {
    fn encode(&self, encoder: &mut LabelSetEncoder<'_>) -> Result<(), std::fmt::Error> {
        ("queue", self.queue.as_str()).encode(encoder.encode_label())?;
        match self.outcome {
            Some(outcome) => ("outcome", outcome).encode(encoder.encode_label()),
            None => Ok(()),
        }
    }
}

/// Counts messages by outcome, and measures handlers and the waiting time of messages. Clones share their counts: give
/// one to each subscriber.
#[derive(Clone)]
pub struct PrometheusMetrics {
    messages: Family<Labels, Counter>,
    handlers: Family<Labels, Histogram, fn() -> Histogram>,
    ages: Family<Labels, Histogram, fn() -> Histogram>,
    /// Queues with their own label. Locked for a lookup.
    queues: Arc<RwLock<HashSet<QueueName>>>,
}

impl PrometheusMetrics {
    /// Adds `postrider_subscriber_messages_total`, with the labels `queue` and `outcome`, and
    /// `postrider_subscriber_handler_duration_seconds` and `postrider_subscriber_message_age_at_delivery_seconds`, with
    /// the label `queue`, to a registry.
    pub fn register(registry: &mut Registry) -> Self {
        let own = registry.sub_registry_with_prefix("postrider_subscriber");
        let messages = Family::<Labels, Counter>::default();
        own.register("messages", "Messages, by what happened to them", messages.clone());
        let new: fn() -> Histogram = || Histogram::new(BOUNDS);
        let handlers = Family::new_with_constructor(new);
        own.register_with_unit("handler_duration", "How long handlers took", Unit::Seconds, handlers.clone());
        let ages = Family::new_with_constructor(new);
        let about = "How long messages had been in their queue when their handlers first got them";
        own.register_with_unit("message_age_at_delivery", about, Unit::Seconds, ages.clone());
        Self { messages, handlers, ages, queues: Arc::default() }
    }

    fn labels(&self, queue: &QueueName, outcome: Option<&'static str>) -> Labels {
        let is_known = self.queues.read().unwrap_or_else(PoisonError::into_inner).contains(queue);
        let has_label = is_known || {
            let mut queues = self.queues.write().unwrap_or_else(PoisonError::into_inner);
            queues.contains(queue) || (queues.len() < MOST_QUEUES && queues.insert(queue.clone()))
        };
        Labels { queue: if has_label { queue.as_str() } else { OTHER }.to_owned(), outcome }
    }
}

impl Metrics for PrometheusMetrics {
    fn happened(&self, queue: &QueueName, outcome: Outcome, messages: u64) {
        self.messages.get_or_create(&self.labels(queue, Some(outcome.name()))).inc_by(messages);
    }

    fn handled(&self, queue: &QueueName, took: Duration) {
        self.handlers.get_or_create(&self.labels(queue, None)).observe(took.as_secs_f64());
    }

    fn waited(&self, queue: &QueueName, age: Duration) {
        self.ages.get_or_create(&self.labels(queue, None)).observe(age.as_secs_f64());
    }
}

impl std::fmt::Debug for PrometheusMetrics {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("PrometheusMetrics")
    }
}

/// Labels of an attempt at a task: its type and, where a family has one, its outcome.
#[cfg(feature = "tasks")]
type TaskLabels = Vec<(&'static str, String)>;

/// Counts and measures attempts at tasks: the hook [`TaskObserver`](postrider_tasks::TaskObserver). The types of a
/// worker's handlers bound its labels. Clones share their counts: give one to each worker.
#[cfg(feature = "tasks")]
#[derive(Clone)]
pub struct PrometheusTasks {
    attempts: Family<TaskLabels, Counter>,
    durations: Family<TaskLabels, Histogram, fn() -> Histogram>,
}

#[cfg(feature = "tasks")]
impl PrometheusTasks {
    /// Adds `postrider_worker_task_attempts_total`, with the labels `type` and `outcome`, and
    /// `postrider_worker_task_attempt_duration_seconds`, with the label `type`, to a registry.
    pub fn register(registry: &mut Registry) -> Self {
        let own = registry.sub_registry_with_prefix("postrider_worker");
        let attempts = Family::<TaskLabels, Counter>::default();
        own.register("task_attempts", "Attempts at tasks, by how they ended", attempts.clone());
        let new: fn() -> Histogram = || Histogram::new(BOUNDS);
        let durations = Family::new_with_constructor(new);
        own.register_with_unit(
            "task_attempt_duration",
            "How long attempts at tasks took",
            Unit::Seconds,
            durations.clone(),
        );
        Self { attempts, durations }
    }
}

#[cfg(feature = "tasks")]
impl postrider_tasks::TaskObserver for PrometheusTasks {
    fn ended(&self, attempt: &postrider_tasks::TaskEnded) {
        use postrider_core::task::TaskOutcome;
        let outcome = match &attempt.outcome {
            Some(TaskOutcome::Succeeded { .. }) => "succeeded",
            Some(TaskOutcome::Retry { .. }) => "retried",
            Some(TaskOutcome::Dead { .. }) => "dead",
            Some(TaskOutcome::Released) => "released",
            None => "lost",
        };
        let task_type = ("type", attempt.task_type.to_string());
        self.attempts.get_or_create(&vec![task_type.clone(), ("outcome", outcome.to_owned())]).inc();
        self.durations.get_or_create(&vec![task_type]).observe(attempt.took.as_secs_f64());
    }
}

#[cfg(feature = "tasks")]
impl std::fmt::Debug for PrometheusTasks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("PrometheusTasks")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(registry: &Registry) -> String {
        let mut text = String::new();
        encode(&mut text, registry).unwrap();
        text
    }

    #[tokio::test]
    async fn a_subscriber_is_counted_and_its_handlers_are_measured() {
        use postrider_core::{Deadline, Message, MessagingService};
        use postrider_subscriber::{Shutdown, Subscriber};
        let mut registry = Registry::default();
        let metrics = PrometheusMetrics::register(&mut registry);
        let store = postrider_core::MemoryStore::new();
        let orders = QueueName::new("orders").unwrap();
        for _ in 0..3 {
            store.open().send_message(&orders, Message::new("a"), Deadline::default()).await.unwrap();
        }
        let shutdown = Shutdown::new();
        let (asked, handled) = (shutdown.clone(), Arc::new(std::sync::atomic::AtomicUsize::new(0)));
        let handler = move || {
            let (asked, handled) = (asked.clone(), handled.clone());
            async move {
                if handled.fetch_add(1, std::sync::atomic::Ordering::Relaxed) == 2 {
                    asked.request();
                }
            }
        };
        let subscriber = Subscriber::builder(store.open(), "orders").metrics(metrics).handler(handler).build().unwrap();
        tokio::time::timeout(Duration::from_secs(30), subscriber.run(shutdown)).await.expect("it ends");
        let text = text(&registry);
        for line in [
            "postrider_subscriber_messages_total{queue=\"orders\",outcome=\"acked\"} 3",
            "postrider_subscriber_handler_duration_seconds_count{queue=\"orders\"} 3",
            "postrider_subscriber_message_age_at_delivery_seconds_count{queue=\"orders\"} 3",
        ] {
            assert!(text.contains(line), "{line} is not in\n{text}");
        }
    }

    #[cfg(all(feature = "tasks", feature = "sqlite"))]
    #[tokio::test]
    async fn attempts_of_a_worker_on_tasks_are_counted_and_measured() {
        use postrider_core::task::{NewTask, TaskRoutes};
        use postrider_core::{Deadline, MemoryStore};
        use postrider_sqlite::{SqliteOptions, SqliteStore, SqliteTasks};
        use postrider_tasks::{HandlerError, Shutdown, TaskContext, Tasks};
        let mut registry = Registry::default();
        let metrics = PrometheusTasks::register(&mut registry);
        let folder = tempfile::tempdir().unwrap();
        let store = SqliteStore::open(folder.path().join("tasks.db"), SqliteOptions::default()).await.unwrap();
        let store = SqliteTasks::new(store.connect().await.unwrap(), TaskRoutes::default()).unwrap();
        let tasks = Tasks::new(store, MemoryStore::new().open());
        for payload in ["good", "good", "bad"] {
            let task = NewTask::new("print", payload).unwrap();
            tasks.client().create(task, Deadline::default()).await.unwrap();
        }
        let handler = |task: TaskContext| async move {
            if task.payload()[..] == *b"bad" { Err(HandlerError::permanent("no")) } else { Ok(()) }
        };
        let worker = tasks.worker().handler("print", handler).observer(metrics).stop_when_empty(true).build().unwrap();
        drop(worker.run(Shutdown::new()).await.unwrap());
        let text = text(&registry);
        for line in [
            "postrider_worker_task_attempts_total{type=\"print\",outcome=\"succeeded\"} 2",
            "postrider_worker_task_attempts_total{type=\"print\",outcome=\"dead\"} 1",
            "postrider_worker_task_attempt_duration_seconds_count{type=\"print\"} 3",
        ] {
            assert!(text.contains(line), "{line} is not in\n{text}");
        }
    }

    #[test]
    fn labels_are_bounded_and_times_go_up_to_a_day() {
        let mut registry = Registry::default();
        let metrics = PrometheusMetrics::register(&mut registry);
        for number in 0..MOST_QUEUES + 7 {
            metrics.happened(&QueueName::new(format!("q{number}")).unwrap(), Outcome::Acked, 1);
        }
        metrics.handled(&QueueName::new("q0").unwrap(), Duration::from_secs(7200));
        let text = text(&registry);
        assert!(text.contains("postrider_subscriber_messages_total{queue=\"(other)\",outcome=\"acked\"} 7"), "{text}");
        assert_eq!(text.matches("postrider_subscriber_messages_total{").count(), MOST_QUEUES + 1);
        for (bound, count) in [("3600.0", 0), ("14400.0", 1)] {
            let line = format!("handler_duration_seconds_bucket{{le=\"{bound}\",queue=\"q0\"}} {count}");
            assert!(text.contains(&line), "{line} is not in\n{text}");
        }
        assert!(QueueName::new(OTHER).is_err(), "a queue of that name would be counted with the others");
    }
}
