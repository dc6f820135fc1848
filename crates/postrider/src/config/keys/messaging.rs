//! How messages are kept and received, whatever the store.

use std::time::Duration;

use postrider_core::DEAD_LETTER_SUFFIX;
use postrider_core::message::MAX_DURATION;

use super::{DEFAULT_BATCH_SIZE, GIB, Key, MAX_BATCH_SIZE, MILLISECOND, PROVIDER, URL, count, seconds};
use crate::config::kind::Kind;

const DAY: Duration = Duration::from_secs(24 * 3600);
const MOST_MESSAGES: u32 = 10_000;

pub(super) const KEYS: &[Key] = &[
    Key {
        name: PROVIDER,
        kind: Kind::Choice(|draft| &mut draft.store.provider),
        meaning: "Which store. Its address is in its own section, or in `url`.",
    },
    Key {
        name: URL,
        kind: Kind::Url(|draft| &mut draft.store.url),
        meaning: "Which store, with its address. Without it and `provider`: an embedded file in the user's data \
                  folder.",
    },
    seconds(
        "common.messaging.default_visibility_timeout_seconds",
        |draft| &mut draft.common.messaging.default_visibility_timeout,
        (MILLISECOND, MAX_DURATION),
        "Default length of a lease.",
    ),
    count(
        DEFAULT_BATCH_SIZE,
        |draft| &mut draft.common.messaging.default_batch_size,
        (1, MOST_MESSAGES),
        "Number of messages of an application's receive with the configured options (`receive_options`). The \
         program's commands do not read it: each has its own flag.",
    ),
    count(
        MAX_BATCH_SIZE,
        |draft| &mut draft.common.messaging.max_batch_size,
        (1, MOST_MESSAGES),
        "Upper bound of messages of one receive of the program or of an application. A server returns at most 1000 \
         with one request, also when this is higher.",
    ),
    Key {
        name: "common.messaging.create_queues",
        kind: Kind::Flag(|draft| &mut draft.common.messaging.create_queues),
        meaning: "Whether a send creates a missing queue.",
    },
    Key {
        name: "common.messaging.auto_migrate",
        kind: Kind::Flag(|draft| &mut draft.common.messaging.auto_migrate),
        meaning: "Whether connecting makes a missing file and missing tables, and migrates older ones.",
    },
    count(
        "common.messaging.max_message_bytes",
        |draft| &mut draft.common.messaging.max_message_bytes,
        (1, GIB),
        "The largest body of a message. A store's own limit may be lower.",
    ),
    Key {
        name: "common.messaging.dead_letter.enabled",
        kind: Kind::FixedFlag(true, "nothing is ever dropped without a record, so dead letters cannot be turned off"),
        meaning: "Always on: no message is dropped without a record.",
    },
    count(
        "common.messaging.dead_letter.max_receive_count",
        |draft| &mut draft.common.messaging.dead_letter.max_receive_count,
        (1, 1_000_000),
        "How often a message is delivered before it is dead-lettered.",
    ),
    Key {
        name: "common.messaging.dead_letter.queue_suffix",
        kind: Kind::FixedText(
            DEAD_LETTER_SUFFIX,
            "two programs with different suffixes would disagree about which queues hold dead letters",
        ),
        meaning: "Suffix of the name of a queue's dead letters. It is the same everywhere.",
    },
    count(
        "common.messaging.circuit_breaker.failure_threshold",
        |draft| &mut draft.common.messaging.circuit_breaker.failure_threshold,
        (1, 1_000_000),
        "Number of consecutive failures that open it. Calls that fail together are one failure.",
    ),
    count(
        "common.messaging.circuit_breaker.success_threshold",
        |draft| &mut draft.common.messaging.circuit_breaker.success_threshold,
        (1, 1000),
        "Number of consecutive health checks that close it.",
    ),
    seconds(
        "common.messaging.circuit_breaker.timeout_seconds",
        |draft| &mut draft.common.messaging.circuit_breaker.timeout,
        (MILLISECOND, DAY),
        "Longest time of refusals before the store is tried again. The first try comes after 100 ms, each further one \
         after twice the time.",
    ),
];
