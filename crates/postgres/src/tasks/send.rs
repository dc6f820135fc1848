//! Where tasks are sent on their way, and what is told of them: into the queues of the same schema, or into the outbox.

use std::time::{Duration, Instant};

use postgres_types::ToSql;
use postrider_core::task::{Enqueued, Post, Stranded, TaskType};
use postrider_core::{Deadline, MessageId};
use postrider_provider::{Undone, persist};
use uuid::Uuid;

use super::Tasks;
use super::claim::Probes;
use super::hints::News;
use super::rows::{delay_column, duration};

const SEND: &str = "send tasks on their way";

/// So many tasks are sent on their way by one statement at most.
const MOST_SENT: usize = 1000;

/// So often the tasks of keys that were put in order meanwhile are sent as well.
const MOST_ROUNDS: usize = 3;

/// Tasks of a type are counted no further.
const MOST_COUNTED: i64 = 100_000;

/// Where messages go that belong to a transition, as the statements take it.
#[derive(Debug)]
pub(super) struct Posting {
    /// Whether a task that goes back is delivered by a message.
    pub(super) is_sent: bool,
    /// Whether messages go into the queues of the same schema.
    pub(super) is_here: bool,
    /// Whether a queue that is missing is made.
    pub(super) is_listed: bool,
    /// What the queue of a type is called before the type's name.
    pub(super) prefix: String,
    /// The queue of the events of deaths.
    pub(super) events: Option<String>,
    /// How many characters of an error an event has room for.
    pub(super) room: i32,
}

impl Posting {
    pub(super) fn of(tasks: &Tasks) -> Self {
        let routes = &tasks.routes;
        Self {
            is_sent: tasks.is_queued(),
            is_here: routes.post == Post::Here,
            // Queues of tasks and of events are made whether or not others are: nobody could name each type beforehand.
            is_listed: true,
            prefix: routes.queue_prefix.clone(),
            events: routes.dead_events.as_ref().map(|queue| queue.as_str().to_owned()),
            // Every character may take six bytes in JSON.
            room: i32::try_from(tasks.max_payload_bytes().saturating_sub(1024) / 6).unwrap_or(i32::MAX),
        }
    }
}

/// New ids of messages. Made here: the server's own function takes ten times as long.
pub(super) fn message_ids(count: usize) -> Vec<Uuid> {
    (0..count).map(|_| *MessageId::generate().as_uuid()).collect()
}

impl Tasks {
    /// Sends due tasks on their way, of all types.
    pub(super) async fn enqueue_due(&self, limit: usize, deadline: Deadline) -> Result<Enqueued, Undone> {
        let mut count = 0;
        for round in 0..MOST_ROUNDS {
            let found = self.ask(SEND, deadline, &self.sql().task_types, Vec::new()).await?;
            let Some(row) = found.first() else { break };
            let types: Vec<String> = row.get(0);
            let is_placed = row.get::<_, bool>(1) && self.place_left().await?;
            if is_placed && round + 1 < MOST_ROUNDS {
                continue;
            }
            let turn = self.turns.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            let probes = Probes::new(types.iter().map(String::as_str), turn);
            while count < limit && !types.is_empty() {
                let wanted = (limit - count).min(MOST_SENT);
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
            let found = self.ask(SEND, deadline, &self.sql().task_next_pending, parameters).await?;
            let next_due = found.first().and_then(|row| row.get::<_, Option<i64>>(0)).map(duration);
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
            self.ask(SEND, deadline, &self.sql().task_enqueue, parameters)
        });
        let sent = sent.await?;
        let mut news = News::default();
        sent.iter().for_each(|row| self.note_sent(&mut news, row.get(0)));
        self.tell(&news, began);
        Ok(sent.iter().map(|row| usize::try_from(row.get::<_, i64>(1)).unwrap_or(0)).sum())
    }

    /// Types of which some task has been on its way for longer than `grace`.
    pub(super) async fn stranded(&self, grace: Duration, deadline: Deadline) -> Result<Vec<Stranded>, Undone> {
        let grace = delay_column(grace);
        let parameters: Vec<&(dyn ToSql + Sync)> = vec![&grace, &self.routes.queue_prefix, &MOST_COUNTED];
        let found = self.ask("look for stranded tasks", deadline, &self.sql().task_stranded, parameters).await?;
        let stranded = |row: &tokio_postgres::Row| {
            let count = |column| row.get::<_, i64>(column).max(0).unsigned_abs();
            Some(Stranded {
                task_type: TaskType::new(row.get::<_, &str>(0)).ok()?,
                enqueued: count(1),
                in_outbox: count(2),
                processing: count(3),
            })
        };
        Ok(found.iter().filter_map(stranded).collect())
    }

    /// Sends tasks of a type again.
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
            let wanted = (limit - count).min(MOST_SENT);
            let (number, ids) = (wanted as i64, message_ids(wanted));
            let sent = persist(|| {
                let parameters: Vec<&(dyn ToSql + Sync)> =
                    vec![&name, &number, &grace, &ids, &posting.is_here, &posting.is_listed, &posting.prefix];
                self.ask(SEND, deadline, &self.sql().task_resend, parameters)
            });
            let sent = sent.await?.first().map_or(0, |row| usize::try_from(row.get::<_, i64>(0)).unwrap_or(0));
            let mut news = News::default();
            if sent > 0 {
                self.note_sent(&mut news, name);
            }
            self.tell(&news, began);
            count += sent;
            if sent < wanted {
                break;
            }
        }
        Ok(count)
    }
}
