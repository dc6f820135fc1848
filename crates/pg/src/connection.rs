//! Connections to the server, and what is sent over one.

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

/// How long a statement waits for somebody's lock before it gives way. Nobody who keeps to the rules holds one that
/// long; a caller's own transaction may.
const LOCK_TIMEOUT: Duration = Duration::from_secs(5);

/// With these the plan of a statement depends neither on statistics nor on which parameters it is first used with. An
/// unpinned generic plan of the claim took six times as long.
const PINS: &[&str] =
    &["enable_seqscan", "enable_bitmapscan", "enable_sort", "enable_hashjoin", "enable_mergejoin", "jit"];

/// A statement is planned once for a connection and not for every use: the server would otherwise think a plan for each
/// set of parameters worth its while, which took a ninth of a drain's time and found the same plan.
const PLANNED_ONCE: (&str, &str) = ("plan_cache_mode", "force_generic_plan");

/// A connection on which nothing was heard for so long is asked whether it still is one.
pub(crate) const SILENCE: Duration = Duration::from_secs(30);

/// One statement and its parameters.
#[derive(Debug)]
pub struct Step<'p> {
    /// The statement.
    pub sql: &'p str,
    /// What it is carried out with.
    pub parameters: Vec<&'p (dyn ToSql + Sync)>,
}

impl<'p> Step<'p> {
    /// A statement with its parameters.
    pub fn new(sql: &'p str, parameters: impl Into<Vec<&'p (dyn ToSql + Sync)>>) -> Self {
        Self { sql, parameters: parameters.into() }
    }

    /// With more parameters.
    pub fn and<const N: usize>(mut self, more: [&'p (dyn ToSql + Sync); N]) -> Self {
        self.parameters.extend(more);
        self
    }
}

/// A statement that can be sent.
enum Prepared {
    /// The session keeps it.
    Kept(Statement),
    /// It is sent anew each time, with the types of its parameters.
    Unnamed(Arc<[Type]>),
}

/// How the server is reached.
#[derive(Debug, Clone)]
pub struct ConnectionOptions {
    /// The provider's name in errors.
    pub provider: &'static str,
    /// How many connections are open at most.
    pub pool_size: usize,
    /// How long it may take to be connected, and to get a free connection of the pool.
    pub connect_timeout: Duration,
    /// How long a statement may take before it is given up.
    pub statement_timeout: Duration,
    /// What the connections are called in the server's views; unset, `postrider`.
    pub application_name: Option<String>,
    /// Whether a connection keeps its settings. Behind a pooler that hands connections out for a transaction at a time it
    /// does not, and every transaction has to make them.
    pub keeps_settings: bool,
}

/// The server, as all connections of a store see it, and the statements that are sent to it.
pub struct Database<Q> {
    provider: &'static str,
    pool: Pool,
    config: Config,
    tls: Connector,
    /// The statements.
    pub sql: Q,
    /// How a transaction begins.
    begin: String,
    /// Whether a statement alone may go without a transaction around it: the session is known to have the settings.
    keeps_settings: bool,
    /// The types of statements' parameters, where statements cannot be kept in a session. A lock, held for a look.
    types: Mutex<HashMap<String, Arc<[Type]>>>,
    connect_timeout: Duration,
    statement_timeout: Duration,
    /// Where the server is, for errors.
    place: String,
}

impl<Q> std::fmt::Debug for Database<Q> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Database").field("place", &self.place).finish_non_exhaustive()
    }
}

