//! The server's metrics.
//!
//! Labels are bounded: a queue beyond the first thousand is counted as `(other)`, a route is labelled by its pattern,
//! never by a path, and nothing is labelled by an id.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use postrider::task::TaskCount;
use postrider::{QueueName, QueueStats, TaskState, TaskType};
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{EncodeLabelSet, LabelSetEncoder};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::{Registry, Unit};
use tokio::time::Instant;

/// Upper bound of queues with a label of their own.
const MAX_QUEUES: usize = 1000;

/// Upper bound of task types with a label of their own.
const MAX_TYPES: usize = 500;

/// Label of all others. It is not a valid queue name.
const OTHER: &str = "(other)";

/// Time that a queue keeps its label after it is no longer listed. A store may list a new queue with a delay.
const LABEL_LIFE: Duration = Duration::from_secs(120);

/// Label names and values.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Labels(Vec<(&'static str, String)>);

impl EncodeLabelSet for Labels {
    fn encode(&self, encoder: &mut LabelSetEncoder<'_>) -> Result<(), std::fmt::Error> {
        for (name, value) in &self.0 {
            (*name, value.as_str()).encode(encoder.encode_label())?;
        }
        Ok(())
    }
}

use prometheus_client::encoding::EncodeLabel;

/// An event of a message that is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MessageEvent {
    Sent,
    Received,
    Acked,
    Retried,
    Released,
    DeadLettered,
    LeaseLost,
}

/// Metrics of a queue, looked up once per message.
#[derive(Debug)]
pub(crate) struct QueueCounts {
    counters: [Counter; 7],
    waited: Histogram,
    handled: Histogram,
    /// Whether the queue has a label of its own.
    has_label: bool,
    /// Time since which the queue is not listed. The lock is held briefly.
    absent: Mutex<Option<Instant>>,
}

impl QueueCounts {
    /// Returns the count of an event.
    pub(crate) fn get(&self, what: MessageEvent) -> u64 {
        self.counters[what as usize].get()
    }
}

/// Metrics of a route.
#[derive(Debug)]
struct RouteCounts {
    seconds: Histogram,
    /// Counters by status, a handful per route. The lock is held briefly.
    by_status: Mutex<Vec<(u16, Counter)>>,
}

type NewHistogram = fn() -> Histogram;

fn request_histogram() -> Histogram {
    // Half a millisecond to a minute.
    Histogram::new(exponential_buckets(0.0005, 2.0, 18))
}

/// Bucket bounds for long durations: time in a queue, handling, delays.
const LONG_BUCKETS: [f64; 20] = [
    0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0, 14_400.0,
    43_200.0, 86_400.0,
];

fn long_histogram() -> Histogram {
    Histogram::new(LONG_BUCKETS)
}

/// Outcome of a task's attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AttemptOutcome {
    Succeeded,
    Retried,
    Dead,
    Released,
}

