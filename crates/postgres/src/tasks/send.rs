//! The enqueuer: sends the messages that deliver tasks, to queues of the same schema or to the outbox.

use std::time::{Duration, Instant};

use postgres_types::ToSql;
use postrider_core::task::{Enqueued, Post, Stranded, TaskType};
use postrider_core::{Deadline, MessageId};
use postrider_provider::{Undone, persist};
use uuid::Uuid;

use super::Tasks;
use super::claim::Probes;
use super::hints::Notices;
use super::rows::{delay_column, duration};

const ENQUEUE: &str = "enqueue tasks";

/// Upper bound of one enqueue statement.
const MAX_SENT: usize = 1000;

/// Rounds in one call while keys are promoted meanwhile.
const MAX_ROUNDS: usize = 3;

/// Upper bound of the counts by type.
const MAX_COUNTED: i64 = 100_000;

/// The targets of the messages of a transition, as parameters of the statements.
#[derive(Debug)]
pub(super) struct Posting {
    /// Whether a task that goes back gets a message.
    pub(super) is_sent: bool,
    /// Whether messages go to queues of the same schema.
    pub(super) is_here: bool,
    /// Whether missing queues are created.
    pub(super) is_listed: bool,
    /// Prefix of the queue of a type.
    pub(super) prefix: String,
    /// The queue of death events.
    pub(super) events: Option<String>,
    /// Upper bound of characters of an error in an event.
    pub(super) room: i32,
}

impl Posting {
    pub(super) fn of(tasks: &Tasks) -> Self {
        let routes = &tasks.routes;
        Self {
            is_sent: tasks.is_queued(),
            is_here: routes.post == Post::Here,
            // Queues of tasks and events are always created: types are not known beforehand.
            is_listed: true,
            prefix: routes.queue_prefix.clone(),
            events: routes.dead_events.as_ref().map(|queue| queue.as_str().to_owned()),
            // A character takes up to six bytes in JSON.
            room: i32::try_from(tasks.max_payload_bytes().saturating_sub(1024) / 6).unwrap_or(i32::MAX),
        }
    }
}

/// Generates message ids. Here, because the server's own function takes ten times as long.
pub(super) fn message_ids(count: usize) -> Vec<Uuid> {
    (0..count).map(|_| *MessageId::generate().as_uuid()).collect()
}

impl Tasks {
    /// Enqueues due tasks of all types.
    pub(super) async fn enqueue_due(&self, limit: usize, deadline: Deadline) -> Result<Enqueued, Undone> {
        let mut count = 0;
        for round in 0..MAX_ROUNDS {
            let found = self.ask(ENQUEUE, deadline, &self.sql().task_types, Vec::new()).await?;
            let Some(row) = found.first() else { break };
            let types: Vec<String> = row.get("types");
            let has_promoted = row.get::<_, bool>("has_unplaced") && self.promote_left().await?;
            if has_promoted && round + 1 < MAX_ROUNDS {
                continue;
            }
            let turn = self.turns.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            let probes = Probes::new(types.iter().map(String::as_str), turn);
            while count < limit && !types.is_empty() {
                let wanted = (limit - count).min(MAX_SENT);
                let sent = self.enqueue(&probes, wanted, deadline).await?;
                count += sent;
                if sent < wanted {
                    break;
                }
            }
            if count >= limit {
                return Ok(Enqueued { count, next_due: None });
            }
            let parameters: Vec<&(dyn ToSql + Sync)> = vec![&probes.priorities, &probes.types];
            let found = self.ask(ENQUEUE, deadline, &self.sql().task_next_pending, parameters).await?;
            let next_due = found.first().and_then(|row| row.get::<_, Option<i64>>("due_in")).map(duration);
            return Ok(Enqueued { count, next_due });
        }
        Ok(Enqueued { count, next_due: None })
    }

    async fn enqueue(&self, probes: &Probes<'_>, limit: usize, deadline: Deadline) -> Result<usize, Undone> {
        let (began, posting) = (Instant::now(), Posting::of(self));
        let (wanted, ids) = (limit as i64, message_ids(limit));
        let sent = persist(|| {
            let parameters: Vec<&(dyn ToSql + Sync)> = vec![
                &probes.priorities,
                &probes.types,
                &wanted,
                &ids,
                &posting.is_here,
                &posting.is_listed,
                &posting.prefix,
            ];
            self.ask(ENQUEUE, deadline, &self.sql().task_enqueue, parameters)
        });
        let sent = sent.await?;
        let mut notices = Notices::default();
        sent.iter().for_each(|row| self.note_sent(&mut notices, row.get("task_type")));
        self.notify(&notices, began);
        Ok(sent.iter().map(|row| usize::try_from(row.get::<_, i64>("count")).unwrap_or(0)).sum())
    }

    /// Returns the types that have tasks enqueued for longer than `grace`.
    pub(super) async fn stranded(&self, grace: Duration, deadline: Deadline) -> Result<Vec<Stranded>, Undone> {
        let grace = delay_column(grace);
        let parameters: Vec<&(dyn ToSql + Sync)> = vec![&grace, &self.routes.queue_prefix, &MAX_COUNTED];
        let found = self.ask("look for stranded tasks", deadline, &self.sql().task_stranded, parameters).await?;
        let stranded = |row: &tokio_postgres::Row| {
            let count = |column| row.get::<_, i64>(column).max(0).unsigned_abs();
            Some(Stranded {
                task_type: TaskType::new(row.get::<_, &str>("task_type")).ok()?,
                enqueued: count("enqueued"),
                in_outbox: count("in_outbox"),
                processing: count("processing"),
            })
        };
        Ok(found.iter().filter_map(stranded).collect())
    }

    /// Sends the messages of tasks of a type again.
    pub(super) async fn resend(
        &self,
        task_type: &TaskType,
        limit: usize,
        grace: Duration,
        deadline: Deadline,
    ) -> Result<usize, Undone> {
        let (posting, grace, name) = (Posting::of(self), delay_column(grace), task_type.as_str());
        let mut count = 0;
        while count < limit {
            let began = Instant::now();
            let wanted = (limit - count).min(MAX_SENT);
            let (number, ids) = (wanted as i64, message_ids(wanted));
            let sent = persist(|| {
                let parameters: Vec<&(dyn ToSql + Sync)> =
                    vec![&name, &number, &grace, &ids, &posting.is_here, &posting.is_listed, &posting.prefix];
                self.ask(ENQUEUE, deadline, &self.sql().task_resend, parameters)
            });
            let sent = sent.await?.first().map_or(0, |row| usize::try_from(row.get::<_, i64>(0)).unwrap_or(0));
            let mut notices = Notices::default();
            if sent > 0 {
                self.note_sent(&mut notices, name);
            }
            self.notify(&notices, began);
            count += sent;
            if sent < wanted {
                break;
            }
        }
        Ok(count)
    }
}
