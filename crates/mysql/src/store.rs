//! The state that all connections to one database share.

use std::collections::HashSet;
use std::sync::Arc;

use postrider_core::{BoxFuture, Capabilities, Deadline, Feature, MessagingError, QueueName, Support};
use postrider_provider::Provider;
use postrider_provider::Undone;
use postrider_sql::Wakes;

use crate::claim_history::ClaimHistories;
use crate::connection::Database;
use crate::literal::{self, fill};
use crate::migrations::{self, Migration, SchemaError};
use crate::options::MysqlOptions;
use crate::plain::Sizes;
use crate::rows;
use crate::upkeep::{self, Upkeep};
use crate::{MysqlProvider, PROVIDER};

/// A database that holds queues. Clones are the same store.
#[derive(Debug, Clone)]
pub struct MysqlStore {
    pub(crate) shared: Arc<Shared>,
}

#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) database: Arc<Database>,
    pub(crate) options: MysqlOptions,
    pub(crate) capabilities: Capabilities,
    pub(crate) worker: String,
    pub(crate) wakes: Arc<Wakes>,
    pub(crate) histories: ClaimHistories,
    pub(crate) sizes: Sizes,
    /// Stops with the store.
    _upkeep: Upkeep,
}

impl MysqlStore {
    /// Opens a database; applies missing migrations unless `auto_migrate` is off.
    pub fn open(url: &str, options: MysqlOptions) -> BoxFuture<'_, Result<Self, MessagingError>> {
        Box::pin(async move {
            const OPEN: &str = "open the database";
            options.check()?;
            let database = Arc::new(Database::new(url, &options)?);
            let deadline = Deadline::default();
            if options.auto_migrate {
                migrations::apply(&database, OPEN, deadline).await?;
            } else {
                let missing = migrations::pending(&database, OPEN, deadline).await?;
                if !missing.is_empty() {
                    let missing = missing.iter().map(|step| step.name).collect::<Vec<_>>().join(", ");
                    let schema = database.schema.name().to_owned();
                    return Err(SchemaError::NeedsMigration { schema, missing }.into_error(OPEN));
                }
            }
            let wakes = Arc::new(Wakes::default());
            let shared = Shared {
                capabilities: capabilities(&options),
                worker: options.worker_name(),
                _upkeep: Upkeep::start(database.clone(), options.archive_retention),
                database,
                options,
                wakes,
                histories: ClaimHistories::default(),
                sizes: Sizes::default(),
            };
            Ok(Self { shared: Arc::new(shared) })
        })
    }

    /// Returns every migration that this program knows, for the database of a URL.
    pub fn all_migrations(url: &str, options: &MysqlOptions) -> Result<Vec<Migration>, MessagingError> {
        Ok(migrations::all(&Database::new(url, options)?.schema))
    }

    /// Returns the migrations that a database lacks. Changes nothing.
    pub fn pending_migrations(
        url: &str,
        options: MysqlOptions,
    ) -> BoxFuture<'_, Result<Vec<Migration>, MessagingError>> {
        Box::pin(async move {
            options.check()?;
            let database = Database::new(url, &options)?;
            migrations::pending(&database, "look at the schema", Deadline::default()).await
        })
    }

    /// Applies the migrations that a database lacks. Returns them.
    pub fn migrate(url: &str, options: MysqlOptions) -> BoxFuture<'_, Result<Vec<Migration>, MessagingError>> {
        Box::pin(async move {
            options.check()?;
            let database = Database::new(url, &options)?;
            migrations::apply(&database, "migrate the schema", Deadline::default()).await
        })
    }

    /// Opens a connection in the sense of the contract: each is closed separately, and all share the pool.
    pub fn connect(&self) -> Result<MysqlProvider, MessagingError> {
        Ok(MysqlProvider(Provider::new(self.clone())?))
    }

    /// Removes archived messages older than the retention. Returns how many. It also runs in the background, about once
    /// a minute.
    pub async fn sweep_archive(&self, deadline: Deadline) -> Result<u64, MessagingError> {
        upkeep::sweep_archive(&self.shared.database, self.shared.options.archive_retention, deadline).await
    }
}

fn capabilities(options: &MysqlOptions) -> Capabilities {
    Capabilities::native(PROVIDER).with_limits(options.limits.clone()).with(
        Feature::WakeUp,
        Support::emulated("what other processes send is noticed by a look at the table, once a poll_interval"),
    )
}

impl Shared {
    /// Wakes waiting receivers of these queues in this process.
    pub(crate) fn touch<'q>(&self, queues: impl IntoIterator<Item = &'q QueueName>) {
        let queues: Vec<&QueueName> = queues.into_iter().collect();
        if queues.is_empty() {
            return;
        }
        self.wakes.tell(queues.iter().copied());
    }

    /// Returns the names of the queues that exist.
    pub(crate) async fn queues_exist(
        &self,
        queues: &[QueueName],
        deadline: Deadline,
    ) -> Result<HashSet<String>, Undone> {
        let names = literal::list(queues.iter().map(|queue| literal::bytes(queue.origin().as_str().as_bytes())));
        let look = fill(&self.database.sql.queues_exist, &[("names", &names)]);
        let found = self.ask("look for queues", deadline, look).await?;
        Ok(found.iter().map(|row| rows::text(row, "name")).collect())
    }
}

/// Returns the statements that list queues.
pub(crate) fn ensure_queues<'q>(statement: &str, queues: impl IntoIterator<Item = &'q QueueName>) -> String {
    let ensure = |queue: &QueueName| fill(statement, &[("name", &literal::bytes(queue.as_str().as_bytes()))]);
    queues.into_iter().map(ensure).collect::<Vec<_>>().join(";\n")
}
