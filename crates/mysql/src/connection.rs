//! Connections to the server, and what is sent over one.

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
use crate::plain::MOST_SIZES;
use crate::sql::{Schema, Sql};
use crate::tls;

/// How many seconds a statement waits for somebody's lock before it gives way. Nobody who keeps to the rules holds one
/// that long; a caller's own transaction may.
const LOCK_TIMEOUT: u64 = 5;

/// MariaDB turns a list of a thousand numbers into a table that it joins, and walks all messages for it. MySQL does not,
/// does not know the setting, and takes this for a comment.
const LONG_LISTS: &str = "/*M!100306 , session in_predicate_conversion_threshold = 0 */";

/// Lets a statement give way at once when somebody has locked what it needs. MySQL does not know it and takes it for a
/// comment.
const WITHOUT_WAITING: &str = "/*M!100306 set statement innodb_lock_wait_timeout = 0 for */";

/// A statement that gives way at once: what is locked may be so for as long as a caller's own transaction is open.
pub(crate) fn at_once(statement: String) -> String {
    format!("{WITHOUT_WAITING} {statement}")
}

/// What others have locked is tried again after each of these, by those who take only what is free. Nobody who keeps to
/// the rules has it longer; a caller's own transaction may.
pub(crate) const PAUSES: [Duration; 5] = [
    Duration::from_millis(10),
    Duration::from_millis(20),
    Duration::from_millis(40),
    Duration::from_millis(80),
    Duration::from_millis(160),
];

/// A connection that was idle for longer is asked whether it still lives, before anything is entrusted to it.
const TRUSTED_FOR: Duration = Duration::from_secs(1);

/// The rows of each statement that answers with rows, in the order of the statements.
pub(crate) type Answers = Vec<Vec<Row>>;

/// The server, as all connections of a store see it.
pub(crate) struct Database {
    opts: Opts,
    pub(crate) sql: Sql,
    pub(crate) schema: Schema,
    /// One permit a connection.
    permits: Semaphore,
    pool_size: usize,
    /// Connections that nobody uses. A lock, held for a push or a pop.
    idle: Mutex<Vec<Idle>>,
    /// How many bytes the server takes at once, as the last connection was told.
    most_bytes: AtomicUsize,
    connect_timeout: Duration,
    statement_timeout: Duration,
    /// Where the server is, for errors.
    place: String,
}

struct Idle {
    connection: Conn,
    since: Instant,
}

impl std::fmt::Debug for Database {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Database").field("place", &self.place).finish_non_exhaustive()
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
        // The driver would take the first part and be silent about the rest.
        if let Some(path) = path_of(&url).filter(|path| path.contains('/')) {
            let path = path.escape_debug();
            return Err(MessagingError::invalid(
                "URL",
                format!(
                    "'{path}' is not the name of one database; write mysql://user:password@host/database, and %2F for a \
                     slash in the name"
                ),
            ));
        }
        let place = format!("{}:{}", opts.ip_or_hostname(), opts.tcp_port());
        let setup = vec![
            // Some servers are told to take no client's word for it.
            "set names utf8mb4".to_owned(),
            "set session transaction isolation level read committed".to_owned(),
            format!(
                "set session time_zone = '+00:00', session innodb_lock_wait_timeout = {LOCK_TIMEOUT}, \
                 session autocommit = 1, session sql_mode = 'STRICT_ALL_TABLES,NO_ZERO_DATE,NO_ZERO_IN_DATE' \
                 {LONG_LISTS}"
            ),
        ];
        // A socket that the server names would lead past whatever stands between here and the host in the URL.
        let opts = OptsBuilder::from_opts(opts).setup(setup).prefer_socket(false).tcp_nodelay(true);
        let opts = opts.stmt_cache_size(MOST_SIZES).ssl_opts(encryption).into();
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
            place,
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
        let connection = connected.map_err(|_| failed(format!("{} does not answer", self.place)))??;
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
        let failed = |error| cannot_connect(&self.place, error);
        let mut connection = Conn::new(self.opts.clone()).await.map_err(failed)?;
        let most: Option<usize> = connection.query_first("select @@max_allowed_packet").await.map_err(failed)?;
        let most = most.into_iter().chain(self.opts.max_allowed_packet()).min();
        self.most_bytes.store(most.unwrap_or(usize::MAX), Ordering::Relaxed);
        Ok(connection)
    }

    /// What broke one connection has most likely broken the others.
    fn forget_idle(&self) {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}

