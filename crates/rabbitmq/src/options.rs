//! How a broker is used.

use std::fmt;
use std::time::Duration;

use postrider_core::Limits;

/// How a broker is used.
#[derive(Clone)]
pub struct RabbitmqOptions {
    /// The virtual host; `None` is the one that the URL names.
    pub vhost: Option<String>,
    /// What kind of queues are made.
    pub queue_type: QueueType,
    /// How many partitions a queue has whose messages have keys. Every process must say the same.
    pub partitions: u32,
    /// How many messages one receive takes from the broker at most.
    pub prefetch_count: u16,
    /// How often the connection shows that it is alive.
    pub heartbeat: Duration,
    /// How long connecting may take.
    pub connection_timeout: Duration,
    /// The broker's `consumer_timeout`: it takes back what was not settled for so long, with everything else that was
    /// received from the same queue.
    pub consumer_timeout: Duration,
    /// Where the broker's management interface answers; `None` looks on the broker's host, on the usual port.
    pub management_url: Option<String>,
    /// A file with the certificates that an `amqps` broker's certificate is checked against; `None` takes the system's.
    pub ca_file: Option<String>,
    /// Whether a send makes a queue that is missing.
    pub create_queues: bool,
    /// The largest body and headers.
    pub limits: Limits,
    /// What the broker calls this connection.
    pub connection_name: String,
}

impl fmt::Debug for RabbitmqOptions {
    /// Without the password that `management_url` may have.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = |url: &String| match url.rsplit_once('@') {
            Some((_, address)) => format!("***@{address}"),
            None => url.clone(),
        };
        f.debug_struct("RabbitmqOptions")
            .field("vhost", &self.vhost)
            .field("queue_type", &self.queue_type)
            .field("partitions", &self.partitions)
            .field("prefetch_count", &self.prefetch_count)
            .field("heartbeat", &self.heartbeat)
            .field("connection_timeout", &self.connection_timeout)
            .field("consumer_timeout", &self.consumer_timeout)
            .field("management_url", &self.management_url.as_ref().map(shown))
            .field("ca_file", &self.ca_file)
            .field("create_queues", &self.create_queues)
            .field("limits", &self.limits)
            .field("connection_name", &self.connection_name)
            .finish()
    }
}

/// A kind of queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum QueueType {
    /// Replicated, and counts its deliveries.
    #[default]
    Quorum,
    /// On one node, and counts nothing.
    Classic,
}

impl QueueType {
    /// The kind's name in the broker's arguments.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Quorum => "quorum",
            Self::Classic => "classic",
        }
    }
}

impl Default for RabbitmqOptions {
    fn default() -> Self {
        Self {
            vhost: None,
            queue_type: QueueType::Quorum,
            partitions: 8,
            prefetch_count: 200,
            heartbeat: Duration::from_secs(60),
            connection_timeout: Duration::from_secs(30),
            consumer_timeout: Duration::from_secs(1800),
            management_url: None,
            ca_file: None,
            create_queues: true,
            limits: Limits::default(),
            connection_name: "postrider".to_owned(),
        }
    }
}

impl RabbitmqOptions {
    /// How long something may stay unsettled before the broker takes it back. The broker looks once a minute.
    pub(crate) fn longest_hold(&self) -> Duration {
        self.consumer_timeout.saturating_sub(Duration::from_secs(120)).max(Duration::from_secs(1))
    }

    /// How long a message with a key may wait in a worker's hand: enough is left for its lease.
    pub(crate) fn longest_wait_in_hand(&self) -> Duration {
        self.longest_hold().mul_f64(0.7)
    }
}
