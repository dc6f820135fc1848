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
        kind: Kind::Url(|draft| &mut draft.asked.rabbitmq_url),
        meaning: "The broker's address. Without it: the one of a broker on this machine, as it is installed.",
    },
    Key {
        name: RABBITMQ_VHOST,
        kind: Kind::OptionalText(|draft| &mut draft.common.messaging.rabbitmq.vhost),
        meaning: "The virtual host, when the URL names none. Without both: `/`.",
    },
    Key {
        name: "common.messaging.rabbitmq.queue_type",
        kind: Kind::Choice(|draft| &mut draft.common.messaging.rabbitmq.queue_type),
        meaning: "What kind of queues are made. Quorum queues are replicated and count every delivery; classic ones live \
                  on one node and count none that ends with its worker.",
    },
    count(
        "common.messaging.rabbitmq.partitions",
        |draft| &mut draft.common.messaging.rabbitmq.partitions,
        (1, 1024),
        "How many queues the messages with ordering keys of one queue are spread over. Every program must say the same.",
    ),
    count(
        "common.messaging.rabbitmq.prefetch_count",
        |draft| &mut draft.common.messaging.rabbitmq.prefetch_count,
        (1, u16::MAX as u32),
        "How many messages one receive takes from the broker at most.",
    ),
    seconds(
        "common.messaging.rabbitmq.heartbeat_seconds",
        |draft| &mut draft.common.messaging.rabbitmq.heartbeat,
        (SECOND, AMQP_HEARTBEAT),
        "How often the connection shows that it is alive. Parts of a second are rounded up.",
    ),
    seconds(
        "common.messaging.rabbitmq.connection_timeout_seconds",
        |draft| &mut draft.common.messaging.rabbitmq.connection_timeout,
        (MILLISECOND, HOUR),
        "How long connecting may take.",
    ),
    seconds(
        "common.messaging.rabbitmq.consumer_timeout_seconds",
        |draft| &mut draft.common.messaging.rabbitmq.consumer_timeout,
        (SECOND, MAX_DURATION),
        "What `consumer_timeout` in the broker's configuration says: after that long it takes a message back, so no \
         lease can be longer.",
    ),
    Key {
        name: "common.messaging.rabbitmq.management_url",
        kind: Kind::Url(|draft| &mut draft.common.messaging.rabbitmq.management_url),
        meaning: "The management interface, like `http://host:15672`. Without it: the usual port of the broker's host, with \
                  the broker's user.",
    },
    Key {
        name: "common.messaging.rabbitmq.ca_file",
        kind: Kind::Path(|draft| &mut draft.common.messaging.rabbitmq.ca_file),
        meaning: "The certificates (PEM) that an `amqps` broker's is checked against. Without it: the system's.",
    },
];
