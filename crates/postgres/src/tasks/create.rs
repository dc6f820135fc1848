//! Where tasks are made.

use std::collections::HashSet;
use std::time::Instant;

use postrider_core::task::{Created, NewTask, TaskState};
use postrider_core::{Deadline, MessagingError, RowResults};
use postrider_pg::{Hint, NOTIFY, Ride, Step};
use postrider_provider::Undone;
use tokio_postgres::Row;
use uuid::Uuid;

use super::Tasks;
use super::columns::Columns;
use super::hints::News;
use super::holders::{Holder, id_is_taken, too_fast};
use super::keys::Keys;
use crate::Session;
use crate::floor::MARGIN;

pub(super) const CREATE: &str = "create tasks";

/// How often the holder of an idempotency key is looked for that comes and goes.
const TRIES: usize = 10;

/// Into so many parts a batch is divided of which some row is refused or has to wait, and each of these again.
const PARTS: usize = 8;

/// What creations brought.
#[derive(Debug, Default)]
pub(super) struct Made {
    pub(super) ids: HashSet<Uuid>,
    pub(super) keys: Keys,
}

impl Tasks {
    /// Makes tasks, in their order; each answers itself, or the one that has its idempotency key.
    pub(super) async fn create(&self, tasks: &[NewTask], deadline: Deadline) -> Result<RowResults<Created>, Undone> {
        let began = Instant::now();
        let mut results: Vec<Option<Result<Created, MessagingError>>> =
            tasks.iter().map(|task| self.check(task).err().map(Err)).collect();
        let chosen: Vec<&NewTask> =
            tasks.iter().zip(&results).filter(|(_, refused)| refused.is_none()).map(|(task, _)| task).collect();
        if chosen.is_empty() {
            return Ok(results.into_iter().flatten().collect());
        }
        let mut news = News::default();
        let types: HashSet<&str> = chosen.iter().map(|task| task.task_type.as_str()).collect();
        types.iter().for_each(|task_type| self.note_pending(&mut news, task_type));
        let (made, is_told) = self.make(&chosen, &news, began, deadline).await?;
        let mut keys = Keys::new();
        let made = made.into_iter().zip(results.iter_mut().filter(|result| result.is_none()));
        for (made, result) in made {
            *result = Some(made.map(|(created, key)| {
                keys.extend(key);
                created
            }));
        }
        if is_told {
            self.shared.tell_here(&news.names().collect::<Vec<_>>(), Hint::Fresh);
        } else {
            self.tell(&news, began);
        }
        self.place_own(&keys).await;
        Ok(results.into_iter().flatten().collect())
    }

    /// Makes tasks that may be made. Answers whether other processes were told with it.
    async fn make(
        &self,
        tasks: &[&NewTask],
        news: &News,
        began: Instant,
        deadline: Deadline,
    ) -> Result<(RowResults<Placed>, bool), Undone> {
        let ride = self.shared.notifier.as_ref().and_then(|notifier| notifier.ride(news.names()));
        let columns = Columns::of(tasks)?;
        let all = self.insert(&columns, ride.as_ref().map(Ride::payloads), deadline).await;
        let mut is_told = false;
        let made = match all {
            Ok(made) => {
                if let Some(ride) = ride {
                    ride.arrived();
                    // One that took too long is told again, as late.
                    is_told = began.elapsed() < MARGIN;
                }
                self.answers(tasks, made, deadline).await
            }
            // Some row, or the hints: where the server's queue of notifications is full, they must not cost a task.
            Err(Undone::InTheWay(_) | Undone::Rejected(_)) => {
                drop(ride);
                self.make_in_parts(tasks, deadline).await?
            }
            Err(error) => return Err(error),
        };
        Ok((made, is_told))
    }

