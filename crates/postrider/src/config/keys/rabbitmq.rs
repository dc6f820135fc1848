//! RabbitMQ.

use std::time::Duration;

use super::{HOUR, Key, MILLISECOND, RABBITMQ_URL, SECOND, count, seconds};
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
        name: "common.messaging.rabbitmq.vhost",
        kind: Kind::Text(|draft| &mut draft.common.messaging.rabbitmq.vhost),
        meaning: "The virtual host.",
    },
    count(
        "common.messaging.rabbitmq.prefetch_count",
        |draft| &mut draft.common.messaging.rabbitmq.prefetch_count,
        (1, u16::MAX as u32),
        "How many messages the broker hands over before the first of them is settled.",
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
];
