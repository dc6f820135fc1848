//! Connections, and the commands that they send.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Opts, OptsBuilder, Row, Value};
use postrider_core::{Deadline, MessagingError};
use postrider_provider::{Phase, Undone};
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::Instant;

use crate::PROVIDER;
use crate::error::{cannot_connect, is_broken, undone};
use crate::options::MysqlOptions;
use crate::plain::MAX_SIZES;
use crate::sql::{Schema, Sql};
use crate::tls;

/// Lock timeout of statements, in seconds. Transactions of this program hold no lock that long; a caller's own
/// transaction may.
const LOCK_TIMEOUT: u64 = 5;

/// Keeps MariaDB from converting a list of a thousand numbers into a joined table, which reads all messages. MySQL does
/// not convert, has no such setting, and takes it for a comment.
const LONG_LISTS: &str = "/*M!100306 , session in_predicate_conversion_threshold = 0 */";

/// Lets a statement fail at once if a row is locked. MySQL has no such setting and takes it for a comment.
const WITHOUT_WAITING: &str = "/*M!100306 set statement innodb_lock_wait_timeout = 0 for */";

/// Returns a statement that fails at once if a row is locked: a caller's transaction may hold the lock for any time.
pub(crate) fn at_once(statement: String) -> String {
    format!("{WITHOUT_WAITING} {statement}")
}

/// Pauses between retries of rows that other transactions have locked. Transactions of this program hold locks for
/// less; a caller's own transaction may not.
pub(crate) const PAUSES: [Duration; 5] = [
    Duration::from_millis(10),
    Duration::from_millis(20),
    Duration::from_millis(40),
    Duration::from_millis(80),
    Duration::from_millis(160),
];

/// Idle time after which a connection is pinged before use.
const TRUSTED_FOR: Duration = Duration::from_secs(1);

/// The rows of each statement that returns rows, in the order of the statements.
pub(crate) type Answers = Vec<Vec<Row>>;

/// A database, as all connections of a store see it.
pub(crate) struct Database {
    opts: Opts,
    pub(crate) sql: Sql,
    pub(crate) schema: Schema,
    /// One permit per connection.
    permits: Semaphore,
    pool_size: usize,
    /// Idle connections. Held for a push or a pop.
    idle: Mutex<Vec<Idle>>,
    /// The server's `max_allowed_packet`, as last read.
    most_bytes: AtomicUsize,
    connect_timeout: Duration,
    statement_timeout: Duration,
    /// Host and port, for errors.
    address: String,
}

struct Idle {
    connection: Conn,
    since: Instant,
}

impl std::fmt::Debug for Database {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Database").field("address", &self.address).finish_non_exhaustive()
    }
}

impl Database {
    pub(crate) fn new(url: &str, options: &MysqlOptions) -> Result<Self, MessagingError> {
        let (url, encryption) = tls::prepare(url)?;
        let opts = Opts::from_url(&url).map_err(|error| MessagingError::invalid("URL", error.to_string()))?;
        let Some(name) = opts.db_name().filter(|name| !name.is_empty()).map(str::to_owned) else {
            return Err(MessagingError::invalid(
                "URL",
                "it names no database; write mysql://user:password@host/database",
            ));
        };
        // The driver would use the first part and ignore the rest.
        if let Some(path) = path_of(&url).filter(|path| path.contains('/')) {
            let path = path.escape_debug();
            return Err(MessagingError::invalid(
                "URL",
                format!(
                    "'{path}' is not the name of one database; write mysql://user:password@host/database, with %2F for a \
                     slash in the name"
                ),
            ));
        }
        let address = format!("{}:{}", opts.ip_or_hostname(), opts.tcp_port());
        let setup = vec![
            // Some servers ignore the character set of the handshake.
            "set names utf8mb4".to_owned(),
            "set session transaction isolation level read committed".to_owned(),
            format!(
                "set session time_zone = '+00:00', session innodb_lock_wait_timeout = {LOCK_TIMEOUT}, \
                 session autocommit = 1, session sql_mode = 'STRICT_ALL_TABLES,NO_ZERO_DATE,NO_ZERO_IN_DATE' \
                 {LONG_LISTS}"
            ),
        ];
        // A socket named by the server would bypass a proxy at the host of the URL.
        let opts = OptsBuilder::from_opts(opts).setup(setup).prefer_socket(false).tcp_nodelay(true);
        let opts = opts.stmt_cache_size(MAX_SIZES).ssl_opts(encryption).into();
        let schema = Schema::new(&name);
        Ok(Self {
            opts,
            sql: Sql::new(&schema),
            schema,
            permits: Semaphore::new(options.pool_size),
            pool_size: options.pool_size,
            idle: Mutex::default(),
            most_bytes: AtomicUsize::new(usize::MAX),
            connect_timeout: options.connect_timeout,
            statement_timeout: options.statement_timeout,
            address,
        })
    }

