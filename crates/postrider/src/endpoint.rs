//! Where messages are kept, by URL.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use postrider_core::{Deadline, Finding, MemoryStore, MessagingError};
#[cfg(any(feature = "mysql", feature = "pgmq", feature = "postgres", feature = "sqlite"))]
use std::sync::Arc;
#[cfg(feature = "sqlite")]
use {
    crate::config::Synchronous,
    postrider_core::Severity,
    postrider_sqlite::{Durability, SqliteOptions, SqliteStore},
    std::path::{Path, PathBuf},
};

#[cfg(feature = "mysql")]
use postrider_mysql::{MysqlOptions, MysqlStore};
#[cfg(feature = "pgmq")]
use postrider_pgmq::{PgmqOptions, PgmqStore};
#[cfg(feature = "postgres")]
use postrider_postgres::{PostgresOptions, PostgresStore, WakeUpMode};
#[cfg(any(feature = "mysql", feature = "pgmq", feature = "postgres"))]
use {crate::config::StoreUrl, tokio::sync::OnceCell};

use crate::config::{MessagingConfig, ProviderKind};
use crate::examine;
use crate::provider::MessagingProvider;

/// A store that a URL leads to. It can be connected to any number of times.
#[derive(Debug, Clone)]
pub struct Endpoint(Kind);

#[derive(Debug, Clone)]
enum Kind {
    /// The store itself is kept here: every connection must reach the same one.
    Memory(MemoryStore),
    #[cfg(feature = "sqlite")]
    Sqlite { path: PathBuf, options: Box<SqliteOptions>, folder: Folder },
    /// Its connections share a pool, which the first of them opens.
    #[cfg(feature = "postgres")]
    Postgres { url: StoreUrl, options: Box<PostgresOptions>, store: Arc<OnceCell<PostgresStore>> },
    /// The same.
    #[cfg(feature = "mysql")]
    Mysql { url: StoreUrl, options: Box<MysqlOptions>, store: Arc<OnceCell<MysqlStore>> },
    /// The same.
    #[cfg(feature = "pgmq")]
    Pgmq { url: StoreUrl, options: Box<PgmqOptions>, store: Arc<OnceCell<PgmqStore>> },
}

/// What becomes of a folder that is missing.
#[cfg(feature = "sqlite")]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Folder {
    /// It is an error: a path that somebody wrote may be written wrongly.
    MustExist,
    /// It is made: nobody chose it.
    IsMade,
}

/// A step of a store's schema.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Migration {
    /// Its name. Steps are applied in the order of their names.
    pub name: &'static str,
    /// What it does.
    pub sql: Cow<'static, str>,
}

/// The forms of the URLs that can be used.
pub(crate) const FORMS: &[&str] = &[
    "memory:",
    #[cfg(feature = "sqlite")]
    "sqlite:/path/file.db",
    #[cfg(feature = "postgres")]
    "postgres://user@host/database",
    #[cfg(feature = "mysql")]
    "mysql://user@host/database",
    #[cfg(feature = "pgmq")]
    "pgmq+postgres://user@host/database",
];

impl Endpoint {
    /// The store that `url` leads to, used as `settings` say.
    pub fn new(url: &str, settings: &MessagingConfig) -> Result<Self, MessagingError> {
        let invalid = |why: String| Err(MessagingError::invalid("URL", why));
        let shown = url.escape_debug();
        let Some((scheme, rest)) = url.split_once(':') else {
            return invalid(format!("'{shown}' has no scheme; {}", known_forms()));
        };
        match scheme {
            "memory" if rest.is_empty() => {
                let store = MemoryStore::builder().limits(settings.limits()).create_queues(settings.create_queues);
                Ok(Self(Kind::Memory(store.build())))
            }
            "memory" => invalid(format!("'{shown}' names something behind 'memory:'; there is nothing to name")),
            #[cfg(feature = "sqlite")]
            "sqlite" => match sqlite_path(rest) {
                Ok(path) => Ok(Self(Kind::Sqlite {
                    path: path.into(),
                    options: Box::new(sqlite_options(settings)),
                    folder: Folder::MustExist,
                })),
                Err(why) => invalid(format!("'{shown}' {why}")),
            },
            #[cfg(feature = "postgres")]
            "postgres" | "postgresql" => Ok(Self(Kind::Postgres {
                url: StoreUrl::new(url),
                options: Box::new(postgres_options(settings)),
                store: Arc::default(),
            })),
            #[cfg(feature = "mysql")]
            "mysql" | "mariadb" => Ok(Self(Kind::Mysql {
                url: StoreUrl::new(url),
                options: Box::new(mysql_options(settings)),
                store: Arc::default(),
            })),
            #[cfg(feature = "pgmq")]
            "pgmq+postgres" | "pgmq+postgresql" => Ok(Self(Kind::Pgmq {
                url: StoreUrl::new(url),
                options: Box::new(pgmq_options(settings)),
                store: Arc::default(),
            })),
            _ if ProviderKind::of_scheme(scheme).is_some() => {
                invalid(format!("this program has no provider for '{scheme}' URLs; {}", known_forms()))
            }
            _ => invalid(format!("scheme '{}' is not known; {}", scheme.escape_debug(), known_forms())),
        }
    }

