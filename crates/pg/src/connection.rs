//! Pooled connections, transactions and statements.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use deadpool::managed::QueueMode;
use deadpool_postgres::{
    Manager, ManagerConfig, Object, Pool, PoolError, RecyclingMethod, Runtime, TimeoutType, Timeouts,
};
use futures_util::future::{join, join_all};
use postgres_types::{ToSql, Type};
use postrider_core::{Deadline, MessagingError};
use postrider_provider::{Phase, Undone};
use tokio_postgres::tls::MakeTlsConnect;
use tokio_postgres::{Client, Config, Connection, Row, Socket, Statement};

use crate::error::{cannot_connect, is_end_of_session, text, undone};
use crate::tls::{self, Connector};

/// Lock timeout of statements. Transactions of this program hold no lock that long; a caller's own transaction may.
const LOCK_TIMEOUT: Duration = Duration::from_secs(5);

/// Planner settings that are turned off, so that the plan of a statement depends neither on statistics nor on its first
/// parameters. A generic plan of the claim without them took six times as long.
const DISABLED: &[&str] =
    &["enable_seqscan", "enable_bitmapscan", "enable_sort", "enable_hashjoin", "enable_mergejoin", "jit"];

/// One plan per statement and connection. The server would otherwise plan each set of parameters, which took a ninth of
/// a drain's time and found the same plan.
const GENERIC_PLANS: (&str, &str) = ("plan_cache_mode", "force_generic_plan");

/// Silence after which a connection is probed.
pub(crate) const SILENCE: Duration = Duration::from_secs(30);

/// One statement and its parameters.
#[derive(Debug)]
pub struct Step<'p> {
    /// The SQL text.
    pub sql: &'p str,
    /// Its parameters.
    pub parameters: Vec<&'p (dyn ToSql + Sync)>,
}

impl<'p> Step<'p> {
    /// Returns a statement with its parameters.
    pub fn new(sql: &'p str, parameters: impl Into<Vec<&'p (dyn ToSql + Sync)>>) -> Self {
        Self { sql, parameters: parameters.into() }
    }

    /// Adds parameters.
    pub fn and<const N: usize>(mut self, more: [&'p (dyn ToSql + Sync); N]) -> Self {
        self.parameters.extend(more);
        self
    }
}

/// A statement that is ready to be sent.
enum Prepared {
    /// Kept by the session.
    Kept(Statement),
    /// Sent anew each time, with the types of its parameters.
    Unnamed(Arc<[Type]>),
}

/// The options of a connection.
#[derive(Debug, Clone)]
pub struct ConnectionOptions {
    /// The provider's name in errors.
    pub provider: &'static str,
    /// Maximum number of open connections.
    pub pool_size: usize,
    /// Time limit to connect, and to get a free connection of the pool.
    pub connect_timeout: Duration,
    /// Time limit of a statement.
    pub statement_timeout: Duration,
    /// `application_name` of the connections; by default `postrider`.
    pub application_name: Option<String>,
    /// Whether a connection keeps its settings. Behind a pooler in transaction mode it does not, and every transaction
    /// sets them.
    pub keeps_settings: bool,
}

/// A database: its connection pool and its statements.
pub struct Database<Q> {
    provider: &'static str,
    pool: Pool,
    config: Config,
    tls: Connector,
    /// The statements.
    pub sql: Q,
    /// The statement that begins a transaction.
    begin: String,
    /// Whether a single statement may run without a transaction: the session has the settings.
    keeps_settings: bool,
    /// The parameter types of statements, for sessions that keep no statements. Held for a lookup.
    types: Mutex<HashMap<String, Arc<[Type]>>>,
    connect_timeout: Duration,
    statement_timeout: Duration,
    /// Host and port, for errors.
    address: String,
}

impl<Q> std::fmt::Debug for Database<Q> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Database").field("address", &self.address).finish_non_exhaustive()
    }
}

