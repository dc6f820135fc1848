//! PGMQ.

use postrider_core::message::MAX_DURATION;

use super::{HOUR, Key, MILLISECOND, PGMQ_URL, SECOND, count, seconds};
use crate::config::kind::Kind;

pub(super) const KEYS: &[Key] = &[
    Key {
        name: PGMQ_URL,
        kind: Kind::Url(|draft| &mut draft.store.pgmq_url),
        meaning: "The database's address, like `pgmq+postgres://user@host/database`.",
    },
    Key {
        name: "common.messaging.pgmq.schema",
        kind: Kind::Text(|draft| &mut draft.common.messaging.pgmq.schema),
        meaning: "The schema for data that PGMQ has no tables for: paused queues, dedup keys and long delays.",
    },
    count(
        "common.messaging.pgmq.pool_size",
        |draft| &mut draft.common.messaging.pgmq.pool_size,
        (1, 10_000),
        "Upper bound of open connections; listening for wake-ups takes one more.",
    ),
    Key {
        name: "common.messaging.pgmq.archive",
        kind: Kind::Choice(|draft| &mut draft.common.messaging.pgmq.archive),
        meaning: "Which messages are kept in PGMQ's archives: `all`, only purged dead letters (`failed`), or `none`.",
    },
    Key {
        name: "common.messaging.pgmq.archive_retention",
        kind: Kind::Duration {
            at: |draft| &mut draft.common.messaging.pgmq.archive_retention,
            range: (SECOND, MAX_DURATION),
        },
        meaning: "How long they are kept. Messages archived by other clients stay.",
    },
    Key {
        name: "common.messaging.pgmq.enable_pg_notify",
        kind: Kind::Flag(|draft| &mut draft.common.messaging.pgmq.enable_pg_notify),
        meaning: "Whether a send wakes waiting receivers by `NOTIFY`; false for a pooler that assigns connections per \
                  transaction.",
    },
    seconds(
        "common.messaging.pgmq.notify_throttle_seconds",
        |draft| &mut draft.common.messaging.pgmq.notify_throttle,
        (MILLISECOND, HOUR),
        "Shortest time between two notifications of a queue.",
    ),
    seconds(
        "common.messaging.pgmq.poll_interval_seconds",
        |draft| &mut draft.common.messaging.pgmq.poll_interval,
        (MILLISECOND, HOUR),
        "Poll interval of a waiting receiver, for messages of other clients.",
    ),
    Key {
        name: "common.messaging.pgmq.long_delay",
        kind: Kind::Duration { at: |draft| &mut draft.common.messaging.pgmq.long_delay, range: (SECOND, MAX_DURATION) },
        meaning: "A message without keys that is due later than this waits in a separate table, where it does not \
                  slow readers.",
    },
    seconds(
        "common.messaging.pgmq.connection_timeout_seconds",
        |draft| &mut draft.common.messaging.pgmq.connection_timeout,
        (MILLISECOND, HOUR),
        "Time limit of connecting, and of waiting for a free connection.",
    ),
    seconds(
        "common.messaging.pgmq.statement_timeout_seconds",
        |draft| &mut draft.common.messaging.pgmq.statement_timeout,
        (MILLISECOND, HOUR),
        "Time limit of a statement.",
    ),
];