    /// The same store, in the folder that is used when nobody names one: it is made when it is not there.
    pub(crate) fn in_default_folder(self) -> Self {
        match self.0 {
            #[cfg(feature = "sqlite")]
            Kind::Sqlite { path, options, .. } => Self(Kind::Sqlite { path, options, folder: Folder::IsMade }),
            kind => Self(kind),
        }
    }

    /// The same store under a name that leads to it from every folder.
    pub fn absolute(&self) -> Self {
        match &self.0 {
            #[cfg(feature = "sqlite")]
            Kind::Sqlite { path, options, folder } => {
                // It fails for an empty path and where there is no current folder; then the name stays what it is.
                let path = std::path::absolute(path).unwrap_or_else(|_| path.clone());
                Self(Kind::Sqlite { path, options: options.clone(), folder: *folder })
            }
            Kind::Memory(_) => self.clone(),
            #[cfg(feature = "postgres")]
            Kind::Postgres { .. } => self.clone(),
            #[cfg(feature = "mysql")]
            Kind::Mysql { .. } => self.clone(),
            #[cfg(feature = "pgmq")]
            Kind::Pgmq { .. } => self.clone(),
        }
    }

    /// Whether the store is yet to be made: its file does not exist. A store in memory always is.
    pub fn is_new(&self) -> bool {
        match &self.0 {
            Kind::Memory(_) => true,
            #[cfg(feature = "sqlite")]
            Kind::Sqlite { path, .. } => !path.exists(),
            #[cfg(feature = "postgres")]
            Kind::Postgres { .. } => false,
            #[cfg(feature = "mysql")]
            Kind::Mysql { .. } => false,
            #[cfg(feature = "pgmq")]
            Kind::Pgmq { .. } => false,
        }
    }

    /// Opens a connection.
    pub async fn connect(&self) -> Result<MessagingProvider, MessagingError> {
        match &self.0 {
            Kind::Memory(store) => Ok(MessagingProvider::Memory(store.open())),
            #[cfg(feature = "sqlite")]
            Kind::Sqlite { path, options, folder } => {
                folder.prepare(path)?;
                let store = SqliteStore::open(path, (**options).clone()).await?;
                Ok(MessagingProvider::Sqlite(store.connect().await?))
            }
            #[cfg(feature = "postgres")]
            Kind::Postgres { url, options, store } => {
                let open = || PostgresStore::open(url.as_str(), (**options).clone());
                Ok(MessagingProvider::Postgres(store.get_or_try_init(open).await?.connect()?))
            }
            #[cfg(feature = "mysql")]
            Kind::Mysql { url, options, store } => {
                let open = || MysqlStore::open(url.as_str(), (**options).clone());
                Ok(MessagingProvider::Mysql(store.get_or_try_init(open).await?.connect()?))
            }
            #[cfg(feature = "pgmq")]
            Kind::Pgmq { url, options, store } => {
                let open = || PgmqStore::open(url.as_str(), (**options).clone());
                Ok(MessagingProvider::Pgmq(store.get_or_try_init(open).await?.connect()?))
            }
        }
    }