    /// Tasks of which some id is taken, or some idempotency key is in a transaction that has not ended: nobody can tell
    /// which before it waits. So the batch is divided until the rows that are at fault stand alone.
    async fn make_in_parts(&self, tasks: &[&NewTask], deadline: Deadline) -> Result<RowResults<Placed>, Undone> {
        let (mut answers, mut parts) = (Vec::with_capacity(tasks.len()), vec![tasks]);
        while let Some(part) = parts.pop() {
            match self.insert_each(&Columns::of(part)?, deadline).await {
                Ok(made) => answers.extend(self.answers(part, made, deadline).await),
                Err(Undone::InTheWay(_) | Undone::Rejected(_)) if part.len() > 1 => {
                    parts.extend(part.chunks(part.len().div_ceil(PARTS)).rev());
                }
                Err(error) if part.len() == tasks.len() => return Err(error),
                // What was done for other parts must be told.
                Err(error) => {
                    answers.extend(part.iter().map(|_| Err(error.clone().into_error(CREATE, Vec::new()))));
                }
            }
        }
        Ok(answers)
    }

    /// The hints go with the tasks.
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

    /// The statement that leaves out what cannot be made, whatever the tasks have in common.
    async fn insert_each(&self, columns: &Columns<'_>, deadline: Deadline) -> Result<Made, Undone> {
        let mut session = self.shared.database.session(CREATE, deadline).await?;
        let step = columns.step(&session.sql().task_create);
        Ok(made(session.ask(step).await?.iter()))
    }

    /// Makes tasks inside a transaction that was begun.
    pub(super) async fn insert_in(&self, session: &Session<'_>, tasks: &[&NewTask]) -> Result<Made, Undone> {
        let columns = Columns::of(tasks)?;
        let step = columns.step(&session.sql().task_create);
        Ok(made(session.query(step.sql, &step.parameters).await?.iter()))
    }

    /// What each task came to, of those that were made and those that were left out. Of what was made something is told
    /// in any case: an error speaks of a task that was not.
    async fn answers(&self, tasks: &[&NewTask], mut made: Made, deadline: Deadline) -> RowResults<Placed> {
        let mut answers: Vec<Option<Result<Placed, MessagingError>>> = vec![None; tasks.len()];
        for turn in 0.. {
            for (task, answer) in tasks.iter().zip(&mut answers).filter(|(_, answer)| answer.is_none()) {
                // Once: a second one with the same id was left out.
                if made.ids.remove(task.id.as_uuid()) {
                    let key = task.ordering_key.as_ref().map(|key| (task.task_type.to_string(), key.to_string()));
                    let created = Created { id: task.id, is_new: true, state: TaskState::Pending };
                    *answer = Some(Ok((created, key)));
                }
            }
            let left: Vec<usize> = (0..tasks.len()).filter(|place| answers[*place].is_none()).collect();
            if left.is_empty() {
                break;
            }
            let next =
                if turn < TRIES { self.explain(tasks, &left, &mut answers, deadline).await } else { Err(too_fast()) };
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

    /// Finds out why these tasks were left out. Where nobody knows, because whoever had the key was forgotten between the
    /// two looks, they are made after all.
    async fn explain(
        &self,
        tasks: &[&NewTask],
        left: &[usize],
        answers: &mut [Option<Result<Placed, MessagingError>>],
        deadline: Deadline,
    ) -> Result<Made, Undone> {
        let holders = self.holders(tasks, left, deadline).await?;
        let mut gone = Vec::new();
        for place in left {
            match holders.get(place) {
                Some(Holder::OfKey(created)) => answers[*place] = Some(Ok((*created, None))),
                Some(Holder::OfId) => answers[*place] = Some(Err(id_is_taken(tasks[*place].id))),
                None => gone.push(tasks[*place]),
            }
        }
        if gone.is_empty() { Ok(Made::default()) } else { self.insert_each(&Columns::of(&gone)?, deadline).await }
    }
}

/// A task that was made or found, and its key if that has to be put in order.
type Placed = (Created, Option<(String, String)>);

fn made<'r>(rows: impl Iterator<Item = &'r Row>) -> Made {
    let mut made = Made::default();
    for row in rows {
        made.ids.insert(row.get(0));
        if let Some(key) = row.get::<_, Option<String>>(2) {
            made.keys.insert((row.get(1), key));
        }
    }
    made
}
