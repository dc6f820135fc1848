//! Stores by URL.

#[cfg(feature = "http")]
mod http;
mod migrations;
#[cfg(feature = "mysql")]
mod mysql;
#[cfg(any(feature = "spool", feature = "sqlite"))]
mod path;
#[cfg(feature = "pgmq")]
mod pgmq;
#[cfg(feature = "postgres")]
mod postgres;
#[cfg(feature = "rabbitmq")]
mod rabbitmq;
#[cfg(feature = "spool")]
mod spool;
#[cfg(feature = "sqlite")]
mod sqlite;
#[cfg(feature = "sqs")]
mod sqs;
#[cfg(all(test, feature = "full"))]
mod tests;

use std::fmt;
use std::str::FromStr;

use postrider_core::masked_url::masked_url;
use postrider_core::{BoxFuture, Deadline, Finding, MemoryStore, MessagingError};
#[cfg(feature = "http")]
use postrider_http::{HttpOptions, HttpStore};
#[cfg(feature = "mysql")]
use postrider_mysql::{MysqlOptions, MysqlStore};
#[cfg(feature = "pgmq")]
use postrider_pgmq::{PgmqOptions, PgmqStore};
#[cfg(feature = "postgres")]
use postrider_postgres::{PostgresOptions, PostgresStore};
#[cfg(feature = "rabbitmq")]
use postrider_rabbitmq::{RabbitmqOptions, RabbitmqStore};
#[cfg(feature = "spool")]
use postrider_spool::{SpoolOptions, SpoolStore};
#[cfg(feature = "sqs")]
use postrider_sqs::{SqsOptions, SqsStore};
#[cfg(any(feature = "spool", feature = "sqlite"))]
use std::path::{Path, PathBuf};
#[cfg(feature = "sqlite")]
use {
    postrider_sqlite::{SqliteOptions, SqliteStore},
    sqlite::Folder,
};
#[cfg(any(
    feature = "http",
    feature = "mysql",
    feature = "pgmq",
    feature = "postgres",
    feature = "spool",
    feature = "sqs"
))]
use {std::sync::Arc, tokio::sync::OnceCell};

#[cfg(any(
    feature = "http",
    feature = "mysql",
    feature = "pgmq",
    feature = "postgres",
    feature = "rabbitmq",
    feature = "sqs"
))]
use crate::config::StoreUrl;
use crate::config::{MessagingConfig, ProviderKind};
use crate::examine;
use crate::messaging_provider::MessagingProvider;

pub use migrations::Migration;

/// The store of a URL. Any number of connections can be opened to it.
#[derive(Debug, Clone)]
pub struct Endpoint(Kind);

#[derive(Debug, Clone)]
enum Kind {
    /// Holds the store itself, so that every connection reaches the same one.
    Memory(MemoryStore),
    #[cfg(feature = "sqlite")]
    Sqlite { path: PathBuf, options: Box<SqliteOptions>, folder: Folder },
    /// Connections share the index of the folder, which the first one reads.
    #[cfg(feature = "spool")]
    Spool { path: PathBuf, options: Box<SpoolOptions>, store: Arc<OnceCell<SpoolStore>> },
    /// Connections share a pool, which the first one opens.
    #[cfg(feature = "postgres")]
    Postgres { url: StoreUrl, options: Box<PostgresOptions>, store: Arc<OnceCell<PostgresStore>> },
    /// As for PostgreSQL.
    #[cfg(feature = "mysql")]
    Mysql { url: StoreUrl, options: Box<MysqlOptions>, store: Arc<OnceCell<MysqlStore>> },
    /// As for PostgreSQL.
    #[cfg(feature = "pgmq")]
    Pgmq { url: StoreUrl, options: Box<PgmqOptions>, store: Arc<OnceCell<PgmqStore>> },
    /// Each connection is a broker connection: only the one that received a message can settle it.
    #[cfg(feature = "rabbitmq")]
    Rabbitmq { url: StoreUrl, options: Box<RabbitmqOptions> },
    /// As for PostgreSQL.
    #[cfg(feature = "sqs")]
    Sqs { url: StoreUrl, options: Box<SqsOptions>, store: Arc<OnceCell<SqsStore>> },
    /// Connections share the server's description and the sockets.
    #[cfg(feature = "http")]
    Http { url: StoreUrl, options: Box<HttpOptions>, store: Arc<OnceCell<HttpStore>> },
}