impl AttemptOutcome {
    const ALL: [(Self, &'static str); 4] = [
        (Self::Succeeded, "succeeded"),
        (Self::Retried, "retried"),
        (Self::Dead, "dead"),
        (Self::Released, "released"),
    ];
}

/// Metrics of a task type.
#[derive(Debug)]
struct TypeCounts {
    created: Counter,
    claimed: Counter,
    /// In the order of [`AttemptOutcome::ALL`].
    ended: [Counter; 4],
    lag: Histogram,
    attempt: Histogram,
}

/// All metrics of the server.
pub(crate) struct Metrics {
    registry: Registry,
    /// The locks are held briefly.
    counts: RwLock<HashMap<QueueName, Arc<QueueCounts>>>,
    routes: RwLock<HashMap<(String, &'static str), Arc<RouteCounts>>>,
    types: RwLock<HashMap<TaskType, Arc<TypeCounts>>>,
    messages: [Family<Labels, Counter>; 7],
    waited: Family<Labels, Histogram, NewHistogram>,
    handled: Family<Labels, Histogram, NewHistogram>,
    tasks: Family<Labels, Gauge>,
    /// Types in the gauge `tasks`. Locked while it is set.
    types_with_tasks: Mutex<BTreeSet<String>>,
    tasks_created: Family<Labels, Counter>,
    tasks_claimed: Family<Labels, Counter>,
    attempts: Family<Labels, Counter>,
    lag: Family<Labels, Histogram, NewHistogram>,
    attempt_seconds: Family<Labels, Histogram, NewHistogram>,
    depth: Family<Labels, Gauge>,
    oldest: Family<Labels, Gauge<f64, AtomicU64>>,
    requests: Family<Labels, Counter>,
    request_seconds: Family<Labels, Histogram, NewHistogram>,
    connections: Gauge,
    store_up: Gauge,
}

impl std::fmt::Debug for Metrics {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Metrics")
    }
}

impl Metrics {
    pub(crate) fn new(provider: &'static str) -> Self {
        let mut registry = Registry::with_prefix("postrider");
        let build = Info::new(Labels(vec![
            ("version", env!("CARGO_PKG_VERSION").to_owned()),
            ("provider", provider.to_owned()),
        ]));
        registry.register("build", "Version and provider of this server", build);
        // In the order of `MessageEvent`.
        let names = [
            ("messages_sent", "Messages that were accepted"),
            ("messages_received", "Deliveries to clients"),
            ("messages_acked", "Messages that were handled"),
            ("messages_retried", "Deliveries that failed and are retried"),
            ("messages_released", "Deliveries that were released unstarted"),
            ("messages_dead_lettered", "Messages that clients dead-lettered"),
            ("messages_lease_lost", "Settles and extensions whose lease had expired"),
        ];
        let messages = names.map(|(name, about)| {
            let family = Family::<Labels, Counter>::default();
            registry.register(name, about, family.clone());
            family
        });
        let waited = Family::new_with_constructor(long_histogram as NewHistogram);
        let about = "Time from send to first delivery";
        registry.register_with_unit("message_age_at_delivery", about, Unit::Seconds, waited.clone());
        let handled = Family::new_with_constructor(long_histogram as NewHistogram);
        let about = "Time from delivery to ack, retry or dead-letter";
        registry.register_with_unit("message_handling", about, Unit::Seconds, handled.clone());
        let tasks = Family::<Labels, Gauge>::default();
        registry.register("tasks", "Tasks in the store, by type and state", tasks.clone());
        let tasks_created = Family::<Labels, Counter>::default();
        registry.register("tasks_created", "Tasks created by requests", tasks_created.clone());
        let tasks_claimed = Family::<Labels, Counter>::default();
        registry.register("tasks_claimed", "Tasks claimed by clients", tasks_claimed.clone());
        let attempts = Family::<Labels, Counter>::default();
        registry.register("task_attempts", "Attempts that clients ended, by outcome", attempts.clone());
        let lag = Family::new_with_constructor(long_histogram as NewHistogram);
        let about = "Time from due to claimed";
        registry.register_with_unit("task_lag", about, Unit::Seconds, lag.clone());
        let attempt_seconds = Family::new_with_constructor(long_histogram as NewHistogram);
        let about = "Duration of attempts";
        registry.register_with_unit("task_attempt_duration", about, Unit::Seconds, attempt_seconds.clone());
        let depth = Family::<Labels, Gauge>::default();
        registry.register("queue_messages", "Messages in a queue, by state", depth.clone());
        let oldest = Family::<Labels, Gauge<f64, AtomicU64>>::default();
        let about = "Age of the oldest ready message";
        registry.register_with_unit("queue_oldest_ready_age", about, Unit::Seconds, oldest.clone());
        let requests = Family::<Labels, Counter>::default();
        registry.register("http_requests", "Requests, by route and status", requests.clone());
        let request_seconds = Family::new_with_constructor(request_histogram as NewHistogram);
        let about = "Duration of requests, long polls included";
        registry.register_with_unit("http_request_duration", about, Unit::Seconds, request_seconds.clone());
        let connections = Gauge::default();
        registry.register("http_connections", "Open connections", connections.clone());
        let store_up = Gauge::default();
        registry.register("store_up", "Whether the store answered the last sample", store_up.clone());
        Self {
            registry,
            counts: RwLock::default(),
            routes: RwLock::default(),
            types: RwLock::default(),
            messages,
            waited,
            handled,
            tasks,
            types_with_tasks: Mutex::default(),
            tasks_created,
            tasks_claimed,
            attempts,
            lag,
            attempt_seconds,
            depth,
            oldest,
            requests,
            request_seconds,
            connections,
            store_up,
        }
    }

