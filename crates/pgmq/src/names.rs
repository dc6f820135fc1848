//! Names of the tables and indexes of a queue.

use postrider_core::{MessagingError, QueueName};

/// Upper bound of a queue name: PGMQ allows 47 characters, of which four are for the suffix of the dead letters.
const LONGEST: usize = 43;

/// Refuses a name that PGMQ cannot hold. It writes table names in lower case, so two names would be one queue.
pub(crate) fn check(queue: &QueueName) -> Result<(), MessagingError> {
    let origin = queue.origin();
    let name = origin.as_str();
    let invalid = |why: String| Err(MessagingError::invalid("queue name", format!("'{name}': {why}")));
    if name.len() > LONGEST {
        return invalid(format!(
            "it has {} characters; use at most {LONGEST}, so that PGMQ can hold its dead letters",
            name.len()
        ));
    }
    if name.chars().any(|c| c.is_ascii_uppercase()) {
        return invalid("PGMQ ignores case; use lower case".into());
    }
    if name.contains("--") {
        return invalid("PGMQ refuses '--'; use another separator".into());
    }
    Ok(())
}

/// The names of a queue and of its dead letters.
#[derive(Debug, Clone)]
pub(crate) struct Names {
    queue: String,
    dead: String,
}

impl Names {
    pub(crate) fn of(queue: &QueueName) -> Self {
        Self { queue: queue.as_str().to_owned(), dead: queue.dead_letters().as_str().to_owned() }
    }

    /// For statements without a queue.
    pub(crate) fn of_none() -> Self {
        Self { queue: String::new(), dead: String::new() }
    }

    /// A queue, and the dead letters of another one.
    pub(crate) fn from_to(from: &QueueName, to: &QueueName) -> Self {
        Self { queue: to.as_str().to_owned(), dead: from.dead_letters().as_str().to_owned() }
    }

    /// Returns a statement with its shared parts and these names, without comments: it stays in memory on both sides.
    pub(crate) fn render(&self, statement: &str) -> String {
        let lines: Vec<&str> = statement.lines().filter(|line| !line.starts_with("--")).collect();
        self.insert(&crate::sql::compose(&lines.join("\n")))
    }

    /// Returns a text with these names.
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

/// The channel on which PGMQ notifies of inserts, if enabled.
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
    fn names_that_pgmq_cannot_hold_are_refused() {
        for name in ["orders", "orders_dlq", "a.b-c_1", &"x".repeat(43)] {
            assert!(check(&queue(name)).is_ok(), "{name}");
        }
        for name in ["Orders", "a--b", &"x".repeat(44)] {
            assert!(check(&queue(name)).is_err(), "{name}");
        }
    }

    #[test]
    fn statements_are_rendered_without_comments_and_with_names() {
        let names = Names::of(&queue("a-b"));
        assert_eq!(
            names.render("-- why\nselect 1 from {queue}, {dead}"),
            "select 1 from pgmq.\"q_a-b\", pgmq.\"q_a-b_dlq\""
        );
    }
}
