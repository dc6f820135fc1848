//! RabbitMQ.

use std::time::Duration;

use postrider_core::message::MAX_DURATION;

use super::{HOUR, Key, MILLISECOND, RABBITMQ_URL, RABBITMQ_VHOST, SECOND, count, seconds};
use crate::config::kind::Kind;

/// The largest number of seconds that AMQP can say.
const AMQP_HEARTBEAT: Duration = Duration::from_secs(u16::MAX as u64);

pub(super) const KEYS: &[Key] = &[
    Key {
        name: RABBITMQ_URL,
        kind: Kind::Url(|draft| &mut draft.store.rabbitmq_url),
        meaning: "The broker's address. Without it: a broker on this machine with its default user.",
    },
    Key {
        name: RABBITMQ_VHOST,
        kind: Kind::OptionalText(|draft| &mut draft.common.messaging.rabbitmq.vhost),
        meaning: "The virtual host, when the URL names none. Without both: `/`.",
    },
    Key {
        name: "common.messaging.rabbitmq.queue_type",
        kind: Kind::Choice(|draft| &mut draft.common.messaging.rabbitmq.queue_type),
        meaning: "Type of new queues. Quorum queues are replicated and count every delivery; classic ones are on one \
                  node and do not count deliveries that end with their worker.",
    },
    count(
        "common.messaging.rabbitmq.partitions",
        |draft| &mut draft.common.messaging.rabbitmq.partitions,
        (1, 1024),
        "Number of partitions for the ordering keys of one queue. Every program must use the same.",
    ),
    count(
        "common.messaging.rabbitmq.prefetch_count",
        |draft| &mut draft.common.messaging.rabbitmq.prefetch_count,
        (1, u16::MAX as u32),
        "Upper bound of messages that one receive takes from the broker.",
    ),
    seconds(
        "common.messaging.rabbitmq.heartbeat_seconds",
        |draft| &mut draft.common.messaging.rabbitmq.heartbeat,
        (SECOND, AMQP_HEARTBEAT),
        "Heartbeat interval of the connection. Parts of a second are rounded up.",
    ),
    seconds(
        "common.messaging.rabbitmq.connection_timeout_seconds",
        |draft| &mut draft.common.messaging.rabbitmq.connection_timeout,
        (MILLISECOND, HOUR),
        "Time limit of connecting.",
    ),
    seconds(
        "common.messaging.rabbitmq.consumer_timeout_seconds",
        |draft| &mut draft.common.messaging.rabbitmq.consumer_timeout,
        (SECOND, MAX_DURATION),
        "The value of `consumer_timeout` in the broker's configuration: the broker takes a message back after it, so \
         no lease can be longer.",
    ),
    Key {
        name: "common.messaging.rabbitmq.management_url",
        kind: Kind::Url(|draft| &mut draft.common.messaging.rabbitmq.management_url),
        meaning: "The management interface, like `http://host:15672`. Without it: the usual port of the broker's \
                  host, with \
                  the broker's user.",
    },
    Key {
        name: "common.messaging.rabbitmq.ca_file",
        kind: Kind::Path(|draft| &mut draft.common.messaging.rabbitmq.ca_file),
        meaning: "CA certificates (PEM) for an `amqps` broker's certificate. Without it: the system's.",
    },
];
