//! What all connections to one database share.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use postrider_core::{BoxFuture, Capabilities, Deadline, Feature, MessagingError, QueueName, Support};
use postrider_pg::{Hint, Migration, Missed, Notifier, Schema, Step};
use postrider_provider::Provider;
use postrider_provider::Undone;
use postrider_sql::Wakes;

use crate::floor::{Floors, MARGIN};
use crate::migrations;
use crate::options::{PostgresOptions, WakeUpMode};
use crate::upkeep::{self, Upkeep};
use crate::{Database, PROVIDER, PostgresProvider};

/// So many queues are remembered. One process may meet any number of names.
pub(crate) const MOST_NAMES: usize = 10_000;

/// A schema of a database that holds queues. Clones are the same store.
#[derive(Debug, Clone)]
pub struct PostgresStore {
    pub(crate) shared: Arc<Shared>,
}

#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) database: Arc<Database>,
    pub(crate) options: PostgresOptions,
    pub(crate) capabilities: Capabilities,
    pub(crate) worker: String,
    pub(crate) wakes: Arc<Wakes>,
    /// `None` when nobody listens for what it would say.
    pub(crate) notifier: Option<Notifier<crate::sql::Sql>>,
    /// How often each queue was claimed from, for the turns of the oldest. A lock, held for an addition.
    claims: Mutex<HashMap<QueueName, u64>>,
    pub(crate) floors: Arc<Floors>,
    /// Ends with the store.
    _upkeep: Upkeep,
}

impl PostgresStore {
    /// Opens a database; makes the schema and applies missing migrations unless `auto_migrate` is off.
    pub fn open(url: &str, options: PostgresOptions) -> BoxFuture<'_, Result<Self, MessagingError>> {
        Box::pin(async move {
            const OPEN: &str = "open the database";
            let database = Arc::new(options.database(url)?);
            let deadline = Deadline::default();
            migrations::of(&database.sql.schema).prepare(&database, options.auto_migrate, OPEN, deadline).await?;
            let (wakes, floors) = (Arc::new(Wakes::default()), Arc::new(Floors::default()));
            let passed = floors.clone();
            let on_late = move |queue: Option<&QueueName>, missed| match queue {
                Some(queue) => passed.miss(queue, missed),
                None => passed.sweep_all(),
            };
            let notifier = (options.wake_up == WakeUpMode::Notify)
                .then(|| Notifier::start(database.clone(), wakes.clone(), database.sql.schema.channel(), on_late));
            let shared = Shared {
                capabilities: capabilities(&options),
                worker: postrider_pg::worker_name(options.worker.as_deref()),
                _upkeep: Upkeep::start(database.clone(), options.archive_retention),
                database,
                options,
                wakes,
                notifier,
                claims: Mutex::default(),
                floors,
            };
            Ok(Self { shared: Arc::new(shared) })
        })
    }

    /// Every migration that this program knows, for a schema.
    pub fn all_migrations(options: &PostgresOptions) -> Vec<Migration> {
        migrations::of(&Schema::new(&options.schema)).all()
    }

    /// The migrations that a database lacks. Changes nothing.
    pub fn pending_migrations(
        url: &str,
        options: PostgresOptions,
    ) -> BoxFuture<'_, Result<Vec<Migration>, MessagingError>> {
        Box::pin(async move {
            let database = options.database(url)?;
            migrations::of(&database.sql.schema).pending(&database, "look at the schema", Deadline::default()).await
        })
    }

    /// Applies what a database lacks, and answers what that was.
    pub fn migrate(url: &str, options: PostgresOptions) -> BoxFuture<'_, Result<Vec<Migration>, MessagingError>> {
        Box::pin(async move {
            let database = options.database(url)?;
            migrations::of(&database.sql.schema).apply(&database, "migrate the schema", Deadline::default()).await
        })
    }

    /// One more connection, in the sense of the contract: each is closed by itself, and they share a pool.
    pub fn connect(&self) -> Result<PostgresProvider, MessagingError> {
        Ok(PostgresProvider(Provider::new(self.clone())?))
    }

    /// Removes archived messages that are older than the retention, now, and answers how many. It is also done by
    /// itself, once a minute.
    pub async fn sweep_archive(&self, deadline: Deadline) -> Result<u64, MessagingError> {
        upkeep::sweep_archive(&self.shared.database, self.shared.options.archive_retention, deadline).await
    }
}

fn capabilities(options: &PostgresOptions) -> Capabilities {
    let capabilities = Capabilities::native(PROVIDER).with_limits(options.limits.clone());
    match options.wake_up {
        WakeUpMode::Notify => capabilities,
        WakeUpMode::PollOnly => capabilities.with(
            Feature::WakeUp,
            Support::emulated("what other processes send is noticed by a look at the table, once a poll_interval"),
        ),
    }
}

/// Others were in the way, and the server did not say so.
pub(crate) fn in_the_way(operation: &'static str, why: &'static str) -> Undone {
    let source: Box<dyn std::error::Error + Send + Sync> = format!("{why}; try again").into();
    Undone::InTheWay(MessagingError::Provider { provider: PROVIDER, operation, source: source.into(), retryable: true })
}

impl Shared {
    /// Tells those who wait, here and in other processes, that something in these queues can be received, by a
    /// transaction that was begun then.
    pub(crate) fn touch<'q>(&self, queues: impl IntoIterator<Item = &'q QueueName>, began: Instant) {
        let took = began.elapsed();
        let hint = if took < MARGIN { Hint::Fresh } else { Hint::Late(took) };
        let queues: Vec<&QueueName> = queues.into_iter().collect();
        self.tell_here(&queues, hint);
        if let Some(notifier) = self.notifier.as_ref().filter(|_| !queues.is_empty()) {
            notifier.note(&queues, hint);
        }
    }

    /// The same for this process alone.
    pub(crate) fn tell_here(&self, queues: &[&QueueName], hint: Hint) {
        if let Hint::Late(by) = hint {
            queues.iter().for_each(|queue| self.floors.miss(queue, Missed::For(by)));
        }
        self.wakes.tell(queues.iter().copied());
    }

    /// Counts a claim and answers how many there were before it.
    pub(crate) fn count_claim(&self, queue: &QueueName) -> u64 {
        let mut claims = self.claims.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(claims) = claims.get_mut(queue) {
            *claims = claims.wrapping_add(1);
            return claims.wrapping_sub(1);
        }
        // Only whose turn it is would be forgotten.
        if claims.len() >= MOST_NAMES {
            claims.clear();
        }
        claims.insert(queue.clone(), 1);
        0
    }

    /// Those of the queues that exist, by name.
    pub(crate) async fn queues_exist(
        &self,
        queues: &[QueueName],
        deadline: Deadline,
    ) -> Result<HashSet<String>, Undone> {
        let names: Vec<String> = queues.iter().map(|queue| queue.origin().as_str().to_owned()).collect();
        let mut session = self.database.session("look for queues", deadline).await?;
        let step = Step::new(&session.sql().queues_exist, [&names as _]);
        let found = session.ask(step).await?;
        Ok(found.iter().map(|row| row.get(0)).collect())
    }
}
