//! A folder of files.

use std::time::Duration;

use super::{HOUR, Key, MILLISECOND, SPOOL_PATH};
use crate::config::kind::Kind;

pub(super) const KEYS: &[Key] = &[
    Key {
        name: SPOOL_PATH,
        kind: Kind::Path(|draft| &mut draft.asked.spool_path),
        meaning: "The folder, which is made when it is missing; each folder in it is a queue. A relative path begins at \
                  the current folder; without it, the folder is `spool` in the user's data folder.",
    },
    Key {
        name: "common.messaging.spool.files",
        kind: Kind::Choice(|draft| &mut draft.common.messaging.spool.files),
        meaning: "Which files that others put into `incoming/` are messages: those that end in `.json`, or `any`. Names \
                  that begin with a dot never are.",
    },
    Key {
        name: "common.messaging.spool.ordering_key",
        kind: Kind::Fields(|draft| &mut draft.common.messaging.spool.ordering_key),
        meaning: "Where the ordering key of somebody's JSON file is: the first of these that the file has. Each is a \
                  field, several with commas between them that are the key together, or a path like `/message/from`.",
    },
    Key {
        name: "common.messaging.spool.grace_period",
        kind: Kind::Duration {
            at: |draft| &mut draft.common.messaging.spool.grace_period,
            range: (Duration::ZERO, HOUR),
        },
        meaning: "How long a file that was written into `incoming/`, and not renamed, must not have been written to \
                  before it is taken.",
    },
    Key {
        name: "common.messaging.spool.watch",
        kind: Kind::Choice(|draft| &mut draft.common.messaging.spool.watch),
        meaning: "How changes by others are noticed: `auto` hears of them by inotify where the file system has it, `poll` \
                  looks.",
    },
    Key {
        name: "common.messaging.spool.poll_interval",
        kind: Kind::Duration {
            at: |draft| &mut draft.common.messaging.spool.poll_interval,
            range: (MILLISECOND, HOUR),
        },
        meaning: "How often is looked where inotify does not tell.",
    },
    Key {
        name: "common.messaging.spool.lock_timeout",
        kind: Kind::Duration { at: |draft| &mut draft.common.messaging.spool.lock_timeout, range: (MILLISECOND, HOUR) },
        meaning: "How long a call waits while other processes change the same queue, before it fails with an error that \
                  can be retried.",
    },
];
