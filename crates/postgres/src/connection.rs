//! Connections to the server, and what is sent over one.

use std::time::Duration;

use deadpool_postgres::{
    Manager, ManagerConfig, Object, Pool, PoolError, RecyclingMethod, Runtime, TimeoutType, Timeouts,
};
use futures_util::future::{join, join_all};
use postgres_types::ToSql;
use postrider_core::{Deadline, MessagingError};
use tokio_postgres::{Client, Config, NoTls, Row, Statement};

use crate::PROVIDER;
use crate::error::{Phase, Undone, cannot_connect, undone};
use crate::options::{PostgresOptions, WakeUpMode};
use crate::sql::{Schema, Sql};

/// How long a statement waits for somebody's lock before it gives way. Nobody who keeps to the rules holds one that
/// long; a caller's own transaction may.
const LOCK_TIMEOUT: Duration = Duration::from_secs(5);

/// With these the plan of a statement depends neither on statistics nor on which parameters it is first used with. An
/// unpinned generic plan of the claim took six times as long.
const PINS: &[&str] =
    &["enable_seqscan", "enable_bitmapscan", "enable_sort", "enable_hashjoin", "enable_mergejoin", "jit"];

/// How often work that others were in the way of is begun again.
const TRIES: u32 = 5;

/// One statement and its parameters.
pub(crate) struct Step<'p> {
    pub(crate) sql: &'p str,
    pub(crate) parameters: Vec<&'p (dyn ToSql + Sync)>,
}

impl<'p> Step<'p> {
    pub(crate) fn new(sql: &'p str, parameters: impl Into<Vec<&'p (dyn ToSql + Sync)>>) -> Self {
        Self { sql, parameters: parameters.into() }
    }

    /// With more parameters.
    pub(crate) fn and<const N: usize>(mut self, more: [&'p (dyn ToSql + Sync); N]) -> Self {
        self.parameters.extend(more);
        self
    }
}

/// The server, as all connections of a store see it.
pub(crate) struct Database {
    pool: Pool,
    config: Config,
    pub(crate) sql: Sql,
    pub(crate) schema: Schema,
    /// How a transaction begins.
    begin: String,
    /// Whether a statement alone may go without a transaction around it: the session is known to have the settings.
    keeps_settings: bool,
    connect_timeout: Duration,
    statement_timeout: Duration,
    /// Where the server is, for errors.
    place: String,
}

impl std::fmt::Debug for Database {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Database").field("place", &self.place).finish_non_exhaustive()
    }
}

impl Database {
    pub(crate) fn new(url: &str, options: &PostgresOptions) -> Result<Self, MessagingError> {
        let mut config: Config =
            url.parse().map_err(|error: tokio_postgres::Error| MessagingError::invalid("URL", error.to_string()))?;
        config.connect_timeout(options.connect_timeout);
        if config.get_application_name().is_none() || options.application_name.is_some() {
            config.application_name(options.application_name.as_deref().unwrap_or(PROVIDER_NAME));
        }
        let settings: Vec<(&str, String)> = PINS
            .iter()
            .map(|pin| (*pin, "off".to_owned()))
            .chain([
                ("statement_timeout", options.statement_timeout.as_millis().to_string()),
                ("lock_timeout", LOCK_TIMEOUT.as_millis().to_string()),
                ("idle_in_transaction_session_timeout", (options.statement_timeout * 2).as_millis().to_string()),
            ])
            .collect();
        let keeps_settings = options.wake_up == WakeUpMode::Notify;
        let mut begin = "begin isolation level read committed".to_owned();
        if keeps_settings {
            let mut all = config.get_options().unwrap_or_default().to_owned();
            settings.iter().for_each(|(name, value)| all.push_str(&format!(" -c {name}={value}")));
            config.options(all.trim_start());
        } else {
            settings.iter().for_each(|(name, value)| begin.push_str(&format!("; set local {name} = {value}")));
        }
        let manager =
            Manager::from_config(config.clone(), NoTls, ManagerConfig { recycling_method: RecyclingMethod::Fast });
        let pool = Pool::builder(manager)
            .max_size(options.pool_size)
            .runtime(Runtime::Tokio1)
            .build()
            .map_err(|error| MessagingError::invalid("pool_size", error.to_string()))?;
        let schema = Schema::new(&options.schema);
        Ok(Self {
            pool,
            place: place(&config),
            config,
            sql: Sql::new(&schema),
            schema,
            begin,
            keeps_settings,
            connect_timeout: options.connect_timeout,
            statement_timeout: options.statement_timeout,
        })
    }

