//! Why a task was left out: the holder of its idempotency key, or its taken id.

use std::collections::HashMap;

use postgres_types::ToSql;
use postrider_core::task::{Created, NewTask, TaskId};
use postrider_core::{Deadline, MessagingError};
use postrider_provider::{Undone, persist};
use tokio_postgres::Row;
use uuid::Uuid;

use super::Tasks;
use super::create::{CREATE, Made};
use super::rows::state;
use crate::Session;
use crate::store::in_the_way;

/// Why a task was left out.
pub(super) enum Holder {
    OfKey(Created),
    OfId,
}

fn holder(row: &Row) -> Option<(usize, Holder)> {
    let index = usize::try_from(row.get::<_, i64>("ordinal")).ok()?;
    let holder = match row.get::<_, Option<Uuid>>("task_id") {
        Some(id) => Holder::OfKey(Created { id: TaskId::from_uuid(id), is_new: false, state: state(row, "state") }),
        None => row.get::<_, bool>("is_id_taken").then_some(Holder::OfId)?,
    };
    Some((index, holder))
}

/// The tasks whose holders are looked up.
struct Wanted<'t> {
    indexes: Vec<i64>,
    types: Vec<&'t str>,
    keys: Vec<Option<&'t str>>,
    ids: Vec<Uuid>,
}

impl<'t> Wanted<'t> {
    fn of(tasks: &[&'t NewTask], indexes: &[usize]) -> Self {
        let wanted = || indexes.iter().map(|index| tasks[*index]);
        Self {
            indexes: indexes.iter().map(|index| *index as i64).collect(),
            types: wanted().map(|task| task.task_type.as_str()).collect(),
            keys: wanted().map(|task| task.idempotency_key.as_ref().map(|key| key.as_str())).collect(),
            ids: wanted().map(|task| *task.id.as_uuid()).collect(),
        }
    }

    fn parameters(&self) -> [&(dyn ToSql + Sync); 4] {
        [&self.indexes, &self.types, &self.keys, &self.ids]
    }
}

impl Tasks {
    /// Returns the holders of these tasks' idempotency keys, or else of their ids, by index.
    pub(super) async fn holders(
        &self,
        tasks: &[&NewTask],
        indexes: &[usize],
        deadline: Deadline,
    ) -> Result<HashMap<usize, Holder>, Undone> {
        let wanted = Wanted::of(tasks, indexes);
        let found = persist(|| self.ask(CREATE, deadline, &self.sql().task_holders, wanted.parameters().into()));
        let found = found.await?;
        Ok(found.iter().filter_map(holder).collect())
    }

    /// Returns the tasks of an open transaction that were created, or that hold the idempotency keys of those left out.
    pub(super) async fn ids_in(
        &self,
        session: &Session<'_>,
        tasks: &[&NewTask],
        made: &Made,
    ) -> Result<Vec<TaskId>, Undone> {
        let is_left = |index: &usize| !made.ids.contains(tasks[*index].id.as_uuid());
        let left: Vec<usize> = (0..tasks.len()).filter(is_left).collect();
        let mut holders = HashMap::new();
        if !left.is_empty() {
            let wanted = Wanted::of(tasks, &left);
            let found = session.query(&session.sql().task_holders, &wanted.parameters()).await?;
            holders.extend(found.iter().filter_map(holder));
        }
        let id = |(index, task): (usize, &&NewTask)| match holders.get(&index) {
            Some(Holder::OfKey(created)) => Ok(created.id),
            Some(Holder::OfId) => Err(Undone::Rejected(id_is_taken(task.id))),
            None if !is_left(&index) => Ok(task.id),
            None => Err(too_fast()),
        };
        tasks.iter().enumerate().map(id).collect()
    }
}

/// The error for keys whose holders are forgotten as fast as they are created.
pub(super) fn too_fast() -> Undone {
    in_the_way(CREATE, "tasks with these idempotency keys come and go too fast")
}

pub(super) fn id_is_taken(id: TaskId) -> MessagingError {
    MessagingError::invalid(
        "task id",
        format!("a task {id} exists already; generate another id, or use an idempotency key to create a task once"),
    )
}
