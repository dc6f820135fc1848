//! Checks a file that holds queues.

use std::path::Path;

use postrider_core::{BoxFuture, Finding, Severity};

use crate::location;
use crate::options::{Durability, SqliteOptions};
use crate::store::SqliteStore;

impl SqliteStore {
    /// Checks a file and returns the findings, each with its fix. Changes nothing and creates no file.
    pub fn examine(path: impl AsRef<Path>, options: SqliteOptions) -> BoxFuture<'static, Vec<Finding>> {
        let path = path.as_ref().to_owned();
        Box::pin(async move {
            let path = path.as_path();
            if !path.exists() {
                let found = format!("'{}' does not exist", path.display());
                let fix = "name another file; the first send creates this one, and so does `postrider migrate`";
                return vec![Finding::new("connection", Severity::Problem, found, fix)];
            }
            let durability = match options.durability {
                Durability::PowerLoss => {
                    Finding::fine("durability", "every commit is on the disk before it is answered")
                }
                Durability::ProcessCrashOnly => Finding::new(
                    "durability",
                    Severity::Warning,
                    "synchronous = \"normal\": a power loss can undo the last commits, which were already answered",
                    "set common.messaging.sqlite.synchronous = \"full\"",
                ),
            };
            let access = Self::access(path);
            let version = Self::all_migrations().last().map_or(0, |step| step.version);
            let missing = Self::pending_migrations(path, options).await;
            let missing = missing.map(|missing| missing.iter().map(|step| step.name).collect());
            let is_there = Finding::fine("connection", format!("'{}' is there", path.display()));
            vec![is_there, access, Finding::schema(path.display(), version, missing), durability]
        })
    }

    /// Whether users other than the owner of a file may read or write it. Does not open the file.
    pub fn access(path: &Path) -> Finding {
        match location::open_to_others(path).as_slice() {
            [] => Finding::fine("access", "only the owner of the file may read and write it"),
            open @ [(_, mode), ..] => {
                let names: Vec<String> = open.iter().map(|(file, _)| format!("'{}'", file.display())).collect();
                let found = format!(
                    "other users of this host may read or write it (mode {mode:03o}): the messages, and the secrets that \
                     tokens and receipts are checked with"
                );
                Finding::new("access", Severity::Warning, found, format!("chmod 600 {}", names.join(" ")))
            }
        }
    }
}
