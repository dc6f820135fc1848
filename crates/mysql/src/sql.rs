//! The statements, one file each, with the name of the database.

/// Parts that statements share, under the names by which they include them.
const PARTS: &[(&str, &str)] =
    &[("{claimed}", include_str!("../sql/parts/claimed.sql")), ("{peeked}", include_str!("../sql/parts/peeked.sql"))];

macro_rules! statements {
    ($($name:ident,)*) => {
        /// Every statement, with the name of the database.
        #[derive(Debug)]
        pub(crate) struct Sql { $(pub(crate) $name: String,)* }

        impl Sql {
            /// Returns the statements for a database.
            pub(crate) fn new(schema: &Schema) -> Self {
                Self { $($name: schema.render(include_str!(concat!("../sql/", stringify!($name), ".sql"))),)* }
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
    archive,
    archive_dead,
    archived_by_id,
    archived_get,
    archived_walk,
    attempts,
    claim,
    claim_by_id,
    count_some,
    dead_dedup_keys,
    dead_for_edit,
    dead_letter,
    dedup_holders,
    delete_queue,
    deliver_now,
    edit_dead_letter,
    ensure_queue,
    expired,
    extend,
    find_by_id,
    find_dead_letters,
    first_of_key,
    forget_attempts,
    forget_dead,
    forget_some_attempts,
    forget_unplaced,
    get_dead_letters,
    give_up,
    head_probe,
    heads,
    held,
    held_by,
    idempotency_abandon,
    idempotency_begin,
    idempotency_complete,
    idempotency_extend,
    idempotency_find,
    idempotency_forget,
    idempotency_held,
    lease,
    lease_dead,
    is_dead,
    list_dead_letters,
    list_queues,
    lock_free_stripes,
    lock_stripes,
    message_attempts,
    next_due,
    next_due_probe,
    note_attempts,
    note_last_attempts,
    old_archive,
    pause,
    peek,
    peek_long,
    promote,
    purge,
    queues_exist,
    record_deaths,
    redrive,
    release,
    remove,
    resume,
    retry,
    select_dead,
    select_dead_by_id,
    select_queue,
    send,
    send_plain,
    stats,
    sweep_archive,
    taken_keys,
    trim_attempts,
    unleased_dead,
    unplace,
    unplaced,
    waiting,
}

/// The name of the database that holds the tables.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Schema(String);

impl Schema {
    pub(crate) fn new(name: &str) -> Self {
        Self(name.to_owned())
    }

    pub(crate) fn name(&self) -> &str {
        &self.0
    }

    /// Returns a statement with its shared parts and the name of this database, and without its comments.
    pub(crate) fn render(&self, statement: &str) -> String {
        let lines: Vec<&str> = statement.lines().filter(|line| !line.trim_start().starts_with("--")).collect();
        let statement = lines.join("\n").trim().replace("{schema}", &self.quoted());
        PARTS.iter().fold(statement, |statement, (name, part)| statement.replace(name, part.trim_end()))
    }

    pub(crate) fn quoted(&self) -> String {
        format!("`{}`", self.0.replace('`', "``"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_is_a_statement() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/sql");
        let statements = Sql::new(&Schema::new("postrider"));
        for file in std::fs::read_dir(folder).unwrap() {
            let path = file.unwrap().path();
            if path.is_file() {
                let name = path.file_stem().unwrap().to_str().unwrap();
                assert!(statements.all().iter().any(|(listed, _)| *listed == name), "{name}.sql is not used");
            }
        }
    }
}
