//! Where ordering keys are put in order: the first task of a key goes ahead when no other of the key may run.
//!
//! That is decided under a lock of the key, and by a statement that began when the lock was held: whoever had it before
//! has committed, and is seen. What somebody else has not committed yet comes with a note of its own. So of two that add
//! to a key or end its head at the same moment, the one whose commit is later is seen by the one who puts it in order
//! last, and a key is never left without a head.

use std::collections::BTreeSet;
use std::time::Instant;

use postrider_core::Deadline;
use postrider_pg::Step;
use postrider_provider::{Undone, persist};
use postrider_sql::stripes::{fnv1a, in_order};

use super::Tasks;
use super::hints::News;

const PLACE: &str = "put tasks in order";

/// The locks of tasks' keys stand beyond those of messages' keys, and beyond the one of migrations.
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
    /// Puts keys in order whose notes this process has just written. When that fails the notes are still there, for the
    /// next claim; what was done before stands and must be told. Answers whether some task may go ahead now.
    pub(super) async fn place_own(&self, keys: &Keys) -> bool {
        if keys.is_empty() {
            return false;
        }
        let placed = self.place(keys).await;
        placed.inspect_err(|error| tracing::debug!(?error, "keys were not put in order")).unwrap_or(false)
    }

    /// Puts keys in order that somebody has left. Answers whether some task may go ahead now.
    pub(super) async fn place_left(&self) -> Result<bool, Undone> {
        let found = self.ask(PLACE, Deadline::default(), &self.sql().task_unplaced, Vec::new()).await?;
        let keys: Keys = found.iter().map(|row| (row.get(0), row.get(1))).collect();
        if keys.is_empty() { Ok(false) } else { self.place(&keys).await }
    }

    async fn place(&self, keys: &Keys) -> Result<bool, Undone> {
        let began = Instant::now();
        let placed = persist(|| self.try_place(keys)).await?;
        let mut news = News::default();
        placed.iter().for_each(|task_type| self.note_pending(&mut news, task_type));
        self.tell(&news, began);
        Ok(!placed.is_empty())
    }

    async fn try_place(&self, keys: &Keys) -> Result<Vec<String>, Undone> {
        let stripes = in_order(keys.iter().map(|(task_type, key)| stripe(task_type, key)).collect());
        let (types, keys): (Vec<&str>, Vec<&str>) =
            keys.iter().map(|(task_type, key)| (task_type.as_str(), key.as_str())).unzip();
        let mut session = self.shared.database.session(PLACE, Deadline::default()).await?;
        let (sql, class) = (session.sql(), self.sql().schema.lock_class());
        let lock = Step::new(&sql.lock_stripes, [&class as _, &stripes as _]);
        let place = Step::new(&sql.task_place, [&types as _, &keys as _]);
        let answers = session.run(&[lock, place]).await?;
        Ok(answers.last().into_iter().flatten().map(|row| row.get(0)).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stripes_never_change_and_are_nobody_elses() {
        assert_eq!(stripe("mail", "customer-7"), 2118);
        let seen: BTreeSet<i32> = (0..2000).map(|n| stripe("mail", &n.to_string())).collect();
        assert!(seen.iter().all(|stripe| (2000..2256).contains(stripe)), "{seen:?}");
        assert!(seen.len() > 200, "keys are spread over {} locks", seen.len());
        assert_ne!(stripe("ab", "c"), stripe("a", "bc"), "where the type ends matters");
    }
}
