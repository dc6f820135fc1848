//! Tasks, and where everything is kept that is no message.

use postrider_core::message::MAX_DURATION;

use super::{Key, MILLISECOND, SECOND, STATE_URL, TASKS_DEAD_EVENTS, TASKS_QUEUE_PREFIX};
use crate::config::kind::Kind;

pub(super) const KEYS: &[Key] = &[
    Key {
        name: "tasks.mode",
        kind: Kind::Choice(|draft| &mut draft.tasks.mode),
        meaning: "Who looks for due tasks: workers, in the database (`polling`), or the enqueuer, which sends their ids \
                  to queues of `common.messaging` (`queue`).",
    },
    Key {
        name: TASKS_QUEUE_PREFIX,
        kind: Kind::Text(|draft| &mut draft.tasks.queue_prefix),
        meaning: "What the name of a type's queue begins with. The rest is the type.",
    },
    Key {
        name: TASKS_DEAD_EVENTS,
        kind: Kind::OptionalText(|draft| &mut draft.tasks.dead_events),
        meaning: "The queue that an event is sent to for every task that dies. Without it none is sent.",
    },
    Key {
        name: "tasks.lease",
        kind: Kind::Duration {
            at: |draft| &mut draft.tasks.lease,
            range: (MILLISECOND.saturating_mul(100), MAX_DURATION),
        },
        meaning: "How long a worker may be silent before its task is taken from it.",
    },
    Key {
        name: "tasks.grace",
        kind: Kind::Duration { at: |draft| &mut draft.tasks.grace, range: (SECOND, MAX_DURATION) },
        meaning: "How long a task may be on its way before it is looked whether its message was lost.",
    },
    Key {
        name: "tasks.retention",
        kind: Kind::Duration { at: |draft| &mut draft.tasks.retention, range: (SECOND, MAX_DURATION) },
        meaning: "How long tasks are kept that succeeded or were canceled. Dead ones are kept until they are replayed.",
    },
    Key {
        name: STATE_URL,
        kind: Kind::Url(|draft| &mut draft.asked.state_url),
        meaning: "A SQLite file or a PostgreSQL database. Without it: the database of the queue when it is one of \
                  these, else an embedded file in the user's data folder.",
    },
];
