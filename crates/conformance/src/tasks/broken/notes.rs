//! The state that the faults need.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};

use postrider_core::Key;
use postrider_core::task::{ClaimedTask, OutboxRow, TaskId, TaskState, TaskType};

/// What passed through the broken store, shared by all connections.
#[derive(Debug, Default)]
pub(super) struct Notes(Mutex<State>);

#[derive(Debug, Default)]
pub(super) struct State {
    /// Every task type so far.
    pub(super) types: BTreeSet<TaskType>,
    /// The last claim of each task that has not ended since.
    pub(super) claimed: HashMap<TaskId, ClaimedTask>,
    /// A claimed task for a second claim.
    pub(super) last_claim: Option<ClaimedTask>,
    /// The task of each idempotency key.
    pub(super) idempotency_keys: HashMap<(TaskType, String), TaskId>,
    /// Ordering keys that were removed from tasks.
    pub(super) ordering_keys: HashMap<TaskId, Key>,
    /// Wrong states to report.
    pub(super) reported_states: HashMap<TaskId, TaskState>,
    /// Attempts before a replay.
    pub(super) earlier_attempts: HashMap<TaskId, u32>,
    /// Tasks that were due at a "run now".
    pub(super) moved: BTreeSet<TaskId>,
    /// Calls that made tasks.
    pub(super) creations: u64,
    /// Outbox rows that were taken.
    pub(super) given: Vec<OutboxRow>,
}

impl Notes {
    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn is_tenth_creation(&self) -> bool {
        let mut state = self.state();
        state.creations += 1;
        state.creations == 10
    }
}