/// The forms of usable URLs.
pub(crate) const FORMS: &[&str] = &[
    "memory:",
    #[cfg(feature = "sqlite")]
    "sqlite:/path/file.db",
    #[cfg(feature = "spool")]
    "spool:/path",
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
    #[cfg(feature = "http")]
    "http://host:port",
];

impl Endpoint {
    /// The store of `url` with these settings.
    pub fn new(url: &str, settings: &MessagingConfig) -> Result<Self, MessagingError> {
        let invalid = |why: String| Err(MessagingError::invalid("URL", why));
        let shown = masked_url(url);
        let shown = shown.escape_debug();
        let Some((scheme, rest)) = url.split_once(':') else {
            return invalid(match path_form(url) {
                Some(form) => format!("'{shown}' has no scheme; did you mean '{form}:{shown}'?"),
                None => format!("'{shown}' has no scheme; {}", known_forms()),
            });
        };
        match scheme {
            "memory" if rest.is_empty() => {
                let store = MemoryStore::builder().limits(settings.limits()).create_queues(settings.create_queues);
                Ok(Self(Kind::Memory(store.build())))
            }
            "memory" => invalid(format!("'{shown}' has text after 'memory:'; use memory: alone")),
            #[cfg(feature = "sqlite")]
            "sqlite" => match sqlite::URL.path(rest) {
                Ok(path) => Ok(Self(Kind::Sqlite {
                    path: path.into(),
                    options: Box::new(sqlite::options(settings)),
                    folder: Folder::MustExist,
                })),
                Err(why) => invalid(format!("'{shown}' {why}")),
            },
            #[cfg(feature = "spool")]
            "spool" => match spool::URL.path(rest) {
                Ok(path) => Ok(Self(Kind::Spool {
                    path: path.into(),
                    options: Box::new(spool::options(settings)?),
                    store: Arc::default(),
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
            #[cfg(feature = "http")]
            "http" | "https" => Ok(Self(Kind::Http {
                url: StoreUrl::new(url),
                options: Box::new(http::options(settings)),
                store: Arc::default(),
            })),
            _ => match ProviderKind::of_scheme(scheme) {
                Some(kind) => invalid(format!("'{scheme}:' {}, or {}", kind.missing_feature(), known_forms())),
                None => invalid(format!("scheme '{}' is not known; {}", scheme.escape_debug(), known_forms())),
            },
        }
    }

    /// The same store in the default folder, which is made when it is missing.
    pub(crate) fn in_default_folder(self) -> Self {
        match self.0 {
            #[cfg(feature = "sqlite")]
            Kind::Sqlite { path, options, .. } => Self(Kind::Sqlite { path, options, folder: Folder::Make }),
            kind => Self(kind),
        }
    }

    /// The same store by an absolute path.
    pub fn absolute(&self) -> Self {
        match &self.0 {
            #[cfg(feature = "sqlite")]
            Kind::Sqlite { path, options, folder } => {
                Self(Kind::Sqlite { path: absolute(path), options: options.clone(), folder: *folder })
            }
            #[cfg(feature = "spool")]
            Kind::Spool { path, options, store } => {
                Self(Kind::Spool { path: absolute(path), options: options.clone(), store: store.clone() })
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
            #[cfg(feature = "http")]
            Kind::Http { .. } => self.clone(),
        }
    }

    /// Whether the file or folder of the store does not exist yet. Always true in memory.
    pub fn is_new(&self) -> bool {
        match &self.0 {
            Kind::Memory(_) => true,
            #[cfg(feature = "sqlite")]
            Kind::Sqlite { path, .. } => !path.exists(),
            #[cfg(feature = "spool")]
            Kind::Spool { path, .. } => !path.exists(),
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
            #[cfg(feature = "http")]
            Kind::Http { .. } => false,
        }
    }

    /// Checks the permissions of the embedded file; `None` for other stores. Opens nothing.
    pub fn access(&self) -> Option<Finding> {
        match &self.0 {
            #[cfg(feature = "sqlite")]
            Kind::Sqlite { path, .. } => Some(SqliteStore::access(path)),
            _ => None,
        }
    }

    /// Opens a connection.
    pub fn connect(&self) -> BoxFuture<'_, Result<MessagingProvider, MessagingError>> {
        Box::pin(async move {
            match &self.0 {
                Kind::Memory(store) => Ok(MessagingProvider::Memory(store.open())),
                #[cfg(feature = "sqlite")]
                Kind::Sqlite { path, options, folder } => {
                    folder.prepare(path)?;
                    let store = SqliteStore::open(path, (**options).clone()).await?;
                    Ok(MessagingProvider::Sqlite(store.connect().await?))
                }
                #[cfg(feature = "spool")]
                Kind::Spool { path, options, store } => {
                    let open = || SpoolStore::open(path, (**options).clone());
                    Ok(MessagingProvider::Spool(store.get_or_try_init(open).await?.connect()?))
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
                #[cfg(feature = "http")]
                Kind::Http { url, options, store } => {
                    let open = || HttpStore::open(url.as_str(), (**options).clone());
                    Ok(MessagingProvider::Http(store.get_or_try_init(open).await?.connect()?))
                }
            }
        })
    }

    /// Checks the store and returns its findings with their fixes. Changes nothing: makes no file and applies no migration.
    /// Fails only for a URL or settings that cannot be used.
    pub fn examine(&self, deadline: Deadline) -> BoxFuture<'_, Result<Vec<Finding>, MessagingError>> {
        Box::pin(async move {
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
                #[cfg(feature = "spool")]
                Kind::Spool { path, options, .. } => {
                    (SpoolStore::examine(path, (**options).clone()).await, self.clone())
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
                    (RabbitmqStore::examine(url.as_str(), (**options).clone(), deadline).await?, self.clone())
                }
                #[cfg(feature = "sqs")]
                Kind::Sqs { url, options, .. } => {
                    (SqsStore::examine(url.as_str(), (**options).clone(), deadline).await?, self.clone())
                }
                #[cfg(feature = "http")]
                Kind::Http { url, options, .. } => {
                    (HttpStore::examine(url.as_str(), (**options).clone(), deadline).await?, self.clone())
                }
            };
            // A Postrider server has checked its queues already.
            let are_queues_seen = findings.iter().any(|finding| finding.check == "queues");
            if examine::is_usable(&findings) && !are_queues_seen {
                findings.extend(match unchanged.connect().await {
                    Ok(provider) => examine::queues(&provider, deadline).await,
                    Err(error) => vec![Finding::failed("queues", &error)],
                });
            }
            Ok(findings)
        })
    }
}

impl FromStr for Endpoint {
    type Err = MessagingError;

    fn from_str(url: &str) -> Result<Self, Self::Err> {
        Self::new(url, &MessagingConfig::default())
    }
}

/// The absolute path. An empty path, or any path without a current folder, stays as it is.
#[cfg(any(feature = "spool", feature = "sqlite"))]
fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

/// The scheme for a text that looks like the path of a file or folder.
fn path_form(text: &str) -> Option<&'static str> {
    if cfg!(feature = "spool") && std::path::Path::new(text).is_dir() {
        return Some("spool");
    }
    (cfg!(feature = "sqlite") && text.contains(['.', '/'])).then_some("sqlite")
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
            #[cfg(feature = "spool")]
            Kind::Spool { path, .. } => write!(f, "spool:{}", path.display()),
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
            #[cfg(feature = "http")]
            Kind::Http { url, .. } => write!(f, "{url}"),
        }
    }
}

/// Connects to the store of `url`. Each `memory:` is a new store; to connect twice to one of them use an [`Endpoint`].
pub fn connect(url: &str) -> BoxFuture<'_, Result<MessagingProvider, MessagingError>> {
    Box::pin(async move { url.parse::<Endpoint>()?.connect().await })
}
