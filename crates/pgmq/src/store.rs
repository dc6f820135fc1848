//! The state that all connections to one database share.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use postgres_types::ToSql;
use postrider_core::{BoxFuture, Capabilities, Deadline, Feature, MessagingError, QueueName, ReceiveOptions, Support};
use postrider_pg::tokio_postgres::Row;
use postrider_pg::{Hint, Known, Migration, Migrations, Notifier, Schema, Step, worker_name};
use postrider_provider::Provider;
use postrider_provider::{Claimed, Undone};
use postrider_sql::Wakes;

use crate::indexes::Unindexed;
use crate::options::PgmqOptions;
use crate::queues::Queues;
use crate::sql::Sql;
use crate::upkeep::{self, Upkeep};
use crate::{Database, PROVIDER, PgmqProvider, install, names};

const STEPS: &[Known] = &[Known {
    version: 1,
    name: "0001_beside",
    sql: include_str!("../sql/migrations/0001_beside.sql"),
    works_since: 1,
}];

/// Statement timeout of index creation, enough for many million rows.
const INDEX_TIMEOUT: Duration = Duration::from_secs(3600);

/// A database with PGMQ in it. Clones are the same store.
#[derive(Debug, Clone)]
pub struct PgmqStore {
    pub(crate) shared: Arc<Shared>,
}

#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) database: Arc<Database>,
    pub(crate) schema: Schema,
    pub(crate) options: PgmqOptions,
    pub(crate) capabilities: Capabilities,
    pub(crate) worker: String,
    pub(crate) wakes: Arc<Wakes>,
    /// `None` without `enable_pg_notify`.
    pub(crate) notifier: Option<Notifier<Sql>>,
    pub(crate) queues: Queues,
    /// A separate pool, so that long index creations take no connection from other calls.
    pub(crate) indexing: Database,
    pub(crate) unindexed: Arc<Unindexed>,
    pub(crate) swept: upkeep::Swept,
}

pub(crate) fn migrations(options: &PgmqOptions) -> Migrations {
    let schema = Schema::new(&options.schema);
    Migrations { provider: PROVIDER, schema, steps: STEPS, first_table: "delayed" }
}

/// Returns the database of a URL: `pgmq+postgres://…`, or without the prefix.
pub(crate) fn database(url: &str, options: &PgmqOptions) -> Result<Database, MessagingError> {
    options.check()?;
    let url = url.strip_prefix("pgmq+").unwrap_or(url);
    Database::new(url, &options.connection(), Sql::new(&Schema::new(&options.schema)))
}

impl PgmqStore {
    /// Opens a database; creates the schema beside PGMQ's and applies missing migrations unless `auto_migrate` is off.
    pub fn open(url: &str, options: PgmqOptions) -> BoxFuture<'_, Result<Self, MessagingError>> {
        Box::pin(async move {
            const OPEN: &str = "open the database";
            let patient = PgmqOptions { pool_size: 1, statement_timeout: INDEX_TIMEOUT, ..options.clone() };
            let (indexing, database) = (database(url, &patient)?, Arc::new(database(url, &options)?));
            let deadline = Deadline::default();
            install::check(&database, OPEN, deadline).await?;
            migrations(&options).prepare(&database, options.auto_migrate, OPEN, deadline).await?;
            let (wakes, schema) = (Arc::new(Wakes::default()), Schema::new(&options.schema));
            let notifier = options
                .enable_pg_notify
                .then(|| Notifier::start(database.clone(), wakes.clone(), schema.channel(), |_, _| ()));
            let shared = Arc::new(Shared {
                capabilities: capabilities(&options),
                worker: worker_name(options.worker.as_deref()),
                database,
                schema,
                options,
                wakes,
                notifier,
                queues: Queues::default(),
                indexing,
                unindexed: Arc::default(),
                swept: upkeep::Swept::default(),
            });
            shared.queues.keep(Upkeep::start(&shared));
            Ok(Self { shared })
        })
    }

    /// Returns every migration that this program knows, for a schema.
    pub fn all_migrations(options: &PgmqOptions) -> Vec<Migration> {
        migrations(options).all()
    }

    /// Returns the migrations that a database lacks. Changes nothing.
    pub fn pending_migrations(
        url: &str,
        options: PgmqOptions,
    ) -> BoxFuture<'_, Result<Vec<Migration>, MessagingError>> {
        Box::pin(async move {
            const LOOK: &str = "look at the schema";
            let (database, deadline) = (database(url, &options)?, Deadline::default());
            install::check(&database, LOOK, deadline).await?;
            migrations(&options).pending(&database, LOOK, deadline).await
        })
    }

    /// Applies the migrations that a database lacks. Returns them.
    pub fn migrate(url: &str, options: PgmqOptions) -> BoxFuture<'_, Result<Vec<Migration>, MessagingError>> {
        Box::pin(async move {
            const MIGRATE: &str = "migrate the schema";
            let (database, deadline) = (database(url, &options)?, Deadline::default());
            install::check(&database, MIGRATE, deadline).await?;
            migrations(&options).apply(&database, MIGRATE, deadline).await
        })
    }

    /// Opens a connection in the sense of the contract: each is closed separately, and all share the pool.
    pub fn connect(&self) -> Result<PgmqProvider, MessagingError> {
        Ok(PgmqProvider(Provider::new(self.clone())?))
    }

    /// Leases the message with PGMQ's number if it can be claimed now, for a caller with an event that names it. The
    /// caller must settle it; a dropped message goes back only when its lease expires.
    pub async fn receive_by_msg_id(
        &self,
        queue: &QueueName,
        msg_id: i64,
        options: &ReceiveOptions,
        deadline: Deadline,
    ) -> Result<Option<Claimed>, MessagingError> {
        names::check(queue)?;
        options.check(&self.shared.capabilities.limits)?;
        let claim = || async { self.shared.claim_rows(queue, &[msg_id], options, deadline).await };
        let claimed = self.shared.if_exists(queue, deadline, claim).await;
        Ok(claimed.map_err(|error| error.into_error("receive", Vec::new()))?.flatten())
    }

    /// Removes messages that Postrider archived and that are older than the retention. Returns how many. It also runs
    /// in the background, about once a minute.
    pub async fn sweep_archive(&self, deadline: Deadline) -> Result<u64, MessagingError> {
        let swept = upkeep::sweep_archive(&self.shared, deadline).await;
        swept.map_err(|error| error.into_error("sweep the archive", Vec::new()))
    }
}

