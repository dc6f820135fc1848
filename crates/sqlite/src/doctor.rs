//! What can be wrong with a file that holds queues.

use std::path::Path;

use postrider_core::{Finding, Severity};

use crate::options::{Durability, SqliteOptions};
use crate::store::SqliteStore;

impl SqliteStore {
    /// Looks at a file and says what is wrong with it and what to do about it. Changes nothing, and makes no file.
    pub async fn examine(path: impl AsRef<Path>, options: SqliteOptions) -> Vec<Finding> {
        let path = path.as_ref();
        if !path.exists() {
            let found = format!("'{}' does not exist", path.display());
            let fix = "name another file; this one is made by the first send, or by `postrider migrate`";
            return vec![Finding::new("connection", Severity::Problem, found, fix)];
        }
        let durability = match options.durability {
            Durability::PowerLoss => Finding::fine("durability", "every commit is on the disk before it is answered"),
            Durability::ProcessCrashOnly => Finding::new(
                "durability",
                Severity::Warning,
                "synchronous = \"normal\": a power loss can take the last commits, which were already answered",
                "set common.messaging.sqlite.synchronous = \"full\"",
            ),
        };
        let version = Self::all_migrations().last().map_or(0, |step| step.version);
        let missing = Self::pending_migrations(path, options).await;
        let missing = missing.map(|missing| missing.iter().map(|step| step.name).collect());
        let is_there = Finding::fine("connection", format!("'{}' is there", path.display()));
        vec![is_there, Finding::schema(path.display(), version, missing), durability]
    }
}