    /// Returns a connection of the pool, for one unit of work.
    pub(crate) async fn session(
        &self,
        operation: &'static str,
        deadline: Deadline,
    ) -> Result<Session<'_>, MessagingError> {
        deadline.check(operation)?;
        let patience = deadline.remaining().map_or(self.connect_timeout, |left| left.min(self.connect_timeout));
        let end = Instant::now() + patience;
        let failed = |detail: String| MessagingError::Connection { provider: PROVIDER, detail, source: None };
        let busy = |_| {
            let all = self.pool_size;
            MessagingError::busy(format!(
                "{PROVIDER}: all {all} connections of the pool are busy; allow more with pool_size"
            ))
        };
        let permit = tokio::time::timeout_at(end, self.permits.acquire()).await.map_err(busy)?;
        let permit = permit.map_err(|_| MessagingError::Closed { provider: PROVIDER })?;
        let connected = tokio::time::timeout_at(end, self.connection()).await;
        let connection = connected.map_err(|_| failed(format!("{} does not answer", self.address)))??;
        Ok(Session { database: self, connection: Some(connection), operation, is_open: false, _permit: permit })
    }

    async fn connection(&self) -> Result<Conn, MessagingError> {
        loop {
            let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
            let Some(Idle { mut connection, since }) = idle else { break };
            if since.elapsed() < TRUSTED_FOR || connection.ping().await.is_ok() {
                return Ok(connection);
            }
            self.forget_idle();
        }
        let failed = |error| cannot_connect(&self.address, error);
        let mut connection = Conn::new(self.opts.clone()).await.map_err(failed)?;
        let most: Option<usize> = connection.query_first("select @@max_allowed_packet").await.map_err(failed)?;
        let most = most.into_iter().chain(self.opts.max_allowed_packet()).min();
        self.most_bytes.store(most.unwrap_or(usize::MAX), Ordering::Relaxed);
        Ok(connection)
    }

    /// Drops the idle connections: what broke one has most likely broken them all.
    fn forget_idle(&self) {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}

/// A command that is sent in one packet.
enum Command<'c> {
    /// Statements.
    Texts(String),
    /// A prepared statement and its values.
    Prepared(&'c str, Vec<Value>),
}

impl Command<'_> {
    /// Returns the length in bytes as SQL, so that the size limit does not depend on the kind of command.
    fn length(&self) -> usize {
        match self {
            Self::Texts(text) => text.len(),
            Self::Prepared(statement, values) => {
                let length = |value: &Value| if let Value::Bytes(bytes) = value { bytes.len() * 2 + 12 } else { 12 };
                statement.len().max(values.iter().map(length).sum())
            }
        }
    }

    async fn carry_out(self, connection: &mut Conn) -> Result<Answers, mysql_async::Error> {
        match self {
            Self::Texts(text) => read_all(connection, text).await,
            Self::Prepared(statement, values) => {
                connection.exec_drop(statement, values).await?;
                Ok(Answers::new())
            }
        }
    }
}

/// A pooled connection, for one unit of work. If it is dropped inside a transaction, the connection is closed.
pub(crate) struct Session<'d> {
    database: &'d Database,
    connection: Option<Conn>,
    operation: &'static str,
    is_open: bool,
    _permit: SemaphorePermit<'d>,
}

