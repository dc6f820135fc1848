//! The environment variables of a task's command.

use postrider::tasks::TaskContext;

use crate::command::{OMITTED, Variables};

const TASK: &str = "POSTRIDER_TASK_";

/// Whether an inherited variable belongs to an outer handler and must be cleared.
pub(super) fn must_clear(name: &str) -> bool {
    name.starts_with(TASK) || name == OMITTED
}

pub(super) fn variables(task: &TaskContext) -> Vec<(String, String)> {
    let mut all = Variables::default();
    let name = |end: &str| format!("{TASK}{end}");
    all.set(name("ID"), task.id());
    all.set(name("TYPE"), task.task_type());
    all.set(name("PRIORITY"), task.priority().get());
    all.set(name("ATTEMPT"), task.attempt());
    all.set(name("MAX_ATTEMPTS"), task.max_attempts());
    // Strings can always be written as JSON.
    all.set_if_any(name("TAGS"), serde_json::to_string(task.tags()).ok());
    all.set_if_any(name("ORDERING_KEY"), task.ordering_key().map(|key| key.as_str()));
    all.set(name("CREATED_AT"), task.created_at());
    all.set(name("SCHEDULED_FOR"), task.scheduled_for());
    all.set(name("WORKER"), task.worker());
    all.fitting()
}