    /// Returns the metrics of a queue, with its own label or that of all others.
    fn of_queue(&self, queue: &QueueName) -> Arc<QueueCounts> {
        if let Some(counts) = self.counts.read().unwrap_or_else(PoisonError::into_inner).get(queue) {
            return counts.clone();
        }
        let mut counts = self.counts.write().unwrap_or_else(PoisonError::into_inner);
        let has_label = counts.len() < MAX_QUEUES;
        let labels = Labels(vec![("queue", if has_label { queue.as_str() } else { OTHER }.to_owned())]);
        let created = Arc::new(QueueCounts {
            counters: self.messages.each_ref().map(|family| family.get_or_create(&labels).clone()),
            waited: self.waited.get_or_create(&labels).clone(),
            handled: self.handled.get_or_create(&labels).clone(),
            has_label,
            absent: Mutex::default(),
        });
        // Queues without a label are not stored: memory would grow with every name.
        if has_label { counts.entry(queue.clone()).or_insert(created).clone() } else { created }
    }

    /// Counts an event of some messages of a queue.
    pub(crate) fn count(&self, queue: &QueueName, what: MessageEvent, many: u64) {
        if many > 0 {
            self.of_queue(queue).counters[what as usize].inc_by(many);
        }
    }

    /// Records the time from send to first delivery.
    pub(crate) fn waited(&self, queue: &QueueName, age: Duration) {
        self.of_queue(queue).waited.observe(age.as_secs_f64());
    }

    /// Records the time from delivery to settlement.
    pub(crate) fn handled(&self, queue: &QueueName, took: Duration) {
        self.of_queue(queue).handled.observe(took.as_secs_f64());
    }

    fn of_type(&self, task_type: &TaskType) -> Arc<TypeCounts> {
        if let Some(counts) = self.types.read().unwrap_or_else(PoisonError::into_inner).get(task_type) {
            return counts.clone();
        }
        let mut types = self.types.write().unwrap_or_else(PoisonError::into_inner);
        let has_label = types.len() < MAX_TYPES;
        let name = || ("type", if has_label { task_type.as_str() } else { OTHER }.to_owned());
        let labels = Labels(vec![name()]);
        let ended = |(_, outcome): (AttemptOutcome, &'static str)| {
            self.attempts.get_or_create(&Labels(vec![name(), ("outcome", outcome.to_owned())])).clone()
        };
        let created = Arc::new(TypeCounts {
            created: self.tasks_created.get_or_create(&labels).clone(),
            claimed: self.tasks_claimed.get_or_create(&labels).clone(),
            ended: AttemptOutcome::ALL.map(ended),
            lag: self.lag.get_or_create(&labels).clone(),
            attempt: self.attempt_seconds.get_or_create(&labels).clone(),
        });
        // Types without a label are not stored: memory would grow with every name.
        if has_label { types.entry(task_type.clone()).or_insert(created).clone() } else { created }
    }

    /// Counts a created task.
    pub(crate) fn task_created(&self, task_type: &TaskType) {
        self.of_type(task_type).created.inc();
    }

    /// Counts a claimed task; `lag` is the time since it was due.
    pub(crate) fn task_claimed(&self, task_type: &TaskType, lag: Duration) {
        let counts = self.of_type(task_type);
        counts.claimed.inc();
        counts.lag.observe(lag.as_secs_f64());
    }

    /// Counts an ended attempt, and its duration if that is known.
    pub(crate) fn task_ended(&self, task_type: &TaskType, how: AttemptOutcome, took: Option<Duration>) {
        let counts = self.of_type(task_type);
        counts.ended[how as usize].inc();
        // Released attempts were never started.
        if let Some(took) = took.filter(|_| how != AttemptOutcome::Released) {
            counts.attempt.observe(took.as_secs_f64());
        }
    }