    /// Looks at the store and says what is wrong with it and what to do about it. Changes nothing: neither makes a file
    /// nor applies a migration. Fails only where there is nothing to look at: for a URL or settings that nobody could
    /// use.
    pub async fn examine(&self, deadline: Deadline) -> Result<Vec<Finding>, MessagingError> {
        let (mut findings, unchanged) = match &self.0 {
            Kind::Memory(_) => {
                (vec![Finding::fine("connection", "it is in this process, and ends with it")], self.clone())
            }
            #[cfg(feature = "sqlite")]
            Kind::Sqlite { path, options, .. } => {
                let options = SqliteOptions { auto_migrate: false, ..(**options).clone() };
                let findings = examine_file(path, &options).await;
                let (path, options, folder) = (path.clone(), Box::new(options), Folder::MustExist);
                (findings, Self(Kind::Sqlite { path, options, folder }))
            }
            #[cfg(feature = "postgres")]
            Kind::Postgres { url, options, .. } => {
                let options = PostgresOptions { auto_migrate: false, ..(**options).clone() };
                let findings = PostgresStore::examine(url.as_str(), options.clone(), deadline).await?;
                let (url, options) = (url.clone(), Box::new(options));
                (findings, Self(Kind::Postgres { url, options, store: Arc::default() }))
            }
            #[cfg(feature = "pgmq")]
            Kind::Pgmq { url, options, .. } => {
                let options = PgmqOptions { auto_migrate: false, ..(**options).clone() };
                let findings = PgmqStore::examine(url.as_str(), options.clone(), deadline).await?;
                let (url, options) = (url.clone(), Box::new(options));
                (findings, Self(Kind::Pgmq { url, options, store: Arc::default() }))
            }
            #[cfg(feature = "mysql")]
            Kind::Mysql { url, options, .. } => {
                let options = MysqlOptions { auto_migrate: false, ..(**options).clone() };
                let findings = MysqlStore::examine(url.as_str(), options.clone(), deadline).await?;
                let (url, options) = (url.clone(), Box::new(options));
                (findings, Self(Kind::Mysql { url, options, store: Arc::default() }))
            }
        };
        if examine::is_usable(&findings) {
            findings.extend(match unchanged.connect().await {
                Ok(provider) => examine::queues(&provider, deadline).await,
                Err(error) => {
                    let fix = "correct what it names, then try again";
                    vec![Finding::new("queues", Severity::Problem, error.to_string(), fix)]
                }
            });
        }
        Ok(findings)
    }

    /// The migrations that the store lacks. Nothing is applied.
    pub async fn pending_migrations(&self) -> Result<Vec<Migration>, MessagingError> {
        match &self.0 {
            Kind::Memory(_) => Ok(Vec::new()),
            #[cfg(feature = "sqlite")]
            Kind::Sqlite { path, options, folder } => {
                // A look makes nothing, not even the folder.
                if *folder == Folder::IsMade && path.parent().is_some_and(|folder| !folder.exists()) {
                    return Ok(named(SqliteStore::all_migrations()));
                }
                Ok(named(SqliteStore::pending_migrations(path, (**options).clone()).await?))
            }
            #[cfg(feature = "postgres")]
            Kind::Postgres { url, options, .. } => {
                let steps = PostgresStore::pending_migrations(url.as_str(), (**options).clone()).await?;
                Ok(steps.iter().map(|step| whole(step.name, &step.sql)).collect())
            }
            #[cfg(feature = "mysql")]
            Kind::Mysql { url, options, .. } => {
                let steps = MysqlStore::pending_migrations(url.as_str(), (**options).clone()).await?;
                Ok(steps.into_iter().map(|step| Migration { name: step.name, sql: step.sql.into() }).collect())
            }
            #[cfg(feature = "pgmq")]
            Kind::Pgmq { url, options, .. } => {
                let steps = PgmqStore::pending_migrations(url.as_str(), (**options).clone()).await?;
                Ok(steps.iter().map(|step| whole(step.name, &step.sql)).collect())
            }
        }
    }

