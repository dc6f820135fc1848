//! The statements, one file each, for the schema that a store uses.

use postrider_pg::Schema;

macro_rules! statements {
    ($($name:ident,)*) => {
        /// Every statement, with the schema's name in it.
        #[derive(Debug)]
        pub(crate) struct Sql {
            /// The schema that they are for.
            pub(crate) schema: Schema,
            $(pub(crate) $name: String,)*
        }

        impl Sql {
            /// The statements for a schema.
            pub(crate) fn new(schema: Schema) -> Self {
                Self { $($name: schema.render(include_str!(concat!("../sql/", stringify!($name), ".sql"))),)* schema }
            }

            /// Every statement by its file's name.
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
    await_stripes,
    bury_expired,
    claim,
    claim_by_id,
    claim_oldest,
    count_some,
    dead_for_edit,
    dead_letter,
    dedup_holders,
    delete_queue,
    edit_dead_letter,
    ensure_queue,
    extend,
    find_by_id,
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
    list_dead_letters,
    list_queues,
    lock_free,
    lock_stripes,
    next_due,
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
    select_dead,
    select_dead_by_id,
    select_queue,
    send,
    send_alike,
    send_in,
    send_plain,
    stats,
    sweep_archive,
    try_stripes,
    unplaced,
}