    /// Sets the gauge of tasks, and removes types without tasks.
    pub(crate) fn set_task_counts(&self, counts: &[TaskCount]) {
        let mut by_type: BTreeMap<&TaskType, [u64; TaskState::ALL.len()]> = BTreeMap::new();
        for task in counts {
            by_type.entry(&task.task_type).or_default()[task.state as usize] += task.count.value().unwrap_or_default();
        }
        let mut shown: BTreeMap<&str, [u64; TaskState::ALL.len()]> = BTreeMap::new();
        for (index, (task_type, counts)) in by_type.into_iter().enumerate() {
            let name = if index < MAX_TYPES { task_type.as_str() } else { OTHER };
            shown.entry(name).or_default().iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
        }
        let labels = |name: &str, state: TaskState| {
            Labels(vec![("type", name.to_owned()), ("state", state.as_str().to_owned())])
        };
        let mut before = self.types_with_tasks.lock().unwrap_or_else(PoisonError::into_inner);
        for (name, counts) in &shown {
            for (state, count) in TaskState::ALL.into_iter().zip(counts) {
                self.tasks.get_or_create(&labels(name, state)).set(i64::try_from(*count).unwrap_or(i64::MAX));
            }
        }
        for gone in before.iter().filter(|name| !shown.contains_key(name.as_str())) {
            for state in TaskState::ALL {
                self.tasks.remove(&labels(gone, state));
            }
        }
        *before = shown.into_keys().map(str::to_owned).collect();
    }

    /// Returns the counts of a queue; `None` if no message of it went through this server.
    pub(crate) fn counts(&self, queue: &QueueName) -> Option<Arc<QueueCounts>> {
        self.counts.read().unwrap_or_else(PoisonError::into_inner).get(queue).cloned()
    }

    /// Sets the gauges of a queue, if it has a label of its own.
    pub(crate) fn set_queue_stats(&self, stats: &QueueStats) {
        if !self.of_queue(&stats.queue).has_label {
            return;
        }
        let name = stats.queue.as_str().to_owned();
        let states =
            [("ready", stats.ready), ("in_flight", stats.in_flight), ("delayed", stats.delayed), ("dead", stats.dead)];
        for (state, count) in states {
            if let Some(count) = count.value() {
                let labels = Labels(vec![("queue", name.clone()), ("state", state.to_owned())]);
                self.depth.get_or_create(&labels).set(i64::try_from(count).unwrap_or(i64::MAX));
            }
        }
        let age = stats.oldest_age.value().flatten().map_or(0.0, |age| age.as_secs_f64());
        self.oldest.get_or_create(&Labels(vec![("queue", name)])).set(age);
    }

    /// Removes the gauges of a removed queue.
    pub(crate) fn remove_queue(&self, queue: &str) {
        for state in ["ready", "in_flight", "delayed", "dead"] {
            self.depth.remove(&Labels(vec![("queue", queue.to_owned()), ("state", state.to_owned())]));
        }
        self.oldest.remove(&Labels(vec![("queue", queue.to_owned())]));
    }

    /// Frees the labels of queues that are no longer listed.
    pub(crate) fn retain_listed(&self, is_listed: impl Fn(&QueueName) -> bool) {
        let mut counts = self.counts.write().unwrap_or_else(PoisonError::into_inner);
        counts.retain(|queue, own| {
            let mut absent = own.absent.lock().unwrap_or_else(PoisonError::into_inner);
            if is_listed(queue) {
                *absent = None;
                return true;
            }
            if absent.get_or_insert_with(Instant::now).elapsed() < LABEL_LIFE {
                return true;
            }
            let labels = Labels(vec![("queue", queue.as_str().to_owned())]);
            for family in &self.messages {
                family.remove(&labels);
            }
            self.waited.remove(&labels);
            self.handled.remove(&labels);
            false
        });
    }

