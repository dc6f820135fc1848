//! Operator actions on tasks: cancel, run now, replay, edit.

use std::collections::{HashMap, HashSet};
use std::time::Instant;

use postgres_types::ToSql;
use postrider_core::task::{TaskId, TaskState};
use postrider_core::{Bytes, Deadline, MessagingError, RowResults};
use postrider_provider::{Undone, persist};
use tokio_postgres::Row;
use uuid::Uuid;

use super::Tasks;
use super::hints::Notices;
use super::keys::Keys;
use super::rows::{state, task_id};
use crate::rows::{count, positions};

/// Attempts to change a task whose state changes meanwhile.
const TRIES: usize = 5;

/// A change to tasks that is refused in some states.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Change {
    Cancel,
    RunNow,
    Replay,
}

impl Change {
    pub(super) const fn operation(self) -> &'static str {
        match self {
            Self::Cancel => "cancel tasks",
            Self::RunNow => "run tasks now",
            Self::Replay => "replay tasks",
        }
    }

    /// Returns the word for an error.
    const fn done(self) -> &'static str {
        match self {
            Self::Cancel => "canceled",
            Self::RunNow => "run now",
            Self::Replay => "replayed",
        }
    }

    const fn is_allowed(self, state: TaskState) -> bool {
        match self {
            Self::Cancel => !state.is_terminal(),
            Self::RunNow => matches!(state, TaskState::Pending | TaskState::Enqueued),
            Self::Replay => matches!(state, TaskState::Dead),
        }
    }
}

impl Tasks {
    /// Changes tasks, each separately. Returns the previous state of each, where it is known.
    pub(super) async fn change(
        &self,
        change: Change,
        ids: &[TaskId],
        deadline: Deadline,
    ) -> Result<RowResults<Option<TaskState>>, Undone> {
        let mut left: Vec<Uuid> = ids.iter().map(|id| *id.as_uuid()).collect();
        left.sort_unstable();
        left.dedup();
        let mut answers: HashMap<TaskId, Result<Option<TaskState>, MessagingError>> = HashMap::new();
        for attempt in 1.. {
            if left.is_empty() {
                break;
            }
            let rows = self.change_some(change, &left, deadline).await?;
            let id = positions(&rows, ["task_id"])[0];
            for row in &rows {
                let was = (change == Change::Cancel).then(|| state(row, "was"));
                answers.insert(task_id(row, id), Ok(was));
            }
            left.retain(|id| !answers.contains_key(&TaskId::from_uuid(*id)));
            if left.is_empty() {
                break;
            }
            let seen = persist(|| self.states(&left)).await.map_err(|error| unknown_if_changed(error, &answers))?;
            left.retain(|id| {
                let id = TaskId::from_uuid(*id);
                let state = seen.get(&id).map(|seen| seen.state);
                answers.insert(id, Err(refused(change, id, state)));
                // The state changed between the two statements.
                attempt < TRIES && state.is_some_and(|state| change.is_allowed(state))
            });
            left.iter().for_each(|id| drop(answers.remove(&TaskId::from_uuid(*id))));
        }
        // A repeated id finds the task already changed.
        let mut is_first = HashSet::with_capacity(ids.len());
        let after = |state: &Option<TaskState>| match change {
            Change::Cancel => Some(TaskState::Canceled),
            Change::RunNow => *state,
            Change::Replay => Some(TaskState::Pending),
        };
        let answer = |id: &TaskId| match answers.get(id) {
            Some(Ok(state)) if change == Change::RunNow || is_first.insert(*id) => Ok(*state),
            Some(Ok(state)) => Err(refused(change, *id, after(state))),
            Some(Err(error)) => Err(error.clone()),
            None => Err(refused(change, *id, None)),
        };
        Ok(ids.iter().map(answer).collect())
    }

    /// Changes the tasks whose state allows it. Returns their rows.
    async fn change_some(&self, change: Change, ids: &[Uuid], deadline: Deadline) -> Result<Vec<Row>, Undone> {
        let began = Instant::now();
        let sql = self.sql();
        let statement = match change {
            Change::Cancel => &sql.task_cancel,
            Change::RunNow => &sql.task_run_now,
            Change::Replay => &sql.task_replay,
        };
        let changed = persist(|| self.ask(change.operation(), deadline, statement, vec![&ids])).await?;
        let (mut notices, mut keys) = (Notices::default(), Keys::new());
        let [task_type, key] = positions(&changed, ["task_type", "ordering_key"]);
        for row in &changed {
            match row.get::<_, Option<String>>(key) {
                Some(key) => drop(keys.insert((row.get(task_type), key))),
                None if change != Change::Cancel => self.note_pending(&mut notices, row.get(task_type)),
                None => {}
            }
        }
        self.notify(&notices, began);
        self.promote_own(&keys).await;
        Ok(changed)
    }

    /// Changes the payload of a dead task. Returns the number of the new revision.
    pub(super) async fn edit_payload(&self, id: TaskId, payload: &Bytes, deadline: Deadline) -> Result<u32, Undone> {
        const EDIT: &str = "edit a task";
        let most = self.max_payload_bytes();
        if payload.len() > most {
            let why = format!("it has {} bytes, at most {most} are allowed", payload.len());
            return Err(MessagingError::invalid("payload", why).into());
        }
        let bytes = &**payload;
        for _ in 0..TRIES {
            let edited = persist(|| {
                let parameters: Vec<&(dyn ToSql + Sync)> = vec![id.as_uuid(), &bytes];
                self.ask(EDIT, deadline, &self.sql().task_edit_payload, parameters)
            });
            if let Some(row) = edited.await?.first() {
                return Ok(count(row, "revision"));
            }
            let seen = self.states(&[*id.as_uuid()]).await?;
            let state = seen.get(&id).map(|seen| seen.state);
            if state != Some(TaskState::Dead) {
                return Err(conflict(id, state, "edited").into());
            }
        }
        Err(conflict(id, Some(TaskState::Dead), "edited").into())
    }
}

fn refused(change: Change, id: TaskId, state: Option<TaskState>) -> MessagingError {
    conflict(id, state, change.done())
}

fn conflict(id: TaskId, state: Option<TaskState>, operation: &'static str) -> MessagingError {
    match state {
        Some(state) => MessagingError::TaskConflict { id, state, operation },
        None => MessagingError::TaskNotFound { id },
    }
}

/// Turns an error after the first change into an unknown outcome.
fn unknown_if_changed<T>(error: Undone, done: &HashMap<TaskId, T>) -> Undone {
    if done.is_empty() { error } else { Undone::Unknown(error.into_harmless()) }
}
