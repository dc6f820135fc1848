//! Where messages are kept, by URL.

#[cfg(feature = "mysql")]
mod mysql;
#[cfg(feature = "pgmq")]
mod pgmq;
#[cfg(feature = "postgres")]
mod postgres;
#[cfg(feature = "rabbitmq")]
mod rabbitmq;
#[cfg(feature = "sqlite")]
mod sqlite;
#[cfg(feature = "sqs")]
mod sqs;
#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use postrider_core::{Deadline, Finding, MemoryStore, MessagingError};
#[cfg(feature = "mysql")]
use postrider_mysql::{MysqlOptions, MysqlStore};
#[cfg(feature = "pgmq")]
use postrider_pgmq::{PgmqOptions, PgmqStore};
#[cfg(feature = "postgres")]
use postrider_postgres::{PostgresOptions, PostgresStore};
#[cfg(feature = "rabbitmq")]
use postrider_rabbitmq::{RabbitmqOptions, RabbitmqStore};
#[cfg(feature = "sqs")]
use postrider_sqs::{SqsOptions, SqsStore};
#[cfg(feature = "sqlite")]
use {
    postrider_sqlite::{SqliteOptions, SqliteStore},
    sqlite::Folder,
    std::path::PathBuf,
};
#[cfg(any(feature = "mysql", feature = "pgmq", feature = "postgres", feature = "sqs"))]
use {std::sync::Arc, tokio::sync::OnceCell};

#[cfg(any(feature = "mysql", feature = "pgmq", feature = "postgres", feature = "rabbitmq", feature = "sqs"))]
use crate::config::StoreUrl;
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
    /// Each connection is one of the broker's: only the one that received a message can settle it.
    #[cfg(feature = "rabbitmq")]
    Rabbitmq { url: StoreUrl, options: Box<RabbitmqOptions> },
    /// The same.
    #[cfg(feature = "sqs")]
    Sqs { url: StoreUrl, options: Box<SqsOptions>, store: Arc<OnceCell<SqsStore>> },
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
    #[cfg(feature = "rabbitmq")]
    "amqp://user@host/vhost",
    #[cfg(feature = "sqs")]
    "sqs://region/prefix",
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
            "sqlite" => match sqlite::path(rest) {
                Ok(path) => Ok(Self(Kind::Sqlite {
                    path: path.into(),
                    options: Box::new(sqlite::options(settings)),
                    folder: Folder::MustExist,
                })),
                Err(why) => invalid(format!("'{shown}' {why}")),
            },
            #[cfg(feature = "postgres")]
            "postgres" | "postgresql" => Ok(Self(Kind::Postgres {
                url: StoreUrl::new(url),
                options: Box::new(postgres::options(settings)),
                store: Arc::default(),
            })),
            #[cfg(feature = "mysql")]
            "mysql" | "mariadb" => Ok(Self(Kind::Mysql {
                url: StoreUrl::new(url),
                options: Box::new(mysql::options(settings)),
                store: Arc::default(),
            })),
            #[cfg(feature = "pgmq")]
            "pgmq+postgres" | "pgmq+postgresql" => Ok(Self(Kind::Pgmq {
                url: StoreUrl::new(url),
                options: Box::new(pgmq::options(settings)),
                store: Arc::default(),
            })),
            #[cfg(feature = "rabbitmq")]
            "amqp" | "amqps" => {
                let options = Box::new(rabbitmq::options(settings));
                Ok(Self(Kind::Rabbitmq { url: StoreUrl::new(url), options }))
            }
            #[cfg(feature = "sqs")]
            "sqs" | "sqs+http" | "sqs+https" => Ok(Self(Kind::Sqs {
                url: StoreUrl::new(url),
                options: Box::new(sqs::options(settings)),
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
            #[cfg(feature = "rabbitmq")]
            Kind::Rabbitmq { .. } => self.clone(),
            #[cfg(feature = "sqs")]
            Kind::Sqs { .. } => self.clone(),
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
            #[cfg(feature = "rabbitmq")]
            Kind::Rabbitmq { .. } => false,
            #[cfg(feature = "sqs")]
            Kind::Sqs { .. } => false,
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
            #[cfg(feature = "rabbitmq")]
            Kind::Rabbitmq { url, options } => {
                let store = RabbitmqStore::new(url.as_str(), (**options).clone())?;
                Ok(MessagingProvider::Rabbitmq(store.connect().await?))
            }
            #[cfg(feature = "sqs")]
            Kind::Sqs { url, options, store } => {
                let open = || SqsStore::open(url.as_str(), (**options).clone());
                Ok(MessagingProvider::Sqs(store.get_or_try_init(open).await?.connect()?))
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
                let findings = SqliteStore::examine(path, options.clone()).await;
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
            #[cfg(feature = "rabbitmq")]
            Kind::Rabbitmq { url, options } => {
                (Box::pin(RabbitmqStore::examine(url.as_str(), (**options).clone(), deadline)).await?, self.clone())
            }
            #[cfg(feature = "sqs")]
            Kind::Sqs { url, options, .. } => {
                (SqsStore::examine(url.as_str(), (**options).clone(), deadline).await?, self.clone())
            }
        };
        if examine::is_usable(&findings) {
            findings.extend(match unchanged.connect().await {
                Ok(provider) => examine::queues(&provider, deadline).await,
                Err(error) => vec![Finding::failed("queues", &error)],
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
            #[cfg(feature = "rabbitmq")]
            Kind::Rabbitmq { url, options } => rabbitmq::migrations(url, options).await,
            #[cfg(feature = "sqs")]
            Kind::Sqs { url, options, .. } => sqs::migrations(url, options).await,
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
            #[cfg(feature = "rabbitmq")]
            Kind::Rabbitmq { url, options } => rabbitmq::migrations(url, options).await,
            #[cfg(feature = "sqs")]
            Kind::Sqs { url, options, .. } => sqs::migrations(url, options).await,
        }
    }
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
            #[cfg(feature = "rabbitmq")]
            Kind::Rabbitmq { url, .. } => write!(f, "{url}"),
            #[cfg(feature = "sqs")]
            Kind::Sqs { url, .. } => write!(f, "{url}"),
        }
    }
}

/// Connects to the store that `url` leads to. Each `memory:` is a store of its own; connect twice to one of them
/// through an [`Endpoint`].
pub async fn connect(url: &str) -> Result<MessagingProvider, MessagingError> {
    url.parse::<Endpoint>()?.connect().await
}
