//! Creation of tasks.

use std::collections::HashSet;
use std::time::Instant;

use postrider_core::task::{Created, NewTask, TaskState};
use postrider_core::{Deadline, MessagingError, RowResults};
use postrider_pg::{Hint, HintBatch, NOTIFY, Step};
use postrider_provider::Undone;
use tokio_postgres::Row;
use uuid::Uuid;

use super::Tasks;
use super::columns::Columns;
use super::hints::Notices;
use super::holders::{Holder, id_is_taken, too_fast};
use super::keys::Keys;
use crate::Session;
use crate::floor::MARGIN;

pub(super) const CREATE: &str = "create tasks";

/// Attempts to find the holder of an idempotency key that comes and goes.
const TRIES: usize = 10;

/// Number of parts into which a batch is divided when a row is refused or would have to wait.
const PARTS: usize = 8;

/// The tasks that a statement created.
#[derive(Debug, Default)]
pub(super) struct Made {
    pub(super) ids: HashSet<Uuid>,
    pub(super) keys: Keys,
}

impl Tasks {
    /// Creates tasks, in order. Returns each, or the task with its idempotency key.
    pub(super) async fn create(&self, tasks: &[NewTask], deadline: Deadline) -> Result<RowResults<Created>, Undone> {
        let began = Instant::now();
        let mut results: Vec<Option<Result<Created, MessagingError>>> =
            tasks.iter().map(|task| self.check(task).err().map(Err)).collect();
        let chosen: Vec<&NewTask> =
            tasks.iter().zip(&results).filter(|(_, refused)| refused.is_none()).map(|(task, _)| task).collect();
        if chosen.is_empty() {
            return Ok(results.into_iter().flatten().collect());
        }
        let mut notices = Notices::default();
        let types: HashSet<&str> = chosen.iter().map(|task| task.task_type.as_str()).collect();
        types.iter().for_each(|task_type| self.note_pending(&mut notices, task_type));
        let (made, is_announced) = self.make(&chosen, &notices, began, deadline).await?;
        let mut keys = Keys::new();
        let made = made.into_iter().zip(results.iter_mut().filter(|result| result.is_none()));
        for (made, result) in made {
            *result = Some(made.map(|(created, key)| {
                keys.extend(key);
                created
            }));
        }
        if is_announced {
            self.shared.wake_local(&notices.names().collect::<Vec<_>>(), Hint::Fresh);
        } else {
            self.notify(&notices, began);
        }
        self.promote_own(&keys).await;
        Ok(results.into_iter().flatten().collect())
    }

    /// Creates checked tasks. Returns whether other processes were notified in the same transaction.
    async fn make(
        &self,
        tasks: &[&NewTask],
        notices: &Notices,
        began: Instant,
        deadline: Deadline,
    ) -> Result<(RowResults<CreatedRow>, bool), Undone> {
        let hints = self.shared.notifier.as_ref().and_then(|notifier| notifier.take_hints(notices.names()));
        let columns = Columns::of(tasks)?;
        let all = self.insert(&columns, hints.as_ref().map(HintBatch::payloads), deadline).await;
        let mut is_announced = false;
        let made = match all {
            Ok(made) => {
                if let Some(hints) = hints {
                    hints.committed();
                    // If it took too long, announce it again, as late.
                    is_announced = began.elapsed() < MARGIN;
                }
                self.answers(tasks, made, deadline).await
            }
            // A row was refused, or the hints were, because the server's notification queue is full.
            Err(Undone::InTheWay(_) | Undone::Rejected(_)) => {
                drop(hints);
                self.make_in_parts(tasks, deadline).await?
            }
            Err(error) => return Err(error),
        };
        Ok((made, is_announced))
    }

    /// Creates tasks of which an id is taken, or an idempotency key is held by an open transaction. Which one shows
    /// only by waiting, so the batch is divided until the failing rows are alone.
    async fn make_in_parts(&self, tasks: &[&NewTask], deadline: Deadline) -> Result<RowResults<CreatedRow>, Undone> {
        let (mut answers, mut parts) = (Vec::with_capacity(tasks.len()), vec![tasks]);
        while let Some(part) = parts.pop() {
            match self.insert_each(&Columns::of(part)?, deadline).await {
                Ok(made) => answers.extend(self.answers(part, made, deadline).await),
                Err(Undone::InTheWay(_) | Undone::Rejected(_)) if part.len() > 1 => {
                    parts.extend(part.chunks(part.len().div_ceil(PARTS)).rev());
                }
                Err(error) if part.len() == tasks.len() => return Err(error),
                // Other parts were created; report the error for this part only.
                Err(error) => {
                    answers.extend(part.iter().map(|_| Err(error.clone().into_error(CREATE, Vec::new()))));
                }
            }
        }
        Ok(answers)
    }