    /// Counts a request of a route.
    pub(crate) fn request(&self, route: &str, method: &'static str, status: u16, took: Duration) {
        let counts = self.of_route(route, method);
        counts.seconds.observe(took.as_secs_f64());
        let mut by_status = counts.by_status.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, counter)) = by_status.iter().find(|(own, _)| *own == status) {
            counter.inc();
            return;
        }
        let labels = vec![("route", route.to_owned()), ("method", method.to_owned()), ("status", status.to_string())];
        let counter = self.requests.get_or_create(&Labels(labels)).clone();
        counter.inc();
        by_status.push((status, counter));
    }

    fn of_route(&self, route: &str, method: &'static str) -> Arc<RouteCounts> {
        // Bounded: routes are those of the table, and there is a handful of methods.
        let name = (route.to_owned(), method);
        if let Some(counts) = self.routes.read().unwrap_or_else(PoisonError::into_inner).get(&name) {
            return counts.clone();
        }
        let labels = Labels(vec![("route", route.to_owned()), ("method", method.to_owned())]);
        let seconds = self.request_seconds.get_or_create(&labels).clone();
        let created = Arc::new(RouteCounts { seconds, by_status: Mutex::default() });
        self.routes.write().unwrap_or_else(PoisonError::into_inner).entry(name).or_insert(created).clone()
    }

    pub(crate) fn connections(&self) -> &Gauge {
        &self.connections
    }

    pub(crate) fn store_up(&self, is_up: bool) {
        self.store_up.set(is_up.into());
    }

    /// Returns all metrics in the OpenMetrics format.
    pub(crate) fn text(&self) -> String {
        let mut text = String::new();
        // Writing to a string cannot fail.
        let _ = encode(&mut text, &self.registry);
        text
    }
}