impl<Q> Database<Q> {
    /// Returns the database of a URL. Does not connect.
    pub fn new(url: &str, options: &ConnectionOptions, sql: Q) -> Result<Self, MessagingError> {
        let (url, tls) = tls::prepare(url, options.provider)?;
        let mut config: Config =
            url.parse().map_err(|error: tokio_postgres::Error| MessagingError::invalid("URL", text(&error)))?;
        if config.get_hosts().is_empty() && config.get_hostaddrs().is_empty() {
            let why = "it names no server; write postgres://user@host/database";
            return Err(MessagingError::invalid("URL", why));
        }
        config.connect_timeout(options.connect_timeout);
        if config.get_keepalives_idle() > SILENCE {
            // The driver's default of two hours is longer than firewalls keep connections.
            config.keepalives_idle(SILENCE).keepalives_interval(SILENCE / 3).keepalives_retries(3);
        }
        if config.get_tcp_user_timeout().is_none() {
            config.tcp_user_timeout(SILENCE);
        }
        if config.get_application_name().is_none() || options.application_name.is_some() {
            config.application_name(options.application_name.as_deref().unwrap_or(APPLICATION_NAME));
        }
        let settings: Vec<(&str, String)> = DISABLED
            .iter()
            .map(|pin| (*pin, "off".to_owned()))
            .chain([
                (GENERIC_PLANS.0, GENERIC_PLANS.1.to_owned()),
                ("statement_timeout", options.statement_timeout.as_millis().to_string()),
                ("lock_timeout", LOCK_TIMEOUT.as_millis().to_string()),
                ("idle_in_transaction_session_timeout", (options.statement_timeout * 2).as_millis().to_string()),
            ])
            .collect();
        let mut begin = "begin isolation level read committed".to_owned();
        if options.keeps_settings {
            let mut all = config.get_options().unwrap_or_default().to_owned();
            settings.iter().for_each(|(name, value)| all.push_str(&format!(" -c {name}={value}")));
            config.options(all.trim_start());
        } else {
            settings.iter().for_each(|(name, value)| begin.push_str(&format!("; set local {name} = {value}")));
        }
        let manager = Manager::from_config(
            config.clone(),
            tls.clone(),
            ManagerConfig { recycling_method: RecyclingMethod::Fast },
        );
        let pool = Pool::builder(manager)
            .max_size(options.pool_size)
            // The connection used last: its server process has warm caches.
            .queue_mode(QueueMode::Lifo)
            .runtime(Runtime::Tokio1)
            .build()
            .map_err(|error| MessagingError::invalid("pool_size", error.to_string()))?;
        Ok(Self {
            provider: options.provider,
            pool,
            address: address(&config),
            config,
            tls,
            sql,
            begin,
            keeps_settings: options.keeps_settings,
            types: Mutex::default(),
            connect_timeout: options.connect_timeout,
            statement_timeout: options.statement_timeout,
        })
    }

    /// Returns a connection of the pool, for one unit of work.
    pub async fn session(&self, operation: &'static str, deadline: Deadline) -> Result<Session<'_, Q>, MessagingError> {
        deadline.check(operation)?;
        let patience = deadline.remaining().map_or(self.connect_timeout, |left| left.min(self.connect_timeout));
        let timeouts = Timeouts { wait: Some(patience), create: Some(patience), recycle: Some(patience) };
        let object = self.pool.timeout_get(&timeouts).await.map_err(|error| self.no_connection(error))?;
        Ok(Session { database: self, object: Some(object), operation, is_open: false })
    }

    fn no_connection(&self, error: PoolError) -> MessagingError {
        let provider = self.provider;
        let failed = |detail: String| MessagingError::Connection { provider, detail, source: None };
        match error {
            PoolError::Backend(error) => cannot_connect(self.provider, &self.address, error),
            PoolError::Timeout(TimeoutType::Wait) => {
                let all = self.pool.status().max_size;
                MessagingError::busy(format!(
                    "{provider}: all {all} connections of the pool are busy; allow more with pool_size"
                ))
            }
            PoolError::Timeout(_) => failed(format!("{} does not answer", self.address)),
            PoolError::Closed => MessagingError::Closed { provider },
            error => failed(error.to_string()),
        }
    }

    fn types(&self) -> MutexGuard<'_, HashMap<String, Arc<[Type]>>> {
        self.types.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn known_types(&self, sql: &str) -> Option<Arc<[Type]>> {
        self.types().get(sql).cloned()
    }

    /// Connects outside the pool. The driver ends with the connection.
    pub(crate) async fn connect_apart(&self) -> Result<(Client, Connection<Socket, Encrypted>), MessagingError> {
        let connecting = tokio::time::timeout(self.connect_timeout, self.config.connect(self.tls.clone()));
        match connecting.await {
            Ok(connected) => connected.map_err(|error| cannot_connect(self.provider, &self.address, error)),
            Err(_) => {
                let detail = format!("{} does not answer", self.address);
                Err(MessagingError::Connection { provider: self.provider, detail, source: None })
            }
        }
    }
}

/// Default `application_name`.
const APPLICATION_NAME: &str = "postrider";

fn address(config: &Config) -> String {
    let hosts = config.get_hosts().iter().map(|host| match host {
        tokio_postgres::config::Host::Tcp(name) => name.clone(),
        tokio_postgres::config::Host::Unix(path) => path.display().to_string(),
    });
    let port = config.get_ports().first().copied().unwrap_or(5432);
    format!("{}:{port}", hosts.collect::<Vec<_>>().join(","))
}

/// The stream of a connection.
pub(crate) type Encrypted = <Connector as MakeTlsConnect<Socket>>::Stream;

/// A pooled connection, for one unit of work. If it is dropped inside a transaction, the connection is closed.
pub struct Session<'d, Q> {
    database: &'d Database<Q>,
    object: Option<Object>,
    operation: &'static str,
    is_open: bool,
}