/// What goes to the server in one piece.
enum Command<'c> {
    /// Statements.
    Texts(String),
    /// A statement that the server may have read before, and its values.
    Prepared(&'c str, Vec<Value>),
}

impl Command<'_> {
    /// In bytes, as SQL: whether a message is too large must not depend on the way that it takes.
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

/// One connection, for one piece of work. Dropped in the middle of a transaction, the connection is closed.
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

    /// Sends a command in one round trip and reads all that it answers.
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
        // Until everything was read.
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
                    // A statement that failed leaves the others of its transaction standing.
                    let undone = tokio::time::timeout(patience, connection.query_drop("rollback")).await;
                    self.is_open = !matches!(undone, Ok(Ok(())));
                }
                Err(undone(self.operation, phase, error))
            }
            Err(_) => {
                self.connection = None;
                let error = MessagingError::Connection {
                    provider: PROVIDER,
                    detail: format!("{} has not answered for {patience:?}", self.database.place),
                    source: None,
                };
                Err(if phase == Phase::Committing { Undone::Unknown(error) } else { Undone::NotDone(error) })
            }
        }
    }

    /// Statements that only look: when the answer is lost, nothing was done.
    pub(crate) async fn ask(&mut self, text: String) -> Result<Answers, Undone> {
        self.send(Phase::BeforeCommit, Command::Texts(text)).await
    }

    /// A statement that changes something and needs no other.
    pub(crate) async fn change(&mut self, text: String) -> Result<Answers, Undone> {
        self.send(Phase::Committing, Command::Texts(text)).await
    }

    /// The same with a statement that stays prepared on this connection.
    pub(crate) async fn execute(&mut self, statement: &str, values: Vec<Value>) -> Result<(), Undone> {
        self.send(Phase::Committing, Command::Prepared(statement, values)).await.map(drop)
    }

    /// A whole transaction in one round trip.
    pub(crate) async fn run(&mut self, text: String) -> Result<Answers, Undone> {
        self.send(Phase::Committing, Command::Texts(format!("begin;\n{text};\ncommit"))).await
    }

    /// Begins a transaction whose steps depend on each other's answers.
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

    /// Looks at things, inside the transaction if there is one.
    pub(crate) async fn look_again(&mut self, text: String) -> Result<Answers, Undone> {
        if self.is_open { self.query(text).await } else { self.ask(text).await }
    }

    /// Statements inside a transaction that was begun.
    pub(crate) async fn query(&mut self, text: String) -> Result<Answers, Undone> {
        self.send(Phase::BeforeCommit, Command::Texts(text)).await
    }

    /// The last statements of a transaction, and its commit.
    pub(crate) async fn commit(&mut self, text: String) -> Result<Answers, Undone> {
        let text = if text.is_empty() { "commit".to_owned() } else { format!("{text};\ncommit") };
        let answers = self.send(Phase::Committing, Command::Texts(text)).await?;
        self.is_open = false;
        Ok(answers)
    }

    /// Closes the connection, and with it everything that the session holds.
    pub(crate) fn abandon(&mut self) {
        self.connection = None;
    }

    pub(crate) async fn rollback(&mut self) -> Result<(), Undone> {
        self.send(Phase::BeforeCommit, Command::Texts("rollback".to_owned())).await?;
        self.is_open = false;
        Ok(())
    }
}

/// What follows the host in a URL.
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