impl<Q> Database<Q> {
    /// The server that a URL names. Nothing is connected yet.
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
            // The driver's own two hours are longer than any firewall remembers a connection.
            config.keepalives_idle(SILENCE).keepalives_interval(SILENCE / 3).keepalives_retries(3);
        }
        if config.get_tcp_user_timeout().is_none() {
            config.tcp_user_timeout(SILENCE);
        }
        if config.get_application_name().is_none() || options.application_name.is_some() {
            config.application_name(options.application_name.as_deref().unwrap_or(APPLICATION_NAME));
        }
        let settings: Vec<(&str, String)> = PINS
            .iter()
            .map(|pin| (*pin, "off".to_owned()))
            .chain([
                (PLANNED_ONCE.0, PLANNED_ONCE.1.to_owned()),
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
            // The one that was used last: its server process has everything at hand.
            .queue_mode(QueueMode::Lifo)
            .runtime(Runtime::Tokio1)
            .build()
            .map_err(|error| MessagingError::invalid("pool_size", error.to_string()))?;
        Ok(Self {
            provider: options.provider,
            pool,
            place: place(&config),
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

    /// A connection of the pool, for one piece of work.
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
            PoolError::Backend(error) => cannot_connect(self.provider, &self.place, error),
            PoolError::Timeout(TimeoutType::Wait) => {
                let all = self.pool.status().max_size;
                MessagingError::busy(format!(
                    "{provider}: all {all} connections of the pool are busy; allow more with pool_size"
                ))
            }
            PoolError::Timeout(_) => failed(format!("{} does not answer", self.place)),
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

    /// A connection of its own, outside the pool: the driver ends with it.
    pub(crate) async fn connect_apart(&self) -> Result<(Client, Connection<Socket, Encrypted>), MessagingError> {
        let connecting = tokio::time::timeout(self.connect_timeout, self.config.connect(self.tls.clone()));
        match connecting.await {
            Ok(connected) => connected.map_err(|error| cannot_connect(self.provider, &self.place, error)),
            Err(_) => {
                let detail = format!("{} does not answer", self.place);
                Err(MessagingError::Connection { provider: self.provider, detail, source: None })
            }
        }
    }
}

/// What connections are called in the server's views.
const APPLICATION_NAME: &str = "postrider";

fn place(config: &Config) -> String {
    let hosts = config.get_hosts().iter().map(|host| match host {
        tokio_postgres::config::Host::Tcp(name) => name.clone(),
        tokio_postgres::config::Host::Unix(path) => path.display().to_string(),
    });
    let port = config.get_ports().first().copied().unwrap_or(5432);
    format!("{}:{port}", hosts.collect::<Vec<_>>().join(","))
}

/// What a connection is read from and written to.
pub(crate) type Encrypted = <Connector as MakeTlsConnect<Socket>>::Stream;

/// One connection, for one piece of work. Dropped in the middle of a transaction, the connection is closed.
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

    /// Waits for an answer of the server, but not for ever: a connection may have fallen silent without an end.
    async fn answered<T>(
        &self,
        phase: Phase,
        call: impl Future<Output = Result<T, tokio_postgres::Error>>,
    ) -> Result<T, Undone> {
        let Database { provider, place, statement_timeout, .. } = self.database;
        // Longer than the server takes to give up a statement by itself.
        let patience = *statement_timeout + LOCK_TIMEOUT;
        let Ok(answer) = tokio::time::timeout(patience, call).await else {
            let detail = format!("{place} has not answered for {patience:?}");
            let silent = MessagingError::Connection { provider, detail, source: None };
            return Err(if phase == Phase::Committing { Undone::Unknown(silent) } else { Undone::NotDone(silent) });
        };
        answer.map_err(|error| undone(provider, self.operation, phase, error))
    }

    /// A statement that can be sent. Inside a transaction, where the connection does not keep its settings.
    async fn prepared(&self, sql: &str) -> Result<Prepared, Undone> {
        if self.database.keeps_settings {
            return Ok(Prepared::Kept(self.answered(Phase::BeforeCommit, self.client()?.prepare_cached(sql)).await?));
        }
        if let Some(types) = self.database.known_types(sql) {
            return Ok(Prepared::Unnamed(types));
        }
        // The server is asked once what the parameters are. The statement must not outlive the transaction: what follows
        // may go to another connection of the server, and another program may be given this one.
        let statement = self.answered(Phase::BeforeCommit, self.client()?.prepare(sql)).await?;
        let types: Arc<[Type]> = statement.params().into();
        self.database.types().insert(sql.to_owned(), types.clone());
        Ok(Prepared::Unnamed(types))
    }

    /// Learns what the server has to be told of these steps' parameters, in a transaction of its own.
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
        // Closed only between two pieces of work.
        let Some(client) = &self.object else { return Ok(Vec::new()) };
        match prepared {
            Prepared::Kept(statement) => client.query(statement, parameters).await,
            Prepared::Unnamed(types) => {
                let typed: Vec<_> = parameters.iter().copied().zip(types.iter().cloned()).collect();
                client.query_typed(sql, &typed).await
            }
        }
    }

    /// Carries all steps out in one transaction. All of them are sent before the first answer is awaited: one round
    /// trip, one fsync.
    pub async fn run(&mut self, steps: &[Step<'_>]) -> Result<Vec<Vec<Row>>, Undone> {
        self.learn(steps).await?;
        // Until everything was answered: a connection that fell silent is closed with the session.
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

    /// Carries one step out, in a transaction of its own.
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
        // Polled in this order, and each sends what it has when it is first polled.
        let begin_and_ask = join(client.batch_execute(&self.database.begin), join_all(queries));
        let all = async { Ok(join(begin_and_ask, client.batch_execute("commit")).await) };
        let ((begun, rows), committed) = self.answered(Phase::Committing, all).await?;
        // A server that says no ends the transaction then and there. A connection that breaks says nothing, and the
        // commit was on its way too; so it was when the server, or a pooler before it, ends the session.
        let said_no = |error: tokio_postgres::Error| {
            let is_no = error.as_db_error().is_some_and(|answer| !is_end_of_session(answer));
            let phase = if is_no { Phase::BeforeCommit } else { Phase::Committing };
            undone(self.database.provider, self.operation, phase, error)
        };
        begun.map_err(said_no)?;
        let rows = rows.into_iter().collect::<Result<Vec<_>, _>>().map_err(said_no)?;
        committed.map_err(|error| undone(self.database.provider, self.operation, Phase::Committing, error))?;
        Ok(rows)
    }

    /// Begins a transaction whose steps depend on each other's answers.
    pub async fn begin(&mut self) -> Result<(), Undone> {
        self.is_open = true;
        self.answered(Phase::BeforeCommit, self.client()?.batch_execute(&self.database.begin)).await
    }

    /// A statement inside a transaction that was begun.
    pub async fn query(&self, sql: &str, parameters: &[&(dyn ToSql + Sync)]) -> Result<Vec<Row>, Undone> {
        let statement = self.prepared(sql).await?;
        self.answered(Phase::BeforeCommit, self.ask_prepared(&statement, sql, parameters)).await
    }

    /// Locks rows inside a transaction that was begun: by the statement `lock_free`, which passes by what others have.
    /// Answers those of the rows that `held` finds and somebody else has.
    pub async fn lock_free(&self, lock_free: &str, held: &Step<'_>) -> Result<HashSet<i64>, Undone> {
        let free = self.query(lock_free, &held.parameters).await?;
        let free: HashSet<i64> = free.iter().map(|row| row.get(0)).collect();
        let held = self.query(held.sql, &held.parameters).await?;
        Ok(held.iter().map(|row| row.get(0)).filter(|row| !free.contains(row)).collect())
    }

    /// Several statements without parameters inside a transaction that was begun.
    pub async fn batch(&self, sql: &str) -> Result<(), Undone> {
        let done = self.client()?.batch_execute(sql).await;
        done.map_err(|error| undone(self.database.provider, self.operation, Phase::BeforeCommit, error))
    }

    /// The lines that a statement without parameters answers, which need not be one that can be prepared.
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

    /// Ends a transaction that was begun, for good.
    pub async fn commit(&mut self) -> Result<(), Undone> {
        let committed = self.answered(Phase::Committing, self.client()?.batch_execute("commit")).await;
        self.is_open = committed.is_err();
        committed
    }

    /// Ends a transaction that was begun, without a trace.
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