impl<'d> Session<'d> {
    pub(crate) fn sql(&self) -> &'d Sql {
        &self.database.sql
    }

    /// Sends a command in one round trip. Returns all rows.
    async fn send(&mut self, phase: Phase, command: Command<'_>) -> Result<Answers, Undone> {
        let (most, length) = (self.database.most_bytes.load(Ordering::Relaxed), command.length());
        if length >= most {
            return Err(Undone::Rejected(MessagingError::invalid(
                "message",
                format!(
                    "it takes {length} bytes as SQL, and the server's max_allowed_packet is {most}; raise that, or send less"
                ),
            )));
        }
        let was_open = self.is_open;
        // Until everything is read.
        self.is_open = true;
        let patience = self.database.statement_timeout;
        let Some(connection) = self.connection.as_mut() else {
            return Err(MessagingError::Closed { provider: PROVIDER }.into());
        };
        match tokio::time::timeout(patience, command.carry_out(connection)).await {
            Ok(Ok(answers)) => {
                self.is_open = was_open;
                Ok(answers)
            }
            Ok(Err(error)) => {
                if is_broken(&error) {
                    self.database.forget_idle();
                    self.connection = None;
                } else if let Some(connection) = self.connection.as_mut() {
                    // After a failed statement the rest of its transaction is still open.
                    let undone = tokio::time::timeout(patience, connection.query_drop("rollback")).await;
                    self.is_open = !matches!(undone, Ok(Ok(())));
                }
                Err(undone(self.operation, phase, error))
            }
            Err(_) => {
                self.connection = None;
                let error = MessagingError::Connection {
                    provider: PROVIDER,
                    detail: format!("{} has not answered for {patience:?}", self.database.address),
                    source: None,
                };
                Err(if phase == Phase::Committing { Undone::Unknown(error) } else { Undone::NotDone(error) })
            }
        }
    }

    /// Runs statements that only read; a lost answer means that nothing was done.
    pub(crate) async fn ask(&mut self, text: String) -> Result<Answers, Undone> {
        self.send(Phase::BeforeCommit, Command::Texts(text)).await
    }

    /// Runs a single statement that writes.
    pub(crate) async fn change(&mut self, text: String) -> Result<Answers, Undone> {
        self.send(Phase::Committing, Command::Texts(text)).await
    }

    /// Runs a single statement that writes, which stays prepared on this connection.
    pub(crate) async fn execute(&mut self, statement: &str, values: Vec<Value>) -> Result<(), Undone> {
        self.send(Phase::Committing, Command::Prepared(statement, values)).await.map(drop)
    }

    /// Runs a transaction in one round trip.
    pub(crate) async fn run(&mut self, text: String) -> Result<Answers, Undone> {
        self.send(Phase::Committing, Command::Texts(format!("begin;\n{text};\ncommit"))).await
    }

    /// Begins a transaction whose steps depend on each other.
    pub(crate) async fn begin(&mut self, text: String) -> Result<Answers, Undone> {
        let text = if text.is_empty() { "begin".to_owned() } else { format!("begin;\n{text}") };
        let answers = self.send(Phase::BeforeCommit, Command::Texts(text)).await?;
        self.is_open = true;
        Ok(answers)
    }

    /// Whether a transaction is open.
    pub(crate) fn is_in_transaction(&self) -> bool {
        self.is_open
    }

    /// Reads, inside the transaction if one is open.
    pub(crate) async fn look_again(&mut self, text: String) -> Result<Answers, Undone> {
        if self.is_open { self.query(text).await } else { self.ask(text).await }
    }

    /// Runs statements inside an open transaction.
    pub(crate) async fn query(&mut self, text: String) -> Result<Answers, Undone> {
        self.send(Phase::BeforeCommit, Command::Texts(text)).await
    }

    /// Runs the last statements of a transaction, and commits.
    pub(crate) async fn commit(&mut self, text: String) -> Result<Answers, Undone> {
        let text = if text.is_empty() { "commit".to_owned() } else { format!("{text};\ncommit") };
        let answers = self.send(Phase::Committing, Command::Texts(text)).await?;
        self.is_open = false;
        Ok(answers)
    }

    /// Closes the connection, which ends its locks and its transaction.
    pub(crate) fn abandon(&mut self) {
        self.connection = None;
    }

    pub(crate) async fn rollback(&mut self) -> Result<(), Undone> {
        self.send(Phase::BeforeCommit, Command::Texts("rollback".to_owned())).await?;
        self.is_open = false;
        Ok(())
    }
}

/// Returns the path of a URL.
fn path_of(url: &str) -> Option<&str> {
    let (_, rest) = url.split_once("://")?;
    let (_, path) = rest.split(['?', '#']).next()?.split_once('/')?;
    Some(path.trim_end_matches('/'))
}

pub(crate) async fn read_all<C: Queryable>(connection: &mut C, text: String) -> Result<Answers, mysql_async::Error> {
    let mut result = connection.query_iter(text).await?;
    let mut answers = Vec::new();
    loop {
        let has_rows = result.columns().is_some_and(|columns| !columns.is_empty());
        let rows: Vec<Row> = result.collect().await?;
        if has_rows {
            answers.push(rows);
        }
        if result.is_empty() {
            break;
        }
    }
    result.drop_result().await?;
    Ok(answers)
}

impl Drop for Session<'_> {
    fn drop(&mut self) {
        if let Some(connection) = self.connection.take().filter(|_| !self.is_open) {
            let idle = Idle { connection, since: Instant::now() };
            self.database.idle.lock().unwrap_or_else(PoisonError::into_inner).push(idle);
        }
    }
}
