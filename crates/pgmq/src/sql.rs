//! The statements, one file each, with the names of the schema and of a queue.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use postrider_core::QueueName;
use postrider_pg::Schema;

use crate::names::Names;

/// Upper bound of queues with rendered statements. A process may see any number of names.
const MAX_QUEUES: usize = 1000;

/// Parts that statements share, under the names by which they include them.
const PARTS: &[(&str, &str)] = &[("{lease_chosen}", include_str!("../sql/parts/lease_chosen.sql"))];

/// Returns a statement with its shared parts.
pub(crate) fn compose(statement: &str) -> String {
    PARTS.iter().fold(statement.to_owned(), |statement, (name, part)| statement.replace(name, part.trim_end()))
}

macro_rules! statements {
    ($(#[$doc:meta])* $type:ident { $($name:ident,)* }) => {
        $(#[$doc])*
        #[derive(Debug)]
        pub(crate) struct $type { $(pub(crate) $name: String,)* }

        impl $type {
            fn render(render: impl Fn(&str) -> String) -> Self {
                Self { $($name: render(include_str!(concat!("../sql/", stringify!($name), ".sql"))),)* }
            }

            /// Returns every statement with the name of its file, unrendered.
            #[cfg(test)]
            pub(crate) fn files() -> Vec<(&'static str, &'static str)> {
                vec![$((stringify!($name), include_str!(concat!("../sql/", stringify!($name), ".sql"))),)*]
            }
        }
    };
}

statements! {
    /// The statements without a queue's own table.
    General {
        adopt,
        delete_queue,
        ensure_queue,
        is_paused,
        list_queues,
        lock_stripes,
        next_delayed,
        pause,
        queues_exist,
        resume,
        send_delayed,
    }
}

statements! {
    /// The statements on a queue's table, its archive or its dead letters.
    OfQueue {
        archive,
        archived_get,
        archived_walk,
        dead_letter_claimed,
        dead_letter_expired,
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

/// The statement from one queue's dead letters to another queue.
pub(crate) const REDRIVE: &str = include_str!("../sql/redrive.sql");

/// The statements of a store.
#[derive(Debug)]
pub(crate) struct Sql {
    schema: Schema,
    pub(crate) general: General,
    // Held for a lookup.
    queues: Mutex<HashMap<QueueName, Arc<OfQueue>>>,
}

impl Sql {
    pub(crate) fn new(schema: &Schema) -> Self {
        let names = Names::of_none();
        let general = General::render(|statement| schema.render(&names.render(statement)));
        Self { schema: schema.clone(), general, queues: Mutex::default() }
    }

    /// Returns the statements of a queue.
    pub(crate) fn of(&self, queue: &QueueName) -> Arc<OfQueue> {
        let mut queues = self.queues.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(found) = queues.get(queue) {
            return found.clone();
        }
        if queues.len() >= MAX_QUEUES {
            queues.clear();
        }
        let names = Names::of(queue);
        let made = Arc::new(OfQueue::render(|statement| self.schema.render(&names.render(statement))));
        queues.insert(queue.clone(), made.clone());
        made
    }

    /// Returns the statement from a queue's dead letters to another queue.
    pub(crate) fn redrive(&self, from: &QueueName, to: &QueueName) -> String {
        self.schema.render(&Names::from_to(from, to).render(REDRIVE))
    }
}
