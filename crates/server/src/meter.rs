//! What goes through the server, counted.
//!
//! Labels are bounded: a queue beyond the first thousand is counted as `(other)`, a route is named by its pattern and never
//! by a path, and nothing is ever labelled by an id.

use std::collections::HashMap;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use postrider::{QueueName, QueueStats};
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{EncodeLabelSet, LabelSetEncoder};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::{Registry, Unit};
use tokio::time::Instant;

/// So many queues have a label of their own.
const MOST_QUEUES: usize = 1000;

/// The label of all others. No queue has such a name.
const OTHER: &str = "(other)";

/// How long a queue keeps its label that is not listed any more. A store may list a new queue only after a while.
const KEPT: Duration = Duration::from_secs(120);

/// Labels by name and value.
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

/// Something that happened to messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Happened {
    Sent,
    Received,
    Acked,
    Retried,
    Released,
    DeadLettered,
    LeaseLost,
}

/// What is counted of a queue. Looked up once a message, so that nothing is made for a count.
#[derive(Debug)]
pub(crate) struct QueueCounts {
    counters: [Counter; 7],
    waited: Histogram,
    /// Whether it is counted under a name of its own.
    has_name: bool,
    /// Since when the queue is not listed. A lock, held for a look.
    absent: Mutex<Option<Instant>>,
}

impl QueueCounts {
    /// The count, for whoever shows it.
    pub(crate) fn get(&self, what: Happened) -> u64 {
        self.counters[what as usize].get()
    }
}

/// What is counted of a route.
#[derive(Debug)]
struct RouteCounts {
    seconds: Histogram,
    /// By status; a route has a handful. A lock, held for a look.
    by_status: Mutex<Vec<(u16, Counter)>>,
}

type NewHistogram = fn() -> Histogram;

fn seconds() -> Histogram {
    // Half a millisecond to a minute.
    Histogram::new(exponential_buckets(0.0005, 2.0, 18))
}

/// Counts, and shows what it has counted.
pub(crate) struct Meter {
    registry: Registry,
    /// Locks, held for a look.
    counts: RwLock<HashMap<QueueName, Arc<QueueCounts>>>,
    routes: RwLock<HashMap<(String, &'static str), Arc<RouteCounts>>>,
    messages: [Family<Labels, Counter>; 7],
    waited: Family<Labels, Histogram, NewHistogram>,
    depth: Family<Labels, Gauge>,
    oldest: Family<Labels, Gauge<f64, AtomicU64>>,
    requests: Family<Labels, Counter>,
    request_seconds: Family<Labels, Histogram, NewHistogram>,
    connections: Gauge,
    store_up: Gauge,
}

impl std::fmt::Debug for Meter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Meter")
    }
}

impl Meter {
    pub(crate) fn new(provider: &'static str) -> Self {
        let mut registry = Registry::with_prefix("postrider");
        let build = Info::new(Labels(vec![
            ("version", env!("CARGO_PKG_VERSION").to_owned()),
            ("provider", provider.to_owned()),
        ]));
        registry.register("build", "What this server is", build);
        // In the order of `Happened`.
        let names = [
            ("messages_sent", "Messages that were accepted"),
            ("messages_received", "Deliveries to clients"),
            ("messages_acked", "Messages that were handled"),
            ("messages_retried", "Deliveries that failed and come back"),
            ("messages_released", "Deliveries that were given back unstarted"),
            ("messages_dead_lettered", "Messages that clients gave up"),
            ("messages_lease_lost", "Settles and extensions whose lease was over"),
        ];
        let messages = names.map(|(name, about)| {
            let family = Family::<Labels, Counter>::default();
            registry.register(name, about, family.clone());
            family
        });
        let waited = Family::new_with_constructor(seconds as NewHistogram);
        let about = "How long messages had been in their queue when they were first delivered";
        registry.register_with_unit("message_age_at_delivery", about, Unit::Seconds, waited.clone());
        let depth = Family::<Labels, Gauge>::default();
        registry.register("queue_messages", "Messages in a queue, by what they wait for", depth.clone());
        let oldest = Family::<Labels, Gauge<f64, AtomicU64>>::default();
        let about = "How long the oldest ready message has waited";
        registry.register_with_unit("queue_oldest_ready_age", about, Unit::Seconds, oldest.clone());
        let requests = Family::<Labels, Counter>::default();
        registry.register("http_requests", "Requests, by route and status", requests.clone());
        let request_seconds = Family::new_with_constructor(seconds as NewHistogram);
        let about = "How long requests took, long polls included";
        registry.register_with_unit("http_request_duration", about, Unit::Seconds, request_seconds.clone());
        let connections = Gauge::default();
        registry.register("http_connections", "Open connections", connections.clone());
        let store_up = Gauge::default();
        registry.register("store_up", "Whether the store answered when it was last looked at", store_up.clone());
        Self {
            registry,
            counts: RwLock::default(),
            routes: RwLock::default(),
            messages,
            waited,
            depth,
            oldest,
            requests,
            request_seconds,
            connections,
            store_up,
        }
    }

    /// What is counted of a queue, under its own name or that of all others.
    fn of(&self, queue: &QueueName) -> Arc<QueueCounts> {
        if let Some(counts) = self.counts.read().unwrap_or_else(PoisonError::into_inner).get(queue) {
            return counts.clone();
        }
        let mut counts = self.counts.write().unwrap_or_else(PoisonError::into_inner);
        let has_name = counts.len() < MOST_QUEUES;
        let labels = Labels(vec![("queue", if has_name { queue.as_str() } else { OTHER }.to_owned())]);
        let made = Arc::new(QueueCounts {
            counters: self.messages.each_ref().map(|family| family.get_or_create(&labels).clone()),
            waited: self.waited.get_or_create(&labels).clone(),
            has_name,
            absent: Mutex::default(),
        });
        // What has no name of its own is not remembered by one, or memory would grow with every name.
        if has_name { counts.entry(queue.clone()).or_insert(made).clone() } else { made }
    }

