//! The statements, one file each, with the name of the schema.

use postrider_pg::Schema;

/// Parts that statements share, under the names by which they include them.
const PARTS: &[(&str, &str)] = &[
    ("{due_messages}", include_str!("../sql/parts/due_messages.sql")),
    ("{lease_chosen}", include_str!("../sql/parts/lease_chosen.sql")),
    ("{peeked}", include_str!("../sql/parts/peeked.sql")),
    ("{post_tasks}", include_str!("../sql/parts/post_tasks.sql")),
    ("{promote_next}", include_str!("../sql/parts/promote_next.sql")),
    ("{schedule}", include_str!("../sql/parts/schedule.sql")),
    ("{task_columns}", include_str!("../sql/parts/task_columns.sql")),
    ("{task_filter}", include_str!("../sql/parts/task_filter.sql")),
];

/// Returns a statement with its shared parts.
fn compose(statement: &str) -> String {
    PARTS.iter().fold(statement.to_owned(), |statement, (name, part)| statement.replace(name, part.trim_end()))
}

macro_rules! statements {
    ($($name:ident,)*) => {
        /// Every statement, with the name of the schema.
        #[derive(Debug)]
        pub(crate) struct Sql {
            /// The schema.
            pub(crate) schema: Schema,
            $(pub(crate) $name: String,)*
        }

        impl Sql {
            /// Returns the statements for a schema.
            pub(crate) fn new(schema: Schema) -> Self {
                Self {
                    $($name: schema.render(&compose(include_str!(concat!("../sql/", stringify!($name), ".sql")))),)*
                    schema,
                }
            }

            /// Returns every statement with the name of its file.
            #[cfg(test)]
            pub(crate) fn all(&self) -> Vec<(&'static str, &str)> {
                vec![$((stringify!($name), self.$name.as_str()),)*]
            }
        }
    };
}

statements! {
    ack_in,
    archive,
    archive_plain,
    archived_by_id,
    archived_get,
    archived_walk,
    await_stripes,
    dead_letter_expired,
    claim,
    claim_by_id,
    claim_oldest,
    count_some,
    dead_for_edit,
    dead_letter,
    dedup_holders,
    delete_queue,
    deliver_now,
    edit_dead_letter,
    ensure_queue,
    extend,
    find_by_id,
    find_dead_letters,
    forget_unplaced,
    get_dead_letters,
    give_up,
    held,
    idempotency_abandon,
    idempotency_begin,
    idempotency_complete,
    idempotency_extend,
    idempotency_find,
    idempotency_forget,
    is_dead,
    lease_dead,
    list_dead_letters,
    list_queues,
    lock_free,
    lock_stripes,
    message_attempts,
    next_due,
    outbox_next_due,
    outbox_sent,
    outbox_take,
    pause,
    peek,
    peek_long,
    promote,
    purge,
    purge_dead,
    queues_exist,
    redrive,
    release,
    remove,
    remove_plain,
    resume,
    retry,
    schedule_delete,
    schedule_due,
    schedule_fire,
    schedule_get,
    schedule_list,
    schedule_lock,
    schedule_next_due,
    schedule_pause,
    schedule_put,
    schedule_resume,
    select_dead,
    select_dead_by_id,
    select_queue,
    send,
    send_alike,
    send_in,
    send_plain,
    state_record_forget,
    state_record_get,
    state_record_list,
    state_record_list_newest,
    state_record_put,
    state_record_remove,
    state_record_replace,
    stats,
    store_time,
    sweep_archive,
    task_attempts,
    task_cancel,
    task_claim,
    task_claim_by_id,
    task_counts,
    task_create,
    task_create_alike,
    task_create_in,
    task_die,
    task_edit_payload,
    task_enqueue,
    task_expire,
    task_forget,
    task_get,
    task_heartbeat,
    task_holders,
    task_list,
    task_list_end,
    task_list_ended,
    task_list_ended_end,
    task_lock,
    task_lost_leases,
    task_next_due,
    task_next_pending,
    task_promote,
    task_release,
    task_replay,
    task_resend,
    task_retry,
    task_revisions,
    task_run_now,
    task_states,
    task_stranded,
    task_succeed,
    task_types,
    task_unplaced,
    try_stripes,
    unplaced,
}