    /// Inserts the tasks, and sends the hints in the same transaction.
    async fn insert(
        &self,
        columns: &Columns<'_>,
        hints: Option<&[String]>,
        deadline: Deadline,
    ) -> Result<Made, Undone> {
        let mut session = self.shared.database.session(CREATE, deadline).await?;
        let (sql, channel) = (session.sql(), self.sql().schema.channel());
        let alike = columns.is_alike().then(|| columns.alike_step(&sql.task_create_alike)).flatten();
        let is_alike = alike.is_some();
        let mut steps = vec![alike.unwrap_or_else(|| columns.step(&sql.task_create))];
        if let Some(hints) = &hints {
            steps.push(Step::new(NOTIFY, [&channel as _, hints as _]));
        }
        let answers = session.run(&steps).await?;
        Ok(match is_alike {
            true => Made { ids: columns.ids.iter().copied().collect(), keys: Keys::new() },
            false => made(answers.first().into_iter().flatten()),
        })
    }

    /// Inserts tasks by the statement that leaves out those that cannot be created.
    async fn insert_each(&self, columns: &Columns<'_>, deadline: Deadline) -> Result<Made, Undone> {
        let mut session = self.shared.database.session(CREATE, deadline).await?;
        let step = columns.step(&session.sql().task_create);
        Ok(made(session.ask(step).await?.iter()))
    }

    /// Inserts tasks inside an open transaction.
    pub(super) async fn insert_in(&self, session: &Session<'_>, tasks: &[&NewTask]) -> Result<Made, Undone> {
        let columns = Columns::of(tasks)?;
        let step = columns.step(&session.sql().task_create);
        Ok(made(session.query(step.sql, &step.parameters).await?.iter()))
    }

    /// Returns the result of each task, created or left out. An error is reported only for tasks that were not created.
    async fn answers(&self, tasks: &[&NewTask], mut made: Made, deadline: Deadline) -> RowResults<CreatedRow> {
        let mut answers: Vec<Option<Result<CreatedRow, MessagingError>>> = vec![None; tasks.len()];
        for attempt in 0.. {
            for (task, answer) in tasks.iter().zip(&mut answers).filter(|(_, answer)| answer.is_none()) {
                // Once: a second task with the same id was left out.
                if made.ids.remove(task.id.as_uuid()) {
                    let key = task.ordering_key.as_ref().map(|key| (task.task_type.to_string(), key.to_string()));
                    let created = Created { id: task.id, is_new: true, state: TaskState::Pending };
                    *answer = Some(Ok((created, key)));
                }
            }
            let left: Vec<usize> = (0..tasks.len()).filter(|index| answers[*index].is_none()).collect();
            if left.is_empty() {
                break;
            }
            let next = if attempt < TRIES {
                self.explain(tasks, &left, &mut answers, deadline).await
            } else {
                Err(too_fast())
            };
            match next {
                Ok(next) => made = next,
                Err(error) => {
                    let unmade = answers.iter_mut().filter(|answer| answer.is_none());
                    unmade.for_each(|answer| *answer = Some(Err(error.clone().into_error(CREATE, Vec::new()))));
                }
            }
        }
        answers.into_iter().flatten().collect()
    }

    /// Finds out why these tasks were left out. Where no holder exists any more, because it was forgotten between the
    /// two statements, they are created after all.
    async fn explain(
        &self,
        tasks: &[&NewTask],
        left: &[usize],
        answers: &mut [Option<Result<CreatedRow, MessagingError>>],
        deadline: Deadline,
    ) -> Result<Made, Undone> {
        let holders = self.holders(tasks, left, deadline).await?;
        let mut gone = Vec::new();
        for index in left {
            match holders.get(index) {
                Some(Holder::OfKey(created)) => answers[*index] = Some(Ok((*created, None))),
                Some(Holder::OfId) => answers[*index] = Some(Err(id_is_taken(tasks[*index].id))),
                None => gone.push(tasks[*index]),
            }
        }
        if gone.is_empty() { Ok(Made::default()) } else { self.insert_each(&Columns::of(&gone)?, deadline).await }
    }
}

/// A task that was created or found, and its key if that has to be promoted.
type CreatedRow = (Created, Option<(String, String)>);

fn made<'r>(rows: impl Iterator<Item = &'r Row>) -> Made {
    let mut made = Made::default();
    for row in rows {
        made.ids.insert(row.get("task_id"));
        if let Some(key) = row.get::<_, Option<String>>("ordering_key") {
            made.keys.insert((row.get("task_type"), key));
        }
    }
    made
}
