//! MariaDB and MySQL.

use postrider_core::message::MAX_DURATION;

use super::{HOUR, Key, MILLISECOND, MYSQL_URL, SECOND, count, seconds};
use crate::config::kind::Kind;

pub(super) const KEYS: &[Key] = &[
    Key {
        name: MYSQL_URL,
        kind: Kind::Url(|draft| &mut draft.asked.mysql_url),
        meaning: "The database's address, like `mysql://user@host/database`.",
    },
    count(
        "common.messaging.mysql.pool_size",
        |draft| &mut draft.common.messaging.mysql.pool_size,
        (1, 10_000),
        "How many connections are open at most.",
    ),
    Key {
        name: "common.messaging.mysql.archive",
        kind: Kind::Choice(|draft| &mut draft.common.messaging.mysql.archive),
        meaning: "Which messages are kept after their end: `all`, only purged dead letters (`failed`), or `none`.",
    },
    Key {
        name: "common.messaging.mysql.archive_retention",
        kind: Kind::Duration {
            at: |draft| &mut draft.common.messaging.mysql.archive_retention,
            range: (SECOND, MAX_DURATION),
        },
        meaning: "How long they are kept.",
    },
    seconds(
        "common.messaging.mysql.poll_interval_seconds",
        |draft| &mut draft.common.messaging.mysql.poll_interval,
        (MILLISECOND, HOUR),
        "How long a waiting receiver goes without a look of its own, for what other processes send.",
    ),
    seconds(
        "common.messaging.mysql.connection_timeout_seconds",
        |draft| &mut draft.common.messaging.mysql.connection_timeout,
        (MILLISECOND, HOUR),
        "How long connecting may take, and waiting for a free connection.",
    ),
    seconds(
        "common.messaging.mysql.statement_timeout_seconds",
        |draft| &mut draft.common.messaging.mysql.statement_timeout,
        (MILLISECOND, HOUR),
        "How long a step of a transaction may take before it is given up.",
    ),
];