    /// Something happened to so many messages of a queue.
    pub(crate) fn count(&self, queue: &QueueName, what: Happened, many: u64) {
        if many > 0 {
            self.of(queue).counters[what as usize].inc_by(many);
        }
    }

    /// A message was delivered for the first time, so long after it was sent.
    pub(crate) fn waited(&self, queue: &QueueName, age: Duration) {
        self.of(queue).waited.observe(age.as_secs_f64());
    }

    /// The counts of a queue so far; `None` when nothing of it went through here.
    pub(crate) fn counts(&self, queue: &QueueName) -> Option<Arc<QueueCounts>> {
        self.counts.read().unwrap_or_else(PoisonError::into_inner).get(queue).cloned()
    }

    /// A queue is like this now. Those beyond the first thousand are not shown one by one.
    pub(crate) fn looked_at(&self, stats: &QueueStats) {
        if !self.of(&stats.queue).has_name {
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

    /// A queue is no more: its gauges would stay where they were.
    pub(crate) fn gone(&self, queue: &str) {
        for state in ["ready", "in_flight", "delayed", "dead"] {
            self.depth.remove(&Labels(vec![("queue", queue.to_owned()), ("state", state.to_owned())]));
        }
        self.oldest.remove(&Labels(vec![("queue", queue.to_owned())]));
    }

    /// Queues that are listed no more give their labels back, for others to have.
    pub(crate) fn keep(&self, is_listed: impl Fn(&QueueName) -> bool) {
        let mut counts = self.counts.write().unwrap_or_else(PoisonError::into_inner);
        counts.retain(|queue, own| {
            let mut absent = own.absent.lock().unwrap_or_else(PoisonError::into_inner);
            if is_listed(queue) {
                *absent = None;
                return true;
            }
            if absent.get_or_insert_with(Instant::now).elapsed() < KEPT {
                return true;
            }
            let labels = Labels(vec![("queue", queue.as_str().to_owned())]);
            for family in &self.messages {
                family.remove(&labels);
            }
            self.waited.remove(&labels);
            false
        });
    }

    /// A request of a route has ended.
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
        // Routes are those of the table, and methods a handful of words: there are a hundred of them.
        let name = (route.to_owned(), method);
        if let Some(counts) = self.routes.read().unwrap_or_else(PoisonError::into_inner).get(&name) {
            return counts.clone();
        }
        let labels = Labels(vec![("route", route.to_owned()), ("method", method.to_owned())]);
        let seconds = self.request_seconds.get_or_create(&labels).clone();
        let made = Arc::new(RouteCounts { seconds, by_status: Mutex::default() });
        self.routes.write().unwrap_or_else(PoisonError::into_inner).entry(name).or_insert(made).clone()
    }

    pub(crate) fn connections(&self) -> &Gauge {
        &self.connections
    }

    pub(crate) fn store_up(&self, is_up: bool) {
        self.store_up.set(is_up.into());
    }

    /// Everything, as Prometheus reads it.
    pub(crate) fn text(&self) -> String {
        let mut text = String::new();
        // Writing to a string cannot fail.
        let _ = encode(&mut text, &self.registry);
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_bounded_and_names_begin_alike() {
        let meter = Meter::new("memory");
        for number in 0..MOST_QUEUES + 50 {
            meter.count(&QueueName::new(format!("q{number}")).unwrap(), Happened::Sent, 1);
        }
        meter.request("/v1/queues/{queue}", "get", 200, Duration::from_millis(3));
        let text = meter.text();
        assert!(text.contains("postrider_build_info{"), "{text}");
        assert!(text.contains("postrider_messages_sent_total{queue=\"(other)\"} 50"), "{text}");
        assert_eq!(text.matches("postrider_messages_sent_total{").count(), MOST_QUEUES + 1);
        assert!(text.lines().filter(|line| !line.starts_with('#')).all(|line| line.starts_with("postrider_")));
        assert!(QueueName::new(OTHER).is_err(), "a queue of that name would be counted with the others");
    }

    #[tokio::test(start_paused = true)]
    async fn a_queue_that_is_gone_gives_its_label_to_another() {
        let meter = Meter::new("memory");
        let queue = |number: usize| QueueName::new(format!("q{number}")).unwrap();
        (0..MOST_QUEUES).for_each(|number| meter.count(&queue(number), Happened::Sent, 1));
        let is_listed = |listed: &QueueName| *listed != queue(7);
        meter.keep(is_listed);
        tokio::time::advance(KEPT / 2).await;
        meter.keep(is_listed);
        meter.count(&queue(7), Happened::Sent, 1);
        let line = "postrider_messages_sent_total{queue=\"q7\"} 2";
        assert!(meter.text().contains(line), "it may not be listed yet");
        tokio::time::advance(KEPT / 2).await;
        meter.keep(is_listed);
        assert!(!meter.text().contains("queue=\"q7\""));
        meter.count(&queue(MOST_QUEUES), Happened::Sent, 3);
        let text = meter.text();
        assert!(text.contains("postrider_messages_sent_total{queue=\"q1000\"} 3") && !text.contains(OTHER));
    }
}
