//! What the tables and indexes of a queue are called.

use postrider_core::{MessagingError, QueueName};

/// PGMQ allows 47 characters, of which four are for the dead letters' suffix.
const LONGEST: usize = 43;

/// Refuses a name that PGMQ cannot hold: it writes tables in small letters, so two names would be one queue.
pub(crate) fn check(queue: &QueueName) -> Result<(), MessagingError> {
    let origin = queue.origin();
    let name = origin.as_str();
    let invalid = |why: String| Err(MessagingError::invalid("queue name", format!("'{name}': {why}")));
    if name.len() > LONGEST {
        return invalid(format!(
            "it has {} characters, PGMQ allows {LONGEST} and four for its dead letters",
            name.len()
        ));
    }
    if name.chars().any(|c| c.is_ascii_uppercase()) {
        return invalid("PGMQ does not tell capital letters from small ones; use small ones".into());
    }
    if name.contains("--") {
        return invalid("PGMQ refuses '--'".into());
    }
    Ok(())
}

/// The names that belong to a queue.
#[derive(Debug, Clone)]
pub(crate) struct Names {
    queue: String,
    dead: String,
}

impl Names {
    pub(crate) fn of(queue: &QueueName) -> Self {
        Self { queue: queue.as_str().to_owned(), dead: queue.dead_letters().as_str().to_owned() }
    }

    /// For statements that name none.
    pub(crate) fn of_none() -> Self {
        Self { queue: String::new(), dead: String::new() }
    }

    /// A queue, and the dead letters of another.
    pub(crate) fn from_to(from: &QueueName, to: &QueueName) -> Self {
        Self { queue: to.as_str().to_owned(), dead: from.dead_letters().as_str().to_owned() }
    }

    /// A statement with these names in it, and without its comments: the statement stays in memory on both sides.
    pub(crate) fn render(&self, statement: &str) -> String {
        let lines = statement.lines().filter(|line| !line.starts_with("--"));
        self.insert(&lines.collect::<Vec<_>>().join("\n"))
    }

    /// A text with these names in it.
    pub(crate) fn insert(&self, text: &str) -> String {
        let (queue, dead) = (&self.queue, &self.dead);
        [
            ("{queue}", format!("pgmq.\"q_{queue}\"")),
            ("{archive}", format!("pgmq.\"a_{queue}\"")),
            ("{dead}", format!("pgmq.\"q_{dead}\"")),
            ("{dead_archive}", format!("pgmq.\"a_{dead}\"")),
            ("{table}", format!("q_{queue}")),
            ("{archive_table}", format!("a_{queue}")),
            ("{dead_table}", format!("q_{dead}")),
            ("{primary_key}", format!("q_{queue}_pkey")),
            ("{dead_primary_key}", format!("q_{dead}_pkey")),
            ("{vt_index}", format!("q_{queue}_vt_idx")),
            ("{group_index}", format!("q_{queue}_pr_group")),
            ("{free_index}", format!("q_{queue}_pr_free")),
            ("{archive_primary_key}", format!("a_{queue}_pkey")),
            ("{archive_index}", format!("archived_at_idx_{queue}")),
        ]
        .iter()
        .fold(text.to_owned(), |text, (name, value)| text.replace(name, value))
    }
}

/// The channel on which PGMQ tells of inserts, when it was asked to.
pub(crate) fn channel(queue: &QueueName) -> String {
    format!("pgmq.q_{queue}.INSERT")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue(name: &str) -> QueueName {
        QueueName::for_reading(name).unwrap()
    }

    #[test]
    fn only_names_that_pgmq_can_hold_are_allowed() {
        for name in ["orders", "orders_dlq", "a.b-c_1", &"x".repeat(43)] {
            assert!(check(&queue(name)).is_ok(), "{name}");
        }
        for name in ["Orders", "a--b", &"x".repeat(44)] {
            assert!(check(&queue(name)).is_err(), "{name}");
        }
    }

    #[test]
    fn statements_lose_their_comments_and_get_their_names() {
        let names = Names::of(&queue("a-b"));
        assert_eq!(
            names.render("-- why\nselect 1 from {queue}, {dead}"),
            "select 1 from pgmq.\"q_a-b\", pgmq.\"q_a-b_dlq\""
        );
    }
}
