//! Tasks, and where everything is kept that is no message.

use postrider_core::message::MAX_DURATION;

use super::{Key, MILLISECOND, SECOND, STATE_URL, TASKS_DEAD_EVENTS, TASKS_QUEUE_PREFIX};
use crate::config::kind::Kind;

pub(super) const KEYS: &[Key] = &[
    Key {
        name: "tasks.mode",
        kind: Kind::Choice(|draft| &mut draft.tasks.mode),
        meaning: "How due tasks reach workers: workers poll the database (`polling`), or the enqueuer sends their ids \
                  to queues of `common.messaging` (`queue`).",
    },
    Key {
        name: TASKS_QUEUE_PREFIX,
        kind: Kind::Text(|draft| &mut draft.tasks.queue_prefix),
        meaning: "Prefix of the name of a type's queue. The rest is the type.",
    },
    Key {
        name: TASKS_DEAD_EVENTS,
        kind: Kind::OptionalText(|draft| &mut draft.tasks.dead_events),
        meaning: "Queue for an event of every task that dies. Without it none is sent.",
    },
    Key {
        name: "tasks.lease",
        kind: Kind::Duration {
            at: |draft| &mut draft.tasks.lease,
            range: (MILLISECOND.saturating_mul(100), MAX_DURATION),
        },
        meaning: "Length of a task's lease without a heartbeat.",
    },
    Key {
        name: "tasks.grace",
        kind: Kind::Duration { at: |draft| &mut draft.tasks.grace, range: (SECOND, MAX_DURATION) },
        meaning: "Time after which the message of a sent task counts as possibly lost.",
    },
    Key {
        name: "tasks.retention",
        kind: Kind::Duration { at: |draft| &mut draft.tasks.retention, range: (SECOND, MAX_DURATION) },
        meaning: "Retention of succeeded and canceled tasks. Dead ones are kept until they are replayed.",
    },
    Key {
        name: STATE_URL,
        kind: Kind::Url(|draft| &mut draft.store.state_url),
        meaning: "A SQLite file or a PostgreSQL database. Without it: the database of the queue when it is one of \
                  these, else an embedded file in the user's data folder.",
    },
];
