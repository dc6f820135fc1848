//! Promotion: the first task of a key becomes its head if the key has none.
//!
//! It needs a lock of the key, and a statement that begins when the lock is held, so that it sees what earlier holders
//! committed. Uncommitted changes come with a note of their own. So of two transactions that change a key at the same
//! moment, the one that promotes last sees the other's commit, and a key is never left without a head.

use std::collections::BTreeSet;
use std::time::Instant;

use postrider_core::Deadline;
use postrider_pg::Step;
use postrider_provider::{Undone, persist};
use postrider_sql::stripes::{fnv1a, in_order};

use super::Tasks;
use super::hints::Notices;

const PROMOTE: &str = "promote tasks";

/// First stripe of tasks' keys, after the stripes of messages' keys and the lock of migrations.
const FIRST_STRIPE: i32 = 2000;
const STRIPES: u64 = 256;

/// Keys with the types that they are in.
pub(super) type Keys = BTreeSet<(String, String)>;

fn stripe(task_type: &str, key: &str) -> i32 {
    let bytes = task_type.as_bytes().iter().chain(&[0]).chain(key.as_bytes());
    // Below 256.
    FIRST_STRIPE + (fnv1a(bytes) % STRIPES) as i32
}

impl Tasks {
    /// Promotes the keys that this process has just noted. If that fails, the notes remain for the next claim; the
    /// caller's change stands, so the error is not returned. Returns whether a task was promoted.
    pub(super) async fn promote_own(&self, keys: &Keys) -> bool {
        if keys.is_empty() {
            return false;
        }
        let promoted = self.promote(keys).await;
        promoted.inspect_err(|error| tracing::debug!(?error, "cannot promote tasks")).unwrap_or(false)
    }

    /// Promotes the keys that other transactions have noted. Returns whether a task was promoted.
    pub(super) async fn promote_left(&self) -> Result<bool, Undone> {
        let found = self.ask(PROMOTE, Deadline::default(), &self.sql().task_unplaced, Vec::new()).await?;
        let keys: Keys = found.iter().map(|row| (row.get("task_type"), row.get("ordering_key"))).collect();
        if keys.is_empty() { Ok(false) } else { self.promote(&keys).await }
    }

    async fn promote(&self, keys: &Keys) -> Result<bool, Undone> {
        let began = Instant::now();
        let promoted = persist(|| self.try_promote(keys)).await?;
        let mut notices = Notices::default();
        promoted.iter().for_each(|task_type| self.note_pending(&mut notices, task_type));
        self.notify(&notices, began);
        Ok(!promoted.is_empty())
    }

    async fn try_promote(&self, keys: &Keys) -> Result<Vec<String>, Undone> {
        let stripes = in_order(keys.iter().map(|(task_type, key)| stripe(task_type, key)).collect());
        let (types, keys): (Vec<&str>, Vec<&str>) =
            keys.iter().map(|(task_type, key)| (task_type.as_str(), key.as_str())).unzip();
        let mut session = self.shared.database.session(PROMOTE, Deadline::default()).await?;
        let (sql, class) = (session.sql(), self.sql().schema.lock_class());
        let lock = Step::new(&sql.lock_stripes, [&class as _, &stripes as _]);
        let promote = Step::new(&sql.task_promote, [&types as _, &keys as _]);
        let answers = session.run(&[lock, promote]).await?;
        Ok(answers.last().into_iter().flatten().map(|row| row.get("task_type")).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stripes_never_change_and_differ_from_other_locks() {
        assert_eq!(stripe("mail", "customer-7"), 2118);
        let seen: BTreeSet<i32> = (0..2000).map(|n| stripe("mail", &n.to_string())).collect();
        assert!(seen.iter().all(|stripe| (2000..2256).contains(stripe)), "{seen:?}");
        assert!(seen.len() > 200, "keys are spread over {} locks", seen.len());
        assert_ne!(stripe("ab", "c"), stripe("a", "bc"), "where the type ends matters");
    }
}