/// Converts OpenMetrics to the Prometheus text format 0.0.4, which every scraper reads: without units and end mark, and
/// with sample names where OpenMetrics has family names.
pub(crate) fn to_text_format(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut kinds: HashMap<&str, &str> = HashMap::new();
    // The type of a family follows its help, so it is collected first.
    for line in text.lines() {
        if let Some((name, kind)) = line.strip_prefix("# TYPE ").and_then(|rest| rest.split_once(' ')) {
            kinds.insert(name, kind);
        }
    }
    for line in text.lines() {
        let rest = line.strip_prefix("# ");
        let parts = rest.and_then(|rest| {
            let (what, rest) = rest.split_once(' ')?;
            let (name, rest) = rest.split_once(' ').unwrap_or((rest, ""));
            Some((what, name, rest))
        });
        match parts {
            None if rest.is_some() => {}
            None => plain.extend([line, "\n"]),
            Some((what @ ("HELP" | "TYPE"), name, rest)) => {
                let (ending, kind) = match kinds.get(name) {
                    Some(&"counter") => ("_total", "counter"),
                    Some(&"info") => ("_info", "gauge"),
                    Some(kind) => ("", *kind),
                    None => ("", "untyped"),
                };
                let rest = if what == "TYPE" { kind } else { rest };
                plain.extend(["# ", what, " ", name, ending, " ", rest, "\n"]);
            }
            Some(_) => {}
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use postrider::Measured;

    use super::*;

    #[test]
    fn labels_are_bounded_and_names_have_one_prefix() {
        let metrics = Metrics::new("memory");
        for number in 0..MAX_QUEUES + 50 {
            metrics.count(&QueueName::new(format!("q{number}")).unwrap(), MessageEvent::Sent, 1);
        }
        metrics.request("/v1/queues/{queue}", "get", 200, Duration::from_millis(3));
        let text = metrics.text();
        assert!(text.contains("postrider_build_info{"), "{text}");
        assert!(text.contains("postrider_messages_sent_total{queue=\"(other)\"} 50"), "{text}");
        assert_eq!(text.matches("postrider_messages_sent_total{").count(), MAX_QUEUES + 1);
        assert!(text.lines().filter(|line| !line.starts_with('#')).all(|line| line.starts_with("postrider_")));
        assert!(QueueName::new(OTHER).is_err(), "a queue of that name would be counted with the others");
    }

    #[test]
    fn labels_of_task_types_are_bounded() {
        let metrics = Metrics::new("memory");
        for number in 0..MAX_TYPES + 5 {
            metrics.task_created(&TaskType::new(format!("t{number}")).unwrap());
        }
        let mail = TaskType::new("t0").unwrap();
        metrics.task_claimed(&mail, Duration::from_secs(7200));
        metrics.task_ended(&mail, AttemptOutcome::Dead, Some(Duration::from_secs(2)));
        metrics.task_ended(&mail, AttemptOutcome::Released, Some(Duration::from_secs(2)));
        let text = metrics.text();
        for line in [
            "postrider_tasks_created_total{type=\"(other)\"} 5",
            "postrider_task_attempts_total{type=\"t0\",outcome=\"dead\"} 1",
            "postrider_task_attempt_duration_seconds_count{type=\"t0\"} 1",
            "postrider_task_lag_seconds_bucket{le=\"3600.0\",type=\"t0\"} 0",
            "postrider_task_lag_seconds_bucket{le=\"14400.0\",type=\"t0\"} 1",
        ] {
            assert!(text.contains(line), "{line}");
        }
        assert_eq!(text.matches("postrider_tasks_created_total{").count(), MAX_TYPES + 1);
    }

    #[test]
    fn the_gauge_of_tasks_is_bounded_and_drops_types_without_tasks() {
        let metrics = Metrics::new("memory");
        let of = |number: usize, state, count| TaskCount {
            task_type: TaskType::new(format!("t{number:03}")).unwrap(),
            state,
            count: Measured::Exact(count),
        };
        let mut counts: Vec<_> = (0..MAX_TYPES + 5).map(|number| of(number, TaskState::Dead, 2)).collect();
        counts.push(of(0, TaskState::Pending, 3));
        metrics.set_task_counts(&counts);
        let text = metrics.text();
        for line in [
            "postrider_tasks{type=\"t000\",state=\"DEAD\"} 2",
            "postrider_tasks{type=\"t000\",state=\"PENDING\"} 3",
            "postrider_tasks{type=\"t000\",state=\"ENQUEUED\"} 0",
            "postrider_tasks{type=\"(other)\",state=\"DEAD\"} 10",
        ] {
            assert!(text.contains(line), "{line}");
        }
        assert_eq!(text.matches("postrider_tasks{").count(), (MAX_TYPES + 1) * TaskState::ALL.len());
        metrics.set_task_counts(&[of(1, TaskState::Pending, 1)]);
        let text = metrics.text();
        assert!(text.contains("postrider_tasks{type=\"t001\",state=\"DEAD\"} 0"));
        assert_eq!(text.matches("postrider_tasks{").count(), TaskState::ALL.len());
    }

    #[test]
    fn the_text_format_names_samples_and_has_no_units() {
        let metrics = Metrics::new("memory");
        metrics.count(&QueueName::new("orders").unwrap(), MessageEvent::Sent, 1);
        let text = to_text_format(&metrics.text());
        for line in [
            "# TYPE postrider_messages_sent_total counter\n",
            "# HELP postrider_messages_sent_total Messages that were accepted.\n",
            "# TYPE postrider_build_info gauge\n",
            "# TYPE postrider_message_age_at_delivery_seconds histogram\n",
            "postrider_messages_sent_total{queue=\"orders\"} 1\n",
        ] {
            assert!(text.contains(line), "{line} is not in\n{text}");
        }
        assert!(!text.contains("# EOF") && !text.contains("# UNIT") && text.ends_with('\n'), "{text}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_removed_queue_frees_its_label() {
        let metrics = Metrics::new("memory");
        let queue = |number: usize| QueueName::new(format!("q{number}")).unwrap();
        (0..MAX_QUEUES).for_each(|number| metrics.count(&queue(number), MessageEvent::Sent, 1));
        let is_listed = |listed: &QueueName| *listed != queue(7);
        metrics.retain_listed(is_listed);
        tokio::time::advance(LABEL_LIFE / 2).await;
        metrics.retain_listed(is_listed);
        metrics.count(&queue(7), MessageEvent::Sent, 1);
        let line = "postrider_messages_sent_total{queue=\"q7\"} 2";
        assert!(metrics.text().contains(line), "a new queue may not be listed yet");
        tokio::time::advance(LABEL_LIFE / 2).await;
        metrics.retain_listed(is_listed);
        assert!(!metrics.text().contains("queue=\"q7\""));
        metrics.count(&queue(MAX_QUEUES), MessageEvent::Sent, 3);
        let text = metrics.text();
        assert!(text.contains("postrider_messages_sent_total{queue=\"q1000\"} 3") && !text.contains(OTHER));
    }
}