    /// Applies the migrations that the store lacks, whatever `auto_migrate` says, and answers what they were.
    pub async fn migrate(&self) -> Result<Vec<Migration>, MessagingError> {
        match &self.0 {
            Kind::Memory(_) => Ok(Vec::new()),
            #[cfg(feature = "sqlite")]
            Kind::Sqlite { path, options, folder } => {
                folder.prepare(path)?;
                Ok(named(SqliteStore::migrate(path, (**options).clone()).await?))
            }
            #[cfg(feature = "postgres")]
            Kind::Postgres { url, options, .. } => {
                let steps = PostgresStore::migrate(url.as_str(), (**options).clone()).await?;
                Ok(steps.iter().map(|step| whole(step.name, &step.sql)).collect())
            }
            #[cfg(feature = "mysql")]
            Kind::Mysql { url, options, .. } => {
                let steps = MysqlStore::migrate(url.as_str(), (**options).clone()).await?;
                Ok(steps.into_iter().map(|step| Migration { name: step.name, sql: step.sql.into() }).collect())
            }
            #[cfg(feature = "pgmq")]
            Kind::Pgmq { url, options, .. } => {
                let steps = PgmqStore::migrate(url.as_str(), (**options).clone()).await?;
                Ok(steps.iter().map(|step| whole(step.name, &step.sql)).collect())
            }
        }
    }
}

/// The file that is meant by what stands behind `sqlite:`. What other programs write there and would mean something
/// else here is refused, or a file with an odd name would be made without a word.
#[cfg(feature = "sqlite")]
fn sqlite_path(rest: &str) -> Result<&str, String> {
    if rest == ":memory:" || rest == "//:memory:" {
        return Err("is no file; use memory: for a store in this process".into());
    }
    if rest.contains(['?', '#']) {
        return Err("has parameters, and there are none; name the file alone, like sqlite:/path/file.db, and write \
                    settings into [common.messaging.sqlite]"
            .into());
    }
    let path = match rest.strip_prefix("//") {
        // As other programs write it: no host, then the path.
        Some(path) if path.starts_with('/') => path,
        Some(name) => {
            let name = name.escape_debug();
            return Err(format!("has a host, and a file has none; use sqlite:{name} or sqlite:/path/{name}"));
        }
        None => rest,
    };
    if path.is_empty() {
        return Err(format!("names no file; {}", known_forms()));
    }
    Ok(path)
}

/// What can be said of a file without opening it for writing.
#[cfg(feature = "sqlite")]
async fn examine_file(path: &Path, options: &SqliteOptions) -> Vec<Finding> {
    if !path.exists() {
        let found = format!("'{}' does not exist", path.display());
        let fix = "name another file; this one is made by the first send, or by `postrider migrate`";
        return vec![Finding::new("connection", Severity::Problem, found, fix)];
    }
    let mut findings = vec![Finding::fine("connection", format!("'{}' is there", path.display()))];
    findings.push(match SqliteStore::pending_migrations(path, options.clone()).await {
        Ok(missing) if missing.is_empty() => Finding::fine("schema", "up to date"),
        Ok(missing) => {
            let names: Vec<&str> = missing.iter().map(|step| step.name).collect();
            let fix = "apply them with `postrider migrate URL`; connecting does so too unless auto_migrate is off";
            Finding::new("schema", Severity::Problem, format!("lacks the migrations {}", names.join(", ")), fix)
        }
        Err(error) => {
            Finding::new("schema", Severity::Problem, error.to_string(), "correct what it names, then try again")
        }
    });
    findings.push(match options.durability {
        Durability::PowerLoss => Finding::fine("durability", "every commit is on the disk before it is answered"),
        Durability::ProcessCrashOnly => Finding::new(
            "durability",
            Severity::Warning,
            "synchronous = \"normal\": a power loss can take the last commits, which were already answered",
            "set common.messaging.sqlite.synchronous = \"full\"",
        ),
    });
    findings
}

#[cfg(feature = "sqlite")]
fn named(migrations: Vec<postrider_sqlite::Migration>) -> Vec<Migration> {
    migrations.into_iter().map(|step| Migration { name: step.name, sql: step.sql.into() }).collect()
}

