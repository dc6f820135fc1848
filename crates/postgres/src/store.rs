//! The state that all connections to one database share.

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

/// Upper bound of remembered queues. A process may see any number of names.
pub(crate) const MAX_QUEUES: usize = 10_000;

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
    /// `None` in `PollOnly` mode.
    pub(crate) notifier: Option<Notifier<crate::sql::Sql>>,
    /// Claims of each queue, to count down to the next oldest-first claim. Held for an addition.
    claims: Mutex<HashMap<QueueName, u64>>,
    pub(crate) floors: Arc<Floors>,
    /// Stops with the store.
    _upkeep: Upkeep,
}

impl PostgresStore {
    /// Opens a database; creates the schema and applies missing migrations unless `auto_migrate` is off.
    pub fn open(url: &str, options: PostgresOptions) -> BoxFuture<'_, Result<Self, MessagingError>> {
        Box::pin(async move {
            const OPEN: &str = "open the database";
            let database = Arc::new(options.database(url)?);
            let deadline = Deadline::default();
            migrations::of(&database.sql.schema).prepare(&database, options.auto_migrate, OPEN, deadline).await?;
            let (wakes, floors) = (Arc::new(Wakes::default()), Arc::new(Floors::default()));
            let late = floors.clone();
            let on_late = move |queue: Option<&QueueName>, missed| match queue {
                Some(queue) => late.miss(queue, missed),
                None => late.request_full_scans(),
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

    /// Returns every migration that this program knows, for a schema.
    pub fn all_migrations(options: &PostgresOptions) -> Vec<Migration> {
        migrations::of(&Schema::new(&options.schema)).all()
    }

    /// Returns the migrations that a database lacks. Changes nothing.
    pub fn pending_migrations(
        url: &str,
        options: PostgresOptions,
    ) -> BoxFuture<'_, Result<Vec<Migration>, MessagingError>> {
        Box::pin(async move {
            let database = options.database(url)?;
            migrations::of(&database.sql.schema).pending(&database, "look at the schema", Deadline::default()).await
        })
    }

    /// Applies the migrations that a database lacks. Returns them.
    pub fn migrate(url: &str, options: PostgresOptions) -> BoxFuture<'_, Result<Vec<Migration>, MessagingError>> {
        Box::pin(async move {
            let database = options.database(url)?;
            migrations::of(&database.sql.schema).apply(&database, "migrate the schema", Deadline::default()).await
        })
    }

    /// Opens a connection in the sense of the contract: each is closed separately, and all share the pool.
    pub fn connect(&self) -> Result<PostgresProvider, MessagingError> {
        Ok(PostgresProvider(Provider::new(self.clone())?))
    }

    /// Removes archived messages older than the retention. Returns how many. It also runs in the background, about once
    /// a minute.
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

/// The retryable error for rows that other transactions have locked, where the server reports none.
pub(crate) fn in_the_way(operation: &'static str, why: &'static str) -> Undone {
    let source: Box<dyn std::error::Error + Send + Sync> = format!("{why}; try again").into();
    Undone::InTheWay(MessagingError::Provider { provider: PROVIDER, operation, source: source.into(), retryable: true })
}

impl Shared {
    /// Wakes waiting receivers of these queues, here and in other processes, after a transaction that began at `began`.
    pub(crate) fn touch<'q>(&self, queues: impl IntoIterator<Item = &'q QueueName>, began: Instant) {
        let took = began.elapsed();
        let hint = if took < MARGIN { Hint::Fresh } else { Hint::Late(took) };
        let queues: Vec<&QueueName> = queues.into_iter().collect();
        self.wake_local(&queues, hint);
        if let Some(notifier) = self.notifier.as_ref().filter(|_| !queues.is_empty()) {
            notifier.note(&queues, hint);
        }
    }

    /// Wakes waiting receivers of this process.
    pub(crate) fn wake_local(&self, queues: &[&QueueName], hint: Hint) {
        if let Hint::Late(by) = hint {
            queues.iter().for_each(|queue| self.floors.miss(queue, Missed::For(by)));
        }
        self.wakes.tell(queues.iter().copied());
    }

    /// Counts a claim. Returns the number of claims before it.
    pub(crate) fn count_claim(&self, queue: &QueueName) -> u64 {
        let mut claims = self.claims.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(claims) = claims.get_mut(queue) {
            *claims = claims.wrapping_add(1);
            return claims.wrapping_sub(1);
        }
        // Only the count down to the next oldest-first claim is lost.
        if claims.len() >= MAX_QUEUES {
            claims.clear();
        }
        claims.insert(queue.clone(), 1);
        0
    }

    /// Returns the names of the queues that exist.
    pub(crate) async fn queues_exist(
        &self,
        queues: &[QueueName],
        deadline: Deadline,
    ) -> Result<HashSet<String>, Undone> {
        let names: Vec<String> = queues.iter().map(|queue| queue.origin().as_str().to_owned()).collect();
        let mut session = self.database.session("look for queues", deadline).await?;
        let step = Step::new(&session.sql().queues_exist, [&names as _]);
        let found = session.ask(step).await?;
        Ok(found.iter().map(|row| row.get("name")).collect())
    }
}