    /// A connection of the pool, for one piece of work.
    pub(crate) async fn session(
        &self,
        operation: &'static str,
        deadline: Deadline,
    ) -> Result<Session<'_>, MessagingError> {
        deadline.check(operation)?;
        let patience = deadline.remaining().map_or(self.connect_timeout, |left| left.min(self.connect_timeout));
        let timeouts = Timeouts { wait: Some(patience), create: Some(patience), recycle: Some(patience) };
        let object = self.pool.timeout_get(&timeouts).await.map_err(|error| self.no_connection(error))?;
        Ok(Session { database: self, object: Some(object), operation, is_open: false })
    }

    fn no_connection(&self, error: PoolError) -> MessagingError {
        let failed = |detail: String| MessagingError::Connection { provider: PROVIDER, detail, source: None };
        match error {
            PoolError::Backend(error) => cannot_connect(&self.place, error),
            PoolError::Timeout(TimeoutType::Wait) => failed(format!(
                "all {} connections of the pool are busy; allow more with pool_size",
                self.pool.status().max_size
            )),
            PoolError::Timeout(_) => failed(format!("{} does not answer", self.place)),
            PoolError::Closed => MessagingError::Closed { provider: PROVIDER },
            error => failed(error.to_string()),
        }
    }

    /// A connection of its own, outside the pool: the driver ends with it.
    pub(crate) async fn connect_apart(
        &self,
    ) -> Result<
        (Client, tokio_postgres::Connection<tokio_postgres::Socket, tokio_postgres::tls::NoTlsStream>),
        MessagingError,
    > {
        self.config.connect(NoTls).await.map_err(|error| cannot_connect(&self.place, error))
    }
}

/// What connections are called in the server's views.
const PROVIDER_NAME: &str = "postrider";

fn place(config: &Config) -> String {
    let hosts = config.get_hosts().iter().map(|host| match host {
        tokio_postgres::config::Host::Tcp(name) => name.clone(),
        tokio_postgres::config::Host::Unix(path) => path.display().to_string(),
    });
    let port = config.get_ports().first().copied().unwrap_or(5432);
    format!("{}:{port}", hosts.collect::<Vec<_>>().join(","))
}

/// One connection, for one piece of work. Dropped in the middle of a transaction, the connection is closed.
pub(crate) struct Session<'d> {
    database: &'d Database,
    object: Option<Object>,
    operation: &'static str,
    is_open: bool,
}