/// A step as an operator runs it: when it is cut off or fails, nothing of it stays.
#[cfg(any(feature = "pgmq", feature = "postgres"))]
fn whole(name: &'static str, sql: &str) -> Migration {
    Migration { name, sql: format!("begin;\n{}\ncommit;\n", sql.trim_end()).into() }
}

#[cfg(feature = "postgres")]
fn postgres_options(settings: &MessagingConfig) -> PostgresOptions {
    let postgres = &settings.postgres;
    PostgresOptions {
        schema: postgres.schema.clone(),
        pool_size: postgres.pool_size as usize,
        archive: postgres.archive,
        archive_retention: postgres.archive_retention,
        wake_up: if postgres.poll_only { WakeUpMode::PollOnly } else { WakeUpMode::Notify },
        poll_interval: postgres.poll_interval,
        auto_migrate: settings.auto_migrate,
        create_queues: settings.create_queues,
        limits: settings.limits(),
        connect_timeout: postgres.connection_timeout,
        statement_timeout: postgres.statement_timeout,
        ..PostgresOptions::default()
    }
}

#[cfg(feature = "mysql")]
fn mysql_options(settings: &MessagingConfig) -> MysqlOptions {
    let mysql = &settings.mysql;
    MysqlOptions {
        pool_size: mysql.pool_size as usize,
        archive: mysql.archive,
        archive_retention: mysql.archive_retention,
        poll_interval: mysql.poll_interval,
        auto_migrate: settings.auto_migrate,
        create_queues: settings.create_queues,
        limits: settings.limits(),
        connect_timeout: mysql.connection_timeout,
        statement_timeout: mysql.statement_timeout,
        ..MysqlOptions::default()
    }
}

#[cfg(feature = "pgmq")]
fn pgmq_options(settings: &MessagingConfig) -> PgmqOptions {
    let pgmq = &settings.pgmq;
    PgmqOptions {
        schema: pgmq.schema.clone(),
        pool_size: pgmq.pool_size as usize,
        archive: pgmq.archive,
        archive_retention: pgmq.archive_retention,
        enable_pg_notify: pgmq.enable_pg_notify,
        notify_throttle: pgmq.notify_throttle,
        poll_interval: pgmq.poll_interval,
        long_delay: pgmq.long_delay,
        auto_migrate: settings.auto_migrate,
        create_queues: settings.create_queues,
        limits: settings.limits(),
        connect_timeout: pgmq.connection_timeout,
        statement_timeout: pgmq.statement_timeout,
        ..PgmqOptions::default()
    }
}

#[cfg(feature = "sqlite")]
impl Folder {
    fn prepare(self, path: &Path) -> Result<(), MessagingError> {
        let (Self::IsMade, Some(folder)) = (self, path.parent()) else { return Ok(()) };
        std::fs::create_dir_all(folder).map_err(|source| MessagingError::Provider {
            provider: "sqlite",
            operation: "make its folder",
            source: Arc::new(NoDefaultFolder { folder: folder.to_owned(), source }),
            retryable: false,
        })
    }
}

/// The folder of the embedded file cannot be made.
#[cfg(feature = "sqlite")]
#[derive(Debug, thiserror::Error)]
#[error(
    "'{}' cannot be made ({source}); make it yourself, set XDG_DATA_HOME to another folder, or name a file with --url \
     sqlite:/path/file.db",
    folder.display()
)]
struct NoDefaultFolder {
    folder: PathBuf,
    source: std::io::Error,
}

#[cfg(feature = "sqlite")]
fn sqlite_options(settings: &MessagingConfig) -> SqliteOptions {
    let sqlite = &settings.sqlite;
    SqliteOptions {
        durability: match sqlite.synchronous {
            Synchronous::Full => Durability::PowerLoss,
            Synchronous::Normal => Durability::ProcessCrashOnly,
        },
        archive: sqlite.archive,
        archive_retention: sqlite.archive_retention,
        auto_migrate: settings.auto_migrate,
        share_file: sqlite.share_file,
        create_queues: settings.create_queues,
        limits: settings.limits(),
        lock_timeout: sqlite.lock_timeout,
        wal_limit_bytes: sqlite.wal_limit_bytes.into(),
        ..SqliteOptions::default()
    }
}

impl FromStr for Endpoint {
    type Err = MessagingError;

