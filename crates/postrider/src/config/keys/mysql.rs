//! MariaDB and MySQL.

use postrider_core::message::MAX_DURATION;

use super::{HOUR, Key, MILLISECOND, MYSQL_URL, SECOND, count, seconds};
use crate::config::kind::Kind;

pub(super) const KEYS: &[Key] = &[
    Key {
        name: MYSQL_URL,
        kind: Kind::Url(|draft| &mut draft.store.mysql_url),
        meaning: "The database's address, like `mysql://user@host/database`.",
    },
    count(
        "common.messaging.mysql.pool_size",
        |draft| &mut draft.common.messaging.mysql.pool_size,
        (1, 10_000),
        "Upper bound of open connections.",
    ),
    Key {
        name: "common.messaging.mysql.archive",
        kind: Kind::Choice(|draft| &mut draft.common.messaging.mysql.archive),
        meaning: "Which messages are archived: `all`, only purged dead letters (`failed`), or `none`.",
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
        "Poll interval of a waiting receiver, for messages of other processes.",
    ),
    seconds(
        "common.messaging.mysql.connection_timeout_seconds",
        |draft| &mut draft.common.messaging.mysql.connection_timeout,
        (MILLISECOND, HOUR),
        "Time limit of connecting, and of waiting for a free connection.",
    ),
    seconds(
        "common.messaging.mysql.statement_timeout_seconds",
        |draft| &mut draft.common.messaging.mysql.statement_timeout,
        (MILLISECOND, HOUR),
        "Time limit of a step of a transaction.",
    ),
];