impl<'d> Session<'d> {
    pub(crate) fn sql(&self) -> &'d Sql {
        &self.database.sql
    }

    fn client(&self) -> Result<&Object, Undone> {
        self.object.as_ref().ok_or_else(|| MessagingError::Closed { provider: PROVIDER }.into())
    }

    async fn prepared(&self, sql: &str) -> Result<Statement, Undone> {
        let prepared = self.client()?.prepare_cached(sql).await;
        prepared.map_err(|error| undone(self.operation, Phase::BeforeCommit, error))
    }

    /// Carries all steps out in one transaction. All of them are sent before the first answer is awaited: one round
    /// trip, one fsync.
    pub(crate) async fn run(&mut self, steps: &[Step<'_>]) -> Result<Vec<Vec<Row>>, Undone> {
        let mut statements = Vec::with_capacity(steps.len());
        for step in steps {
            statements.push(self.prepared(step.sql).await?);
        }
        self.is_open = true;
        let patience = self.database.statement_timeout + LOCK_TIMEOUT;
        let result = tokio::time::timeout(patience, self.send(steps, &statements)).await;
        match result {
            Ok(result) => {
                self.is_open = false;
                result
            }
            // The connection is closed with the session.
            Err(_) => Err(Undone::Unknown(MessagingError::Connection {
                provider: PROVIDER,
                detail: format!("{} has not answered for {patience:?}", self.database.place),
                source: None,
            })),
        }
    }

    async fn send(&self, steps: &[Step<'_>], statements: &[Statement]) -> Result<Vec<Vec<Row>>, Undone> {
        let client = self.client()?;
        if let ([step], [statement], true) = (steps, statements, self.database.keeps_settings) {
            let rows = client.query(statement, &step.parameters).await;
            return Ok(vec![rows.map_err(|error| undone(self.operation, Phase::Committing, error))?]);
        }
        let queries = steps.iter().zip(statements).map(|(step, statement)| client.query(statement, &step.parameters));
        // Polled in this order, and each sends what it has when it is first polled.
        let ((begun, rows), committed) =
            join(join(client.batch_execute(&self.database.begin), join_all(queries)), client.batch_execute("commit"))
                .await;
        // A server that says no ends the transaction then and there. A connection that breaks says nothing, and the
        // commit was on its way too.
        let said_no = |error: tokio_postgres::Error| {
            let phase = if error.as_db_error().is_some() { Phase::BeforeCommit } else { Phase::Committing };
            undone(self.operation, phase, error)
        };
        begun.map_err(said_no)?;
        let rows = rows.into_iter().collect::<Result<Vec<_>, _>>().map_err(said_no)?;
        committed.map_err(|error| undone(self.operation, Phase::Committing, error))?;
        Ok(rows)
    }

    /// Begins a transaction whose steps depend on each other's answers.
    pub(crate) async fn begin(&mut self) -> Result<(), Undone> {
        self.is_open = true;
        let begun = self.client()?.batch_execute(&self.database.begin).await;
        begun.map_err(|error| undone(self.operation, Phase::BeforeCommit, error))
    }

    /// A statement inside a transaction that was begun.
    pub(crate) async fn query(&self, sql: &str, parameters: &[&(dyn ToSql + Sync)]) -> Result<Vec<Row>, Undone> {
        let statement = self.prepared(sql).await?;
        let rows = self.client()?.query(&statement, parameters).await;
        rows.map_err(|error| undone(self.operation, Phase::BeforeCommit, error))
    }

    /// Several statements without parameters inside a transaction that was begun.
    pub(crate) async fn batch(&self, sql: &str) -> Result<(), Undone> {
        let done = self.client()?.batch_execute(sql).await;
        done.map_err(|error| undone(self.operation, Phase::BeforeCommit, error))
    }

    /// The lines that a statement without parameters answers, which need not be one that can be prepared.
    #[cfg(test)]
    pub(crate) async fn lines(&self, sql: &str) -> Result<Vec<String>, Undone> {
        let answers = self.client()?.simple_query(sql).await;
        let answers = answers.map_err(|error| undone(self.operation, Phase::BeforeCommit, error))?;
        let line = |answer: &tokio_postgres::SimpleQueryMessage| match answer {
            tokio_postgres::SimpleQueryMessage::Row(row) => row.get(0).map(str::to_owned),
            _ => None,
        };
        Ok(answers.iter().filter_map(line).collect())
    }

    pub(crate) async fn commit(&mut self) -> Result<(), Undone> {
        let committed = self.client()?.batch_execute("commit").await;
        self.is_open = committed.is_err();
        committed.map_err(|error| undone(self.operation, Phase::Committing, error))
    }

    pub(crate) async fn rollback(&mut self) -> Result<(), Undone> {
        let rolled_back = self.client()?.batch_execute("rollback").await;
        self.is_open = rolled_back.is_err();
        rolled_back.map_err(|error| undone(self.operation, Phase::BeforeCommit, error))
    }
}

impl Drop for Session<'_> {
    fn drop(&mut self) {
        if self.is_open
            && let Some(object) = self.object.take()
        {
            drop(Object::take(object));
        }
    }
}

/// Begins work again that others were in the way of, a little later each time.
pub(crate) async fn persist<T, F>(mut work: impl FnMut() -> F) -> Result<T, Undone>
where
    F: Future<Output = Result<T, Undone>>,
{
    let mut attempt = 0;
    loop {
        attempt += 1;
        match work().await {
            Err(Undone::InTheWay(_)) if attempt < TRIES => {
                let longest = Duration::from_millis(10) * 2u32.pow(attempt);
                tokio::time::sleep(longest.mul_f64(rand::random_range(0.5..1.0))).await;
            }
            result => return result,
        }
    }
}
