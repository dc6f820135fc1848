//! The statements, one file each, for the schema that a store uses and for each queue.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use postrider_core::QueueName;
use postrider_pg::Schema;

use crate::names::Names;

/// So many queues have their statements at hand. One process may meet any number of names.
const MOST_QUEUES: usize = 1000;

macro_rules! statements {
    ($(#[$doc:meta])* $type:ident { $($name:ident,)* }) => {
        $(#[$doc])*
        #[derive(Debug)]
        pub(crate) struct $type { $(pub(crate) $name: String,)* }

        impl $type {
            fn render(render: impl Fn(&str) -> String) -> Self {
                Self { $($name: render(include_str!(concat!("../sql/", stringify!($name), ".sql"))),)* }
            }

            /// Every statement by its file's name, as it is written.
            #[cfg(test)]
            pub(crate) fn files() -> Vec<(&'static str, &'static str)> {
                vec![$((stringify!($name), include_str!(concat!("../sql/", stringify!($name), ".sql"))),)*]
            }
        }
    };
}

statements! {
    /// What is asked of no queue's own table.
    General {
        adopt,
        delete_queue,
        ensure_queue,
        is_paused,
        list_queues,
        lock_stripes,
        next_aside,
        pause,
        queues_exist,
        resume,
        send_aside,
    }
}

statements! {
    /// What is asked of a queue's table, its archive or its dead letters.
    OfQueue {
        archive,
        archived_get,
        archived_walk,
        bury,
        bury_expired,
        claim,
        claim_by_id,
        count_dead,
        dead_for_edit,
        dead_letter,
        dedup_holders,
        edit_dead_letter,
        extend,
        find_by_id,
        find_dead_letters,
        get_dead_letters,
        give_up,
        held,
        list_dead_letters,
        lock_free,
        move_due,
        next_due,
        peek,
        purge,
        purge_dead,
        release,
        remove,
        retry,
        select_queue,
        send,
        send_plain,
        stats,
        sweep_archive,
    }
}

/// Goes from one queue's dead letters to another queue.
pub(crate) const REDRIVE: &str = include_str!("../sql/redrive.sql");

/// Every statement of a store.
#[derive(Debug)]
pub(crate) struct Sql {
    schema: Schema,
    pub(crate) general: General,
    // A lock, held for a look.
    queues: Mutex<HashMap<QueueName, Arc<OfQueue>>>,
}

impl Sql {
    pub(crate) fn new(schema: &Schema) -> Self {
        let names = Names::of_none();
        let general = General::render(|statement| schema.render(&names.render(statement)));
        Self { schema: schema.clone(), general, queues: Mutex::default() }
    }

    /// The statements of a queue.
    pub(crate) fn of(&self, queue: &QueueName) -> Arc<OfQueue> {
        let mut queues = self.queues.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(found) = queues.get(queue) {
            return found.clone();
        }
        if queues.len() >= MOST_QUEUES {
            queues.clear();
        }
        let names = Names::of(queue);
        let made = Arc::new(OfQueue::render(|statement| self.schema.render(&names.render(statement))));
        queues.insert(queue.clone(), made.clone());
        made
    }

    /// From a queue's dead letters to another queue.
    pub(crate) fn redrive(&self, from: &QueueName, to: &QueueName) -> String {
        self.schema.render(&Names::from_to(from, to).render(REDRIVE))
    }
}
