//! Migrations of a store's schema.

use std::borrow::Cow;

use postrider_core::{BoxFuture, MessagingError};
#[cfg(feature = "mysql")]
use postrider_mysql::MysqlStore;
#[cfg(feature = "pgmq")]
use postrider_pgmq::PgmqStore;
#[cfg(feature = "postgres")]
use postrider_postgres::PostgresStore;
#[cfg(feature = "sqlite")]
use {super::sqlite::Folder, postrider_sqlite::SqliteStore};

#[cfg(feature = "http")]
use super::http;
#[cfg(feature = "rabbitmq")]
use super::rabbitmq;
#[cfg(feature = "sqs")]
use super::sqs;
use super::{Endpoint, Kind};

/// A migration of a store's schema.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Migration {
    /// Its name. Migrations are applied in the order of their names.
    pub name: &'static str,
    /// Its statements.
    pub sql: Cow<'static, str>,
}

impl Endpoint {
    /// The migrations that the store lacks. Nothing is applied.
    pub fn pending_migrations(&self) -> BoxFuture<'_, Result<Vec<Migration>, MessagingError>> {
        Box::pin(async move {
            match &self.0 {
                Kind::Memory(_) => Ok(Vec::new()),
                // None: a message is in its file and the file's name.
                #[cfg(feature = "spool")]
                Kind::Spool { .. } => Ok(Vec::new()),
                #[cfg(feature = "sqlite")]
                Kind::Sqlite { path, options, folder } => {
                    // The check makes nothing, not even the folder.
                    if *folder == Folder::Make && path.parent().is_some_and(|folder| !folder.exists()) {
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
                #[cfg(feature = "http")]
                Kind::Http { url, options, .. } => http::migrations(url, options).await,
            }
        })
    }

    /// Applies the migrations that the store lacks, also without `auto_migrate`, and returns them.
    pub fn migrate(&self) -> BoxFuture<'_, Result<Vec<Migration>, MessagingError>> {
        Box::pin(async move {
            match &self.0 {
                Kind::Memory(_) => Ok(Vec::new()),
                // None: a message is in its file and the file's name.
                #[cfg(feature = "spool")]
                Kind::Spool { .. } => Ok(Vec::new()),
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
                #[cfg(feature = "http")]
                Kind::Http { url, options, .. } => http::migrations(url, options).await,
            }
        })
    }
}

#[cfg(feature = "sqlite")]
fn named(migrations: Vec<postrider_sqlite::Migration>) -> Vec<Migration> {
    migrations.into_iter().map(|step| Migration { name: step.name, sql: step.sql.into() }).collect()
}

/// A migration for an operator to run, in one transaction.
#[cfg(any(feature = "pgmq", feature = "postgres"))]
fn whole(name: &'static str, sql: &str) -> Migration {
    Migration { name, sql: format!("begin;\n{}\ncommit;\n", sql.trim_end()).into() }
}
