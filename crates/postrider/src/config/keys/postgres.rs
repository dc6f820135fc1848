//! PostgreSQL.

use postrider_core::message::MAX_DURATION;

use super::{HOUR, Key, MILLISECOND, POSTGRES_URL, SECOND, count, seconds};
use crate::config::kind::Kind;

pub(super) const KEYS: &[Key] = &[
    Key {
        name: POSTGRES_URL,
        kind: Kind::Url(|draft| &mut draft.store.postgres_url),
        meaning: "The database's address, like `postgres://user@host/database`.",
    },
    Key {
        name: "common.messaging.postgres.schema",
        kind: Kind::Text(|draft| &mut draft.common.messaging.postgres.schema),
        meaning: "The schema that holds the tables. It is made when it is missing.",
    },
    count(
        "common.messaging.postgres.pool_size",
        |draft| &mut draft.common.messaging.postgres.pool_size,
        (1, 10_000),
        "Upper bound of open connections. Listening takes one more.",
    ),
    Key {
        name: "common.messaging.postgres.archive",
        kind: Kind::Choice(|draft| &mut draft.common.messaging.postgres.archive),
        meaning: "Which messages are archived: `all`, only purged dead letters (`failed`), or `none`.",
    },
    Key {
        name: "common.messaging.postgres.archive_retention",
        kind: Kind::Duration {
            at: |draft| &mut draft.common.messaging.postgres.archive_retention,
            range: (SECOND, MAX_DURATION),
        },
        meaning: "How long they are kept.",
    },
    Key {
        name: "common.messaging.postgres.poll_only",
        kind: Kind::Flag(|draft| &mut draft.common.messaging.postgres.poll_only),
        meaning: "Whether no session state is used: no `LISTEN`, no settings. Needed behind a pooler that assigns \
                  connections per transaction, such as PgBouncer.",
    },
    seconds(
        "common.messaging.postgres.poll_interval_seconds",
        |draft| &mut draft.common.messaging.postgres.poll_interval,
        (MILLISECOND, HOUR),
        "Poll interval of a waiting receiver, for messages without a notification.",
    ),
    seconds(
        "common.messaging.postgres.connection_timeout_seconds",
        |draft| &mut draft.common.messaging.postgres.connection_timeout,
        (MILLISECOND, HOUR),
        "Time limit of connecting, and of waiting for a free connection.",
    ),
    seconds(
        "common.messaging.postgres.statement_timeout_seconds",
        |draft| &mut draft.common.messaging.postgres.statement_timeout,
        (MILLISECOND, HOUR),
        "Time limit of a statement.",
    ),
];
