//! The provider on PostgreSQL, in a temporary schema.

use postrider_postgres::tokio_postgres::{self, NoTls};
use postrider_postgres::{ArchivePolicy, PostgresOptions, PostgresProvider, PostgresStore};

use crate::Failure;
use crate::server::Task;

pub(crate) struct ScratchSchema {
    url: String,
    options: PostgresOptions,
}

impl ScratchSchema {
    pub(crate) fn new(url: &str, task: Task) -> Self {
        let archive = if task == Task::DrainNone { ArchivePolicy::None } else { ArchivePolicy::All };
        let schema = format!("bench_{:08x}", rand::random::<u32>());
        Self { url: url.to_owned(), options: PostgresOptions { schema, archive, ..PostgresOptions::default() } }
    }

    /// A connection that shares nothing with others.
    pub(crate) async fn open(&self) -> Result<PostgresProvider, Failure> {
        Ok(PostgresStore::open(&self.url, self.options.clone()).await?.connect()?)
    }

    pub(crate) async fn remove(self) -> Result<(), Failure> {
        let (client, connection) = tokio_postgres::connect(&self.url, NoTls).await?;
        // The connection must be polled for the client to progress.
        tokio::spawn(connection);
        Ok(client.batch_execute(&format!("drop schema {} cascade", self.options.schema)).await?)
    }
}
