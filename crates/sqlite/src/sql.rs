//! The statements, one file each.

macro_rules! statements {
    ($($name:ident = $file:literal,)*) => {
        $(pub(crate) const $name: &str = include_str!(concat!("../sql/", $file, ".sql"));)*

        /// Every statement by its file's name.
        #[cfg(test)]
        pub(crate) const ALL: &[(&str, &str)] = &[$(($file, $name),)*];
    };
}

statements! {
    ARCHIVE = "archive",
    ARCHIVE_DEAD = "archive_dead",
    CLAIM = "claim",
    COUNT_DEAD = "count_dead",
    COUNT_DUE = "count_due",
    COUNT_NOT_DUE = "count_not_due",
    COUNT_REVISION = "count_revision",
    COUNT_SOME = "count_some",
    CREATED_AT = "created_at",
    DEAD_DEDUP_KEY = "dead_dedup_key",
    DEAD_LETTER = "dead_letter",
    DEAD_LETTER_RECORD = "dead_letter_record",
    DEDUP_HOLDER = "dedup_holder",
    DELETE_QUEUE = "delete_queue",
    DUE = "due",
    DUE_PRIORITIES = "due_priorities",
    EDIT_DEAD_LETTER = "edit_dead_letter",
    ENSURE_QUEUE = "ensure_queue",
    EXTEND = "extend",
    FIND_BY_ID = "find_by_id",
    FIND_BY_ID_LONG = "find_by_id_long",
    FORGET_ATTEMPTS = "forget_attempts",
    FORGET_DEAD_LETTER = "forget_dead_letter",
    FREE_KEYS = "free_keys",
    GET_DEAD_LETTER = "get_dead_letter",
    GIVE_UP = "give_up",
    HELD = "held",
    IS_DUE = "is_due",
    IS_PAUSED = "is_paused",
    KEY_IS_TAKEN = "key_is_taken",
    LAST_ID = "last_id",
    LIST_DEAD_LETTERS = "list_dead_letters",
    LIST_QUEUES = "list_queues",
    NEXT_DUE = "next_due",
    NOTE_ATTEMPT = "note_attempt",
    PAUSE = "pause",
    PEEK = "peek",
    PEEK_LONG = "peek_long",
    PROMOTE = "promote",
    QUEUE_EXISTS = "queue_exists",
    READ_DUE = "read_due",
    REDRIVE = "redrive",
    RELEASE = "release",
    REMOVABLE = "removable",
    REMOVE = "remove",
    REMOVE_ARCHIVED = "remove_archived",
    RESUME = "resume",
    RETRY = "retry",
    SELECT_DEAD = "select_dead",
    SELECT_DEAD_BY_ID = "select_dead_by_id",
    SELECT_QUEUE = "select_queue",
    SEND = "send",
    SET_MESSAGE_ID = "set_message_id",
    SWEEP_ARCHIVE = "sweep_archive",
    TRIM_ATTEMPTS = "trim_attempts",
}
