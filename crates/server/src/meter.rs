//! What goes through the server, counted.
//!
//! Labels are bounded: a queue beyond the first thousand is counted as `other`, a route is named by its pattern and never
//! by a path, and nothing is ever labelled by an id.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
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

/// So many queues have a label of their own.
const MOST_QUEUES: usize = 1000;

/// The label of all others.
const OTHER: &str = "other";

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

/// What is counted of a queue.
#[derive(Debug, Default)]
pub(crate) struct QueueCounts {
    pub(crate) sent: AtomicU64,
    pub(crate) received: AtomicU64,
    pub(crate) acked: AtomicU64,
    pub(crate) retried: AtomicU64,
    pub(crate) released: AtomicU64,
    pub(crate) dead_lettered: AtomicU64,
    pub(crate) lease_lost: AtomicU64,
}

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

impl QueueCounts {
    fn of(&self, what: Happened) -> &AtomicU64 {
        match what {
            Happened::Sent => &self.sent,
            Happened::Received => &self.received,
            Happened::Acked => &self.acked,
            Happened::Retried => &self.retried,
            Happened::Released => &self.released,
            Happened::DeadLettered => &self.dead_lettered,
            Happened::LeaseLost => &self.lease_lost,
        }
    }

    /// The count, for whoever shows it.
    pub(crate) fn get(&self, what: Happened) -> u64 {
        self.of(what).load(Ordering::Relaxed)
    }
}

type NewHistogram = fn() -> Histogram;

fn seconds() -> Histogram {
    // Half a millisecond to a minute.
    Histogram::new(exponential_buckets(0.0005, 2.0, 18))
}

/// Counts, and shows what it has counted.
pub(crate) struct Meter {
    registry: Registry,
    /// A lock, held for a look.
    counts: Mutex<HashMap<String, Arc<QueueCounts>>>,
    messages: [(Happened, Family<Labels, Counter>); 7],
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
        let names = [
            (Happened::Sent, "messages_sent", "Messages that were accepted"),
            (Happened::Received, "messages_received", "Deliveries to clients"),
            (Happened::Acked, "messages_acked", "Messages that were handled"),
            (Happened::Retried, "messages_retried", "Deliveries that failed and come back"),
            (Happened::Released, "messages_released", "Deliveries that were given back unstarted"),
            (Happened::DeadLettered, "messages_dead_lettered", "Messages that clients gave up"),
            (Happened::LeaseLost, "messages_lease_lost", "Settles and extensions whose lease was over"),
        ];
        let messages = names.map(|(what, name, about)| {
            let family = Family::<Labels, Counter>::default();
            registry.register(name, about, family.clone());
            (what, family)
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
            counts: Mutex::default(),
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
    fn of(&self, queue: &QueueName) -> (String, Arc<QueueCounts>) {
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        let name = match counts.contains_key(queue.as_str()) || counts.len() < MOST_QUEUES {
            true => queue.as_str(),
            false => OTHER,
        };
        (name.to_owned(), counts.entry(name.to_owned()).or_default().clone())
    }

    /// Something happened to so many messages of a queue.
    pub(crate) fn count(&self, queue: &QueueName, what: Happened, many: u64) {
        if many == 0 {
            return;
        }
        let (name, counts) = self.of(queue);
        counts.of(what).fetch_add(many, Ordering::Relaxed);
        if let Some((_, family)) = self.messages.iter().find(|(own, _)| *own == what) {
            family.get_or_create(&Labels(vec![("queue", name)])).inc_by(many);
        }
    }

    /// A message was delivered for the first time, so long after it was sent.
    pub(crate) fn waited(&self, queue: &QueueName, age: Duration) {
        let (name, _) = self.of(queue);
        self.waited.get_or_create(&Labels(vec![("queue", name)])).observe(age.as_secs_f64());
    }

    /// The counts of a queue so far; `None` when nothing of it went through here.
    pub(crate) fn counts(&self, queue: &str) -> Option<Arc<QueueCounts>> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner).get(queue).cloned()
    }

    /// A queue is like this now. Those beyond the first thousand are not shown one by one.
    pub(crate) fn looked_at(&self, stats: &QueueStats) {
        let (name, _) = self.of(&stats.queue);
        if name == OTHER {
            return;
        }
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

    pub(crate) fn request(&self, route: &str, method: &str, status: u16, took: Duration) {
        let labels = vec![("route", route.to_owned()), ("method", method.to_owned()), ("status", status.to_string())];
        self.requests.get_or_create(&Labels(labels)).inc();
        let labels = vec![("route", route.to_owned()), ("method", method.to_owned())];
        self.request_seconds.get_or_create(&Labels(labels)).observe(took.as_secs_f64());
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
        assert!(text.contains("postrider_messages_sent_total{queue=\"other\"} 50"), "{text}");
        assert_eq!(text.matches("postrider_messages_sent_total{").count(), MOST_QUEUES + 1);
        assert!(text.lines().filter(|line| !line.starts_with('#')).all(|line| line.starts_with("postrider_")));
    }
}
