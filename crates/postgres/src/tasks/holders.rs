//! Why a task was not made: who has its idempotency key, or that its id is taken.

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

/// Why a task was not made.
pub(super) enum Holder {
    OfKey(Created),
    OfId,
}

fn holder(row: &Row) -> Option<(usize, Holder)> {
    let place = usize::try_from(row.get::<_, i64>(0)).ok()?;
    let holder = match row.get::<_, Option<Uuid>>(1) {
        Some(id) => Holder::OfKey(Created { id: TaskId::from_uuid(id), is_new: false, state: state(row, 2) }),
        None => row.get::<_, bool>(3).then_some(Holder::OfId)?,
    };
    Some((place, holder))
}

/// Tasks whose holders are looked for.
struct Wanted<'t> {
    places: Vec<i64>,
    types: Vec<&'t str>,
    keys: Vec<Option<&'t str>>,
    ids: Vec<Uuid>,
}

impl<'t> Wanted<'t> {
    fn of(tasks: &[&'t NewTask], places: &[usize]) -> Self {
        let wanted = || places.iter().map(|place| tasks[*place]);
        Self {
            places: places.iter().map(|place| *place as i64).collect(),
            types: wanted().map(|task| task.task_type.as_str()).collect(),
            keys: wanted().map(|task| task.idempotency_key.as_ref().map(|key| key.as_str())).collect(),
            ids: wanted().map(|task| *task.id.as_uuid()).collect(),
        }
    }

    fn parameters(&self) -> [&(dyn ToSql + Sync); 4] {
        [&self.places, &self.types, &self.keys, &self.ids]
    }
}

impl Tasks {
    /// Who has the idempotency keys of these tasks, or else their ids, by their places.
    pub(super) async fn holders(
        &self,
        tasks: &[&NewTask],
        places: &[usize],
        deadline: Deadline,
    ) -> Result<HashMap<usize, Holder>, Undone> {
        let wanted = Wanted::of(tasks, places);
        let found = persist(|| self.ask(CREATE, deadline, &self.sql().task_holders, wanted.parameters().into()));
        let found = found.await?;
        Ok(found.iter().filter_map(holder).collect())
    }

    /// The tasks that were made, or that have the idempotency keys of those that were not, in a transaction that has not
    /// ended.
    pub(super) async fn ids_in(
        &self,
        session: &Session<'_>,
        tasks: &[&NewTask],
        made: &Made,
    ) -> Result<Vec<TaskId>, Undone> {
        let is_left = |place: &usize| !made.ids.contains(tasks[*place].id.as_uuid());
        let left: Vec<usize> = (0..tasks.len()).filter(is_left).collect();
        let mut holders = HashMap::new();
        if !left.is_empty() {
            let wanted = Wanted::of(tasks, &left);
            let found = session.query(&session.sql().task_holders, &wanted.parameters()).await?;
            holders.extend(found.iter().filter_map(holder));
        }
        let id = |(place, task): (usize, &&NewTask)| match holders.get(&place) {
            Some(Holder::OfKey(created)) => Ok(created.id),
            Some(Holder::OfId) => Err(Undone::Rejected(id_is_taken(task.id))),
            None if !is_left(&place) => Ok(task.id),
            None => Err(too_fast()),
        };
        tasks.iter().enumerate().map(id).collect()
    }
}

/// Those who have the keys are forgotten as fast as they are made.
pub(super) fn too_fast() -> Undone {
    in_the_way(CREATE, "tasks with these idempotency keys come and go too fast")
}

pub(super) fn id_is_taken(id: TaskId) -> MessagingError {
    MessagingError::invalid(
        "task id",
        format!("there is a task {id} already; make a new id, or use an idempotency key to make a task once"),
    )
}
