//! Options of a connection to a broker.

use std::fmt;
use std::time::Duration;

use postrider_core::Limits;

/// Options of a connection to a broker.
#[derive(Clone)]
pub struct RabbitmqOptions {
    /// Virtual host; `None` means the one in the URL.
    pub vhost: Option<String>,
    /// Type of the queues that are created.
    pub queue_type: QueueType,
    /// Number of partitions of a queue whose messages have ordering keys. Must be the same in every process.
    pub partitions: u32,
    /// Maximum number of messages of one receive.
    pub prefetch_count: u16,
    /// Heartbeat interval of the connection.
    pub heartbeat: Duration,
    /// Time limit of a connect.
    pub connection_timeout: Duration,
    /// The broker's `consumer_timeout`: a message that is not settled within it is requeued, together with all other messages
    /// received from the same queue.
    pub consumer_timeout: Duration,
    /// URL of the broker's management interface; `None` means the broker's host and the default port.
    pub management_url: Option<String>,
    /// File with the CA certificates that the certificate of an `amqps` broker is verified against; `None` means the
    /// system's.
    pub ca_file: Option<String>,
    /// Whether a send creates a missing queue.
    pub create_queues: bool,
    /// Limits of bodies, headers, delays and leases.
    pub limits: Limits,
    /// Name of the connection in the broker's management interface.
    pub connection_name: String,
}

impl fmt::Debug for RabbitmqOptions {
    /// Omits the password that `management_url` may have.
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

/// Type of a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum QueueType {
    /// Replicated, and counts deliveries.
    #[default]
    Quorum,
    /// On one node, and does not count deliveries.
    Classic,
}

impl QueueType {
    /// Returns the type's name in queue arguments.
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
    /// Longest time from delivery to settlement. Below `consumer_timeout`, which the broker checks once a minute.
    pub(crate) fn longest_hold(&self) -> Duration {
        self.consumer_timeout.saturating_sub(Duration::from_secs(120)).max(Duration::from_secs(1))
    }

    /// Longest time that a message with a key may be parked. Leaves enough time for its lease.
    pub(crate) fn longest_park(&self) -> Duration {
        self.longest_hold().mul_f64(0.7)
    }
}
