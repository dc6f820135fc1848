//! The embedded file.

use postrider_core::message::MAX_DURATION;

use super::{GIB, HOUR, Key, MILLISECOND, SECOND, SQLITE_PATH, count, seconds};
use crate::config::kind::Kind;

pub(super) const KEYS: &[Key] = &[
    Key {
        name: SQLITE_PATH,
        kind: Kind::Path(|draft| &mut draft.store.sqlite_path),
        meaning: "The file. A relative path begins at the current folder; without it, the file is in the user's data \
                  folder.",
    },
    Key {
        name: "common.messaging.sqlite.synchronous",
        kind: Kind::Choice(|draft| &mut draft.common.messaging.sqlite.synchronous),
        meaning: "What a commit waits for: `full` survives a loss of power, `normal` can lose the last moments in one.",
    },
    Key {
        name: "common.messaging.sqlite.archive",
        kind: Kind::Choice(|draft| &mut draft.common.messaging.sqlite.archive),
        meaning: "Which messages are archived: `all`, only purged dead letters (`failed`), or `none`.",
    },
    Key {
        name: "common.messaging.sqlite.archive_retention",
        kind: Kind::Duration {
            at: |draft| &mut draft.common.messaging.sqlite.archive_retention,
            range: (SECOND, MAX_DURATION),
        },
        meaning: "How long they are kept.",
    },
    Key {
        name: "common.messaging.sqlite.share_file",
        kind: Kind::Flag(|draft| &mut draft.common.messaging.sqlite.share_file),
        meaning: "Whether the tables may be put into a database that another program made.",
    },
    seconds(
        "common.messaging.sqlite.lock_timeout_seconds",
        |draft| &mut draft.common.messaging.sqlite.lock_timeout,
        (MILLISECOND, HOUR),
        "How long a call waits while other processes write, before it fails with an error that can be retried.",
    ),
    count(
        "common.messaging.sqlite.wal_limit_bytes",
        |draft| &mut draft.common.messaging.sqlite.wal_limit_bytes,
        (64 * 1024, GIB),
        "Size of the write-ahead log at which it is checkpointed into the file.",
    ),
];
