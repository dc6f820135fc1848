//! PGMQ.

use postrider_core::message::MAX_DURATION;

use super::{HOUR, Key, MILLISECOND, PGMQ_URL, SECOND, count, seconds};
use crate::config::kind::Kind;

pub(super) const KEYS: &[Key] = &[
    Key {
        name: PGMQ_URL,
        kind: Kind::Url(|draft| &mut draft.asked.pgmq_url),
        meaning: "The database's address, like `pgmq+postgres://user@host/database`.",
    },
    Key {
        name: "common.messaging.pgmq.schema",
        kind: Kind::Text(|draft| &mut draft.common.messaging.pgmq.schema),
        meaning: "The schema that holds what PGMQ has no place for: paused queues, dedup keys and long delays.",
    },
    count(
        "common.messaging.pgmq.pool_size",
        |draft| &mut draft.common.messaging.pgmq.pool_size,
        (1, 10_000),
        "How many connections are open at most; listening for wake-ups takes one more.",
    ),
    Key {
        name: "common.messaging.pgmq.archive",
        kind: Kind::Choice(|draft| &mut draft.common.messaging.pgmq.archive),
        meaning: "Which messages are kept after their end, in PGMQ's archives: `all`, only purged dead letters \
                  (`failed`), or `none`.",
    },
    Key {
        name: "common.messaging.pgmq.archive_retention",
        kind: Kind::Duration {
            at: |draft| &mut draft.common.messaging.pgmq.archive_retention,
            range: (SECOND, MAX_DURATION),
        },
        meaning: "How long they are kept. What other clients have archived stays.",
    },
    Key {
        name: "common.messaging.pgmq.enable_pg_notify",
        kind: Kind::Flag(|draft| &mut draft.common.messaging.pgmq.enable_pg_notify),
        meaning: "Whether a send wakes waiting receivers by `NOTIFY`; false for a pooler that hands out connections for \
                  a transaction at a time.",
    },
    seconds(
        "common.messaging.pgmq.notify_throttle_seconds",
        |draft| &mut draft.common.messaging.pgmq.notify_throttle,
        (MILLISECOND, HOUR),
        "How long after one notification of a queue PGMQ sends no other.",
    ),
    seconds(
        "common.messaging.pgmq.poll_interval_seconds",
        |draft| &mut draft.common.messaging.pgmq.poll_interval,
        (MILLISECOND, HOUR),
        "How long a waiting receiver goes without a look of its own, for what others send.",
    ),
    Key {
        name: "common.messaging.pgmq.long_delay",
        kind: Kind::Duration { at: |draft| &mut draft.common.messaging.pgmq.long_delay, range: (SECOND, MAX_DURATION) },
        meaning: "A message without keys that is due later than this waits in a table beside the queue, where it slows \
                  no reader.",
    },
    seconds(
        "common.messaging.pgmq.connection_timeout_seconds",
        |draft| &mut draft.common.messaging.pgmq.connection_timeout,
        (MILLISECOND, HOUR),
        "How long connecting may take, and waiting for a free connection.",
    ),
    seconds(
        "common.messaging.pgmq.statement_timeout_seconds",
        |draft| &mut draft.common.messaging.pgmq.statement_timeout,
        (MILLISECOND, HOUR),
        "How long a statement may take before it is given up.",
    ),
];
