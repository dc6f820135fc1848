//! The columns of new tasks.

use postgres_types::ToSql;
use postrider_core::MessagingError;
use postrider_core::task::NewTask;
use postrider_pg::Step;
use uuid::Uuid;

use super::rows::{strategy_column, unwritable, when_columns};
use crate::rows::Time;

/// The columns of a batch: one array each.
#[derive(Default)]
pub(super) struct Columns<'t> {
    pub(super) ids: Vec<Uuid>,
    types: Vec<&'t str>,
    priorities: Vec<i16>,
    scheduled_for: Vec<Option<Time>>,
    delays: Vec<Option<i64>>,
    max_attempts: Vec<i64>,
    deadlines: Vec<Option<Time>>,
    lifetimes: Vec<Option<i64>>,
    ordering_keys: Vec<Option<&'t str>>,
    idempotency_keys: Vec<Option<&'t str>>,
    strategies: Vec<Option<String>>,
    tags: Vec<Option<String>>,
    schedules: Vec<Option<&'t str>>,
    payloads: Vec<&'t [u8]>,
    /// The tags of the first task, which all tasks of a uniform batch share.
    first_tags: Option<&'t [String]>,
}

impl<'t> Columns<'t> {
    pub(super) fn of(tasks: &[&'t NewTask]) -> Result<Self, MessagingError> {
        let first_tags = tasks.first().map(|task| &*task.tags).filter(|tags| !tags.is_empty());
        let mut columns = Self { first_tags, ..Self::default() };
        tasks.iter().try_for_each(|task| columns.push(task)).map(|()| columns)
    }

    fn push(&mut self, task: &'t NewTask) -> Result<(), MessagingError> {
        self.ids.push(*task.id.as_uuid());
        self.types.push(task.task_type.as_str());
        self.priorities.push(task.priority.get().into());
        let (at, delay) = when_columns(task.scheduled_for);
        self.scheduled_for.push(at);
        self.delays.push(delay);
        self.max_attempts.push(task.attempts().get().into());
        let (at, lifetime) = task.deadline.map_or((None, None), when_columns);
        self.deadlines.push(at);
        self.lifetimes.push(lifetime);
        self.ordering_keys.push(task.ordering_key.as_ref().map(|key| key.as_str()));
        self.idempotency_keys.push(task.idempotency_key.as_ref().map(|key| key.as_str()));
        self.strategies.push(strategy_column(task.retry_strategy.as_ref())?);
        let tags = (!task.tags.is_empty()).then(|| serde_json::to_string(&task.tags)).transpose();
        self.tags.push(tags.map_err(|error| unwritable("tags", error))?);
        self.schedules.push(task.schedule.as_deref());
        self.payloads.push(&task.payload);
        Ok(())
    }

    /// Whether the tasks differ only in ids and payloads, and have no keys.
    pub(super) fn is_alike(&self) -> bool {
        fn all_same<T: PartialEq>(values: &[T]) -> bool {
            values.windows(2).all(|pair| pair[0] == pair[1])
        }
        self.ordering_keys.iter().chain(&self.idempotency_keys).all(Option::is_none)
            && all_same(&self.types)
            && all_same(&self.priorities)
            && all_same(&self.scheduled_for)
            && all_same(&self.delays)
            && all_same(&self.max_attempts)
            && all_same(&self.deadlines)
            && all_same(&self.lifetimes)
            && all_same(&self.strategies)
            && all_same(&self.tags)
            && all_same(&self.schedules)
    }

    pub(super) fn step<'p>(&'p self, sql: &'p str) -> Step<'p> {
        let parameters: [&(dyn ToSql + Sync); 14] = [
            &self.ids,
            &self.types,
            &self.priorities,
            &self.scheduled_for,
            &self.delays,
            &self.max_attempts,
            &self.deadlines,
            &self.lifetimes,
            &self.ordering_keys,
            &self.idempotency_keys,
            &self.strategies,
            &self.tags,
            &self.schedules,
            &self.payloads,
        ];
        Step::new(sql, parameters)
    }

    /// `None` without tasks.
    pub(super) fn alike_step<'p>(&'p self, sql: &'p str) -> Option<Step<'p>> {
        let parameters: [&(dyn ToSql + Sync); 12] = [
            self.types.first()?,
            self.priorities.first()?,
            self.scheduled_for.first()?,
            self.delays.first()?,
            self.max_attempts.first()?,
            self.deadlines.first()?,
            self.lifetimes.first()?,
            self.strategies.first()?,
            &self.first_tags,
            self.schedules.first()?,
            &self.ids,
            &self.payloads,
        ];
        Some(Step::new(sql, parameters))
    }
}
