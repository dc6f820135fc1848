//! What a broken store remembers in order to be broken.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};

use postrider_core::Key;
use postrider_core::task::{ClaimedTask, OutboxRow, TaskId, TaskState, TaskType};

/// Notes on everything that passed through, shared by all connections, as a broken store would be.
#[derive(Debug, Default)]
pub(super) struct Notes(Mutex<Pages>);

#[derive(Debug, Default)]
pub(super) struct Pages {
    /// Every type that was ever made.
    pub(super) types: BTreeSet<TaskType>,
    /// The last claim of each task that has not ended since.
    pub(super) claimed: HashMap<TaskId, ClaimedTask>,
    /// What was claimed and could be claimed again.
    pub(super) last_claim: Option<ClaimedTask>,
    /// Which task has a key, by type and key.
    pub(super) idempotency_keys: HashMap<(TaskType, String), TaskId>,
    /// Keys that were taken off tasks.
    pub(super) ordering_keys: HashMap<TaskId, Key>,
    /// States that tasks are told to be in and are not.
    pub(super) told_states: HashMap<TaskId, TaskState>,
    /// Attempts that were made before a replay.
    pub(super) earlier_attempts: HashMap<TaskId, u32>,
    /// Tasks that were due when they were wanted now.
    pub(super) moved: BTreeSet<TaskId>,
    /// How many calls made tasks.
    pub(super) creations: u64,
    /// What was given of the outbox.
    pub(super) given: Vec<OutboxRow>,
}

impl Notes {
    pub(super) fn pages(&self) -> MutexGuard<'_, Pages> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn is_tenth_creation(&self) -> bool {
        let mut pages = self.pages();
        pages.creations += 1;
        pages.creations == 10
    }
}