    fn from_str(url: &str) -> Result<Self, Self::Err> {
        Self::new(url, &MessagingConfig::default())
    }
}

fn known_forms() -> String {
    format!("use {}", FORMS.join(" or "))
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Kind::Memory(_) => f.write_str("memory:"),
            #[cfg(feature = "sqlite")]
            Kind::Sqlite { path, .. } => write!(f, "sqlite:{}", path.display()),
            #[cfg(feature = "postgres")]
            Kind::Postgres { url, .. } => write!(f, "{url}"),
            #[cfg(feature = "mysql")]
            Kind::Mysql { url, .. } => write!(f, "{url}"),
            #[cfg(feature = "pgmq")]
            Kind::Pgmq { url, .. } => write!(f, "{url}"),
        }
    }
}

/// Connects to the store that `url` leads to. Each `memory:` is a store of its own; connect twice to one of them
/// through an [`Endpoint`].
pub async fn connect(url: &str) -> Result<MessagingProvider, MessagingError> {
    url.parse::<Endpoint>()?.connect().await
}

#[cfg(test)]
mod tests {
    use postrider_core::{ArchivePolicy, Deadline, Message, MessagingService, QueueName, ReceiveOptions};

    use super::*;

    #[tokio::test]
    async fn connections_to_one_endpoint_share_its_store() {
        let endpoint: Endpoint = "memory:".parse().unwrap();
        let queue = QueueName::new("orders").unwrap();
        let (a, b) = (endpoint.connect().await.unwrap(), endpoint.connect().await.unwrap());
        a.send_message(&queue, Message::new("one"), Deadline::default()).await.unwrap();
        let options = ReceiveOptions::default();
        assert_eq!(b.receive_messages(&queue, &options, Deadline::default()).await.unwrap().len(), 1);
        let other = connect("memory:").await.unwrap();
        assert!(other.receive_messages(&queue, &options, Deadline::default()).await.unwrap().is_empty());
    }

    #[tokio::test]
    async fn a_file_keeps_what_was_sent_for_the_next_connection() {
        let folder = tempfile::tempdir().unwrap();
        let url = format!("sqlite:{}", folder.path().join("queues.db").display());
        let queue = QueueName::new("orders").unwrap();
        let first = connect(&url).await.unwrap();
        let id = first.send_message(&queue, Message::new("one"), Deadline::default()).await.unwrap();
        first.close(Deadline::default()).await.unwrap();
        let second = connect(&url).await.unwrap();
        let options = ReceiveOptions::default();
        let received = second.receive_messages(&queue, &options, Deadline::default()).await.unwrap();
        assert_eq!(received[0].id(), id);
        second.close(Deadline::default()).await.unwrap();
    }

    /// What a file was opened with cannot be seen in it for every setting.
    #[cfg(feature = "sqlite")]
    #[test]
    fn every_setting_of_the_embedded_file_is_passed_on() {
        let sqlite = crate::config::SqliteConfig {
            synchronous: Synchronous::Normal,
            archive: ArchivePolicy::Failed,
            archive_retention: std::time::Duration::from_secs(60),
            share_file: true,
            lock_timeout: std::time::Duration::from_millis(250),
            wal_limit_bytes: 123_456,
        };
        let settings = MessagingConfig {
            create_queues: false,
            auto_migrate: false,
            max_message_bytes: 77,
            sqlite,
            ..MessagingConfig::default()
        };
        let options = sqlite_options(&settings);
        assert_eq!(options.durability, Durability::ProcessCrashOnly);
        assert_eq!(options.archive, ArchivePolicy::Failed);
        assert_eq!(options.archive_retention, std::time::Duration::from_secs(60));
        assert_eq!(options.lock_timeout, std::time::Duration::from_millis(250));
        assert_eq!(options.wal_limit_bytes, 123_456);
        assert_eq!(options.limits.max_body_bytes, 77);
        assert!(options.share_file && !options.auto_migrate && !options.create_queues);

        let options = sqlite_options(&MessagingConfig::default());
        let defaults = SqliteOptions::default();
        assert_eq!(format!("{options:?}"), format!("{defaults:?}"), "the defaults of both are the same");
    }