/// Returns the capabilities, with what PGMQ alone would not keep.
fn capabilities(options: &PgmqOptions) -> Capabilities {
    let emulated = [
        (Feature::Dedup, "a record beside the queue; what other clients send is not looked at"),
        (
            Feature::Fencing,
            "by own statements; PGMQ's take no token, so a late delete by another client is not stopped",
        ),
        (Feature::FreeRelease, "releases are counted apart in the headers; PGMQ's own count keeps them"),
        (Feature::Retry, "failures are counted in the headers, which other clients can see and change"),
        (Feature::DeliveryLimit, "only Postrider looks at it; reads by other clients count and are not limited"),
        (Feature::DeadLetters, "a move to the queue {queue}_dlq, with the record in the headers"),
        (
            Feature::OrderByKey,
            "by the header x-pgmq-group, between Postrider's senders and receivers; behind deep keys a claim looks at \
             the head of every key",
        ),
        (
            Feature::Delay,
            "long delays wait in a table beside the queue, and Postrider has to run to move them when they are due",
        ),
        (Feature::Expiry, "a time in the headers; other clients do not look at it"),
        (Feature::Pause, "a list beside the queues; other clients do not look at it"),
        (Feature::Archive, "PGMQ's archives have no index for ids, so a search by id reads them from the newest end"),
        (Feature::ReceiveById, "PGMQ has no index for ids, so all messages of the queue are looked at"),
    ];
    let capabilities = Capabilities::native(PROVIDER).with_limits(options.limits.clone());
    let capabilities = emulated
        .into_iter()
        .fold(capabilities, |capabilities, (feature, cost)| capabilities.with(feature, Support::emulated(cost)))
        .with(
            Feature::WaitingMessages,
            Support::refused("PGMQ's own set_vt, archive and delete act on one message, by its msg_id"),
        )
        .with(Feature::Priority, Support::refused("PGMQ has one order, and no index for another"))
        .with(
            Feature::AttemptHistory,
            Support::refused("a message's headers keep the number of its failures and the last error"),
        );
    if options.enable_pg_notify {
        return capabilities;
    }
    capabilities.with(
        Feature::WakeUp,
        Support::emulated("what other processes send is noticed by a look at the table, once a poll_interval"),
    )
}

impl Shared {
    /// Wakes waiting receivers of these queues, here and in other processes.
    pub(crate) fn touch<'q>(&self, queues: impl IntoIterator<Item = &'q QueueName>) {
        let queues: Vec<&QueueName> = queues.into_iter().collect();
        if queues.is_empty() {
            return;
        }
        self.wakes.tell(queues.iter().copied());
        if let Some(notifier) = &self.notifier {
            notifier.note(&queues, Hint::Fresh);
        }
    }

    /// Runs one statement in a transaction of its own.
    pub(crate) async fn ask(
        &self,
        operation: &'static str,
        deadline: Deadline,
        sql: &str,
        parameters: Vec<&(dyn ToSql + Sync)>,
    ) -> Result<Vec<Row>, Undone> {
        let mut session = self.database.session(operation, deadline).await?;
        session.ask(Step { sql, parameters }).await
    }

    /// Returns the queues that exist, by the names of their origins.
    pub(crate) async fn queues_exist(
        &self,
        queues: &[QueueName],
        deadline: Deadline,
    ) -> Result<HashSet<String>, Undone> {
        let names: Vec<String> = queues.iter().map(|queue| queue.origin().as_str().to_owned()).collect();
        let statement = &self.database.sql.general.queues_exist;
        let found = self.ask("look for queues", deadline, statement, vec![&names]).await?;
        Ok(found.iter().map(|row| row.get("name")).collect())
    }
}
