//! A folder of files.

use std::time::Duration;

use super::{HOUR, Key, MILLISECOND, SPOOL_PATH};
use crate::config::kind::Kind;

pub(super) const KEYS: &[Key] = &[
    Key {
        name: SPOOL_PATH,
        kind: Kind::Path(|draft| &mut draft.store.spool_path),
        meaning: "The folder, which is made when it is missing; each folder in it is a queue. A relative path begins \
                  at \
                  the current folder; without it, the folder is `spool` in the user's data folder.",
    },
    Key {
        name: "common.messaging.spool.files",
        kind: Kind::Choice(|draft| &mut draft.common.messaging.spool.files),
        meaning: "Which files of other programs in `incoming/` are messages: those that end in `.json`, or `any`. \
                  Names that begin with a dot never are.",
    },
    Key {
        name: "common.messaging.spool.ordering_key",
        kind: Kind::Fields(|draft| &mut draft.common.messaging.spool.ordering_key),
        meaning: "Fields with the ordering key of another program's JSON file: the first entry that the file has. An \
                  entry is a field, several comma-separated fields that form the key together, or a path like \
                  `/message/from`.",
    },
    Key {
        name: "common.messaging.spool.grace_period",
        kind: Kind::Duration {
            at: |draft| &mut draft.common.messaging.spool.grace_period,
            range: (Duration::ZERO, HOUR),
        },
        meaning: "Time without a write before a file is taken that was written into `incoming/` instead of being \
                  renamed into it.",
    },
    Key {
        name: "common.messaging.spool.watch",
        kind: Kind::Choice(|draft| &mut draft.common.messaging.spool.watch),
        meaning: "How changes by other programs are noticed: `auto` by inotify where the file system has it, `poll` \
                  by polling.",
    },
    Key {
        name: "common.messaging.spool.poll_interval",
        kind: Kind::Duration {
            at: |draft| &mut draft.common.messaging.spool.poll_interval,
            range: (MILLISECOND, HOUR),
        },
        meaning: "Poll interval where inotify is not used.",
    },
    Key {
        name: "common.messaging.spool.lock_timeout",
        kind: Kind::Duration { at: |draft| &mut draft.common.messaging.spool.lock_timeout, range: (MILLISECOND, HOUR) },
        meaning: "How long a call waits while other processes change the same queue, before it fails with an error \
                  that \
                  can be retried.",
    },
];