    #[tokio::test]
    async fn a_store_tells_what_it_lacks_and_gets_it() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("deep/er/queues.db");
        let endpoint: Endpoint = format!("sqlite:{}", file.display()).parse().unwrap();
        assert!(endpoint.migrate().await.unwrap_err().to_string().contains("does not exist; create it"));

        let endpoint = endpoint.in_default_folder();
        let pending = endpoint.pending_migrations().await.unwrap();
        assert!(pending[0].sql.contains("create table") && !file.exists());
        assert!(!folder.path().join("deep").exists(), "a look made the folder");
        assert!(endpoint.is_new());
        assert_eq!(endpoint.migrate().await.unwrap(), pending);
        assert_eq!(endpoint.pending_migrations().await.unwrap(), []);
        assert!(!endpoint.is_new());
        assert_eq!("memory:".parse::<Endpoint>().unwrap().migrate().await.unwrap(), []);
    }

    #[test]
    fn a_database_is_used_as_configured_and_its_password_is_not_shown() {
        let options = postgres_options(&MessagingConfig::default());
        assert_eq!(format!("{options:?}"), format!("{:?}", PostgresOptions::default()), "the defaults are the same");
        let options = mysql_options(&MessagingConfig::default());
        assert_eq!(format!("{options:?}"), format!("{:?}", MysqlOptions::default()), "the defaults are the same");
        let options = pgmq_options(&MessagingConfig::default());
        assert_eq!(format!("{options:?}"), format!("{:?}", PgmqOptions::default()), "the defaults are the same");
        for scheme in ["postgres", "postgresql", "mysql", "mariadb", "pgmq+postgres", "pgmq+postgresql"] {
            let endpoint: Endpoint = format!("{scheme}://rider:secret@host/mail").parse().unwrap();
            assert_eq!(endpoint.to_string(), format!("{scheme}://rider:***@host/mail"));
            assert!(!format!("{endpoint:?}").contains("secret"));
        }
    }

    #[test]
    fn a_file_has_one_name_and_another_that_leads_there_from_everywhere() {
        let shown = |url: &str| url.parse::<Endpoint>().unwrap().to_string();
        assert_eq!(shown("sqlite:/srv/queues.db"), "sqlite:/srv/queues.db");
        assert_eq!(shown("sqlite:///srv/queues.db"), "sqlite:/srv/queues.db");
        assert_eq!(shown("sqlite:queues.db"), "sqlite:queues.db");
        let absolute = "sqlite:a/queues.db".parse::<Endpoint>().unwrap().absolute().to_string();
        assert_eq!(absolute, format!("sqlite:{}/a/queues.db", std::env::current_dir().unwrap().display()));
        assert_eq!(absolute.parse::<Endpoint>().unwrap().to_string(), absolute);
    }

    #[test]
    fn urls_that_lead_nowhere_say_what_can_be_used() {
        let forms = "use memory: or sqlite:/path/file.db or postgres://user@host/database or \
                     mysql://user@host/database or pgmq+postgres://user@host/database";
        for (url, text) in [
            ("orders", &*format!("'orders' has no scheme; {forms}")),
            ("kafka://host", &*format!("scheme 'kafka' is not known; {forms}")),
            ("sqlite:", &*format!("'sqlite:' names no file; {forms}")),
            (
                "sqlite://queues.db",
                "'sqlite://queues.db' has a host, and a file has none; use sqlite:queues.db or \
                 sqlite:/path/queues.db",
            ),
            ("sqlite::memory:", "'sqlite::memory:' is no file; use memory: for a store in this process"),
            (
                "sqlite:/queues.db?mode=ro",
                "'sqlite:/queues.db?mode=ro' has parameters, and there are none; name the file alone, like \
                 sqlite:/path/file.db, and write settings into [common.messaging.sqlite]",
            ),
            ("amqp://rider:secret@host/", &*format!("this program has no provider for 'amqp' URLs; {forms}")),
            ("memory:x", "'memory:x' names something behind 'memory:'; there is nothing to name"),
        ] {
            let error = url.parse::<Endpoint>().unwrap_err();
            assert_eq!(error.to_string(), format!("invalid URL: {text}"));
        }
    }
}