impl<Q> std::fmt::Debug for Session<'_, Q> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session").field("operation", &self.operation).finish_non_exhaustive()
    }
}

impl<'d, Q> Session<'d, Q> {
    /// The statements.
    pub fn sql(&self) -> &'d Q {
        &self.database.sql
    }

    fn client(&self) -> Result<&Object, Undone> {
        self.object.as_ref().ok_or_else(|| MessagingError::Closed { provider: self.database.provider }.into())
    }

    /// Waits for an answer of the server, up to a timeout: a silent connection may never end.
    async fn answered<T>(
        &self,
        phase: Phase,
        call: impl Future<Output = Result<T, tokio_postgres::Error>>,
    ) -> Result<T, Undone> {
        let Database { provider, address, statement_timeout, .. } = self.database;
        // Longer than the server's own statement timeout.
        let patience = *statement_timeout + LOCK_TIMEOUT;
        let Ok(answer) = tokio::time::timeout(patience, call).await else {
            let detail = format!("{address} has not answered for {patience:?}");
            let silent = MessagingError::Connection { provider, detail, source: None };
            return Err(if phase == Phase::Committing { Undone::Unknown(silent) } else { Undone::NotDone(silent) });
        };
        answer.map_err(|error| undone(provider, self.operation, phase, error))
    }

    /// Prepares a statement. Without kept settings it must be inside a transaction.
    async fn prepared(&self, sql: &str) -> Result<Prepared, Undone> {
        if self.database.keeps_settings {
            return Ok(Prepared::Kept(self.answered(Phase::BeforeCommit, self.client()?.prepare_cached(sql)).await?));
        }
        if let Some(types) = self.database.known_types(sql) {
            return Ok(Prepared::Unnamed(types));
        }
        // Ask the server for the parameter types once. The statement must end with the transaction: a pooler may give
        // this server connection to another program, and this program another one.
        let statement = self.answered(Phase::BeforeCommit, self.client()?.prepare(sql)).await?;
        let types: Arc<[Type]> = statement.params().into();
        self.database.types().insert(sql.to_owned(), types.clone());
        Ok(Prepared::Unnamed(types))
    }

    /// Reads the parameter types of steps from the server, in a transaction of its own.
    async fn learn(&mut self, steps: &[Step<'_>]) -> Result<(), Undone> {
        if self.database.keeps_settings || steps.iter().all(|step| self.database.known_types(step.sql).is_some()) {
            return Ok(());
        }
        self.begin().await?;
        for step in steps {
            self.prepared(step.sql).await?;
        }
        self.commit().await
    }

    async fn ask_prepared(
        &self,
        prepared: &Prepared,
        sql: &str,
        parameters: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<Row>, tokio_postgres::Error> {
        // `None` only after the session has ended.
        let Some(client) = &self.object else { return Ok(Vec::new()) };
        match prepared {
            Prepared::Kept(statement) => client.query(statement, parameters).await,
            Prepared::Unnamed(types) => {
                let typed: Vec<_> = parameters.iter().copied().zip(types.iter().cloned()).collect();
                client.query_typed(sql, &typed).await
            }
        }
    }

    /// Runs all steps in one transaction. They are sent before the first answer is awaited: one round trip, one fsync.
    pub async fn run(&mut self, steps: &[Step<'_>]) -> Result<Vec<Vec<Row>>, Undone> {
        self.learn(steps).await?;
        // Until everything is answered, so that a silent connection is closed with the session.
        self.is_open = true;
        let answers = self.prepare_and_send(steps).await;
        self.is_open = matches!(
            answers,
            Err(Undone::NotDone(MessagingError::Connection { .. }) | Undone::Unknown(MessagingError::Connection { .. }))
        );
        answers
    }

    async fn prepare_and_send(&self, steps: &[Step<'_>]) -> Result<Vec<Vec<Row>>, Undone> {
        let mut statements = Vec::with_capacity(steps.len());
        for step in steps {
            statements.push(self.prepared(step.sql).await?);
        }
        self.send(steps, &statements).await
    }

    /// Runs one step in a transaction of its own. Returns its rows.
    pub async fn ask(&mut self, step: Step<'_>) -> Result<Vec<Row>, Undone> {
        Ok(self.run(&[step]).await?.pop().unwrap_or_default())
    }

    async fn send(&self, steps: &[Step<'_>], statements: &[Prepared]) -> Result<Vec<Vec<Row>>, Undone> {
        let client = self.client()?;
        if let ([step], [statement], true) = (steps, statements, self.database.keeps_settings) {
            let rows = self.ask_prepared(statement, step.sql, &step.parameters);
            return Ok(vec![self.answered(Phase::Committing, rows).await?]);
        }
        let queries = steps
            .iter()
            .zip(statements)
            .map(|(step, statement)| self.ask_prepared(statement, step.sql, &step.parameters));
        // Polled in this order; each sends its message at its first poll.
        let begin_and_ask = join(client.batch_execute(&self.database.begin), join_all(queries));
        let all = async { Ok(join(begin_and_ask, client.batch_execute("commit")).await) };
        let ((begun, rows), committed) = self.answered(Phase::Committing, all).await?;
        // An error of the server aborts the transaction. A broken connection reports nothing, and the commit was on its
        // way too; the same holds when the server, or a pooler before it, ends the session.
        let refused = |error: tokio_postgres::Error| {
            let is_no = error.as_db_error().is_some_and(|answer| !is_end_of_session(answer));
            let phase = if is_no { Phase::BeforeCommit } else { Phase::Committing };
            undone(self.database.provider, self.operation, phase, error)
        };
        begun.map_err(refused)?;
        let rows = rows.into_iter().collect::<Result<Vec<_>, _>>().map_err(refused)?;
        committed.map_err(|error| undone(self.database.provider, self.operation, Phase::Committing, error))?;
        Ok(rows)
    }

    /// Begins a transaction whose steps depend on each other.
    pub async fn begin(&mut self) -> Result<(), Undone> {
        self.is_open = true;
        self.answered(Phase::BeforeCommit, self.client()?.batch_execute(&self.database.begin)).await
    }

    /// Runs a statement inside an open transaction.
    pub async fn query(&self, sql: &str, parameters: &[&(dyn ToSql + Sync)]) -> Result<Vec<Row>, Undone> {
        let statement = self.prepared(sql).await?;
        self.answered(Phase::BeforeCommit, self.ask_prepared(&statement, sql, parameters)).await
    }

    /// Locks rows inside an open transaction, by the statement `lock_free`, which skips locked rows. Returns the rows
    /// that `held` finds and other transactions have locked.
    pub async fn lock_free(&self, lock_free: &str, held: &Step<'_>) -> Result<HashSet<i64>, Undone> {
        let free = self.query(lock_free, &held.parameters).await?;
        // Both statements return the id of the row first.
        let ids = |rows: &[Row]| -> HashSet<i64> { rows.iter().map(|row| row.get(0)).collect() };
        let free = ids(&free);
        let held = self.query(held.sql, &held.parameters).await?;
        Ok(ids(&held).into_iter().filter(|row| !free.contains(row)).collect())
    }

    /// Runs several statements without parameters inside an open transaction.
    pub async fn batch(&self, sql: &str) -> Result<(), Undone> {
        let done = self.client()?.batch_execute(sql).await;
        done.map_err(|error| undone(self.database.provider, self.operation, Phase::BeforeCommit, error))
    }

    /// Returns the text lines of a statement without parameters, which need not be preparable.
    pub async fn lines(&self, sql: &str) -> Result<Vec<String>, Undone> {
        let answers = self.client()?.simple_query(sql).await;
        let answers =
            answers.map_err(|error| undone(self.database.provider, self.operation, Phase::BeforeCommit, error))?;
        let line = |answer: &tokio_postgres::SimpleQueryMessage| match answer {
            tokio_postgres::SimpleQueryMessage::Row(row) => row.get(0).map(str::to_owned),
            _ => None,
        };
        Ok(answers.iter().filter_map(line).collect())
    }

    /// Commits the open transaction.
    pub async fn commit(&mut self) -> Result<(), Undone> {
        let committed = self.answered(Phase::Committing, self.client()?.batch_execute("commit")).await;
        self.is_open = committed.is_err();
        committed
    }

    /// Rolls the open transaction back.
    pub async fn rollback(&mut self) -> Result<(), Undone> {
        let rolled_back = self.answered(Phase::BeforeCommit, self.client()?.batch_execute("rollback")).await;
        self.is_open = rolled_back.is_err();
        rolled_back
    }
}

impl<Q> Drop for Session<'_, Q> {
    fn drop(&mut self) {
        if self.is_open
            && let Some(object) = self.object.take()
        {
            drop(Object::take(object));
        }
    }
}
