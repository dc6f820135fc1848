//! The provider on PGMQ, in a temporary schema. The workloads delete their queues.

use postrider_pgmq::tokio_postgres::{self, NoTls};
use postrider_pgmq::{ArchivePolicy, PgmqOptions, PgmqProvider, PgmqStore};

use crate::Failure;

pub(crate) struct ScratchSchema {
    url: String,
    options: PgmqOptions,
}

impl ScratchSchema {
    pub(crate) fn new(url: &str) -> Self {
        let schema = format!("bench_{:08x}", rand::random::<u32>());
        let archive = ArchivePolicy::None;
        Self { url: url.to_owned(), options: PgmqOptions { schema, archive, ..PgmqOptions::default() } }
    }

    /// A connection that shares nothing with others.
    pub(crate) async fn open(&self) -> Result<PgmqProvider, Failure> {
        Ok(PgmqStore::open(&self.url, self.options.clone()).await?.connect()?)
    }

    pub(crate) async fn remove(self) -> Result<(), Failure> {
        let url = self.url.strip_prefix("pgmq+").unwrap_or(&self.url);
        let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
        // The connection must be polled for the client to progress.
        tokio::spawn(connection);
        Ok(client.batch_execute(&format!("drop schema {} cascade", self.options.schema)).await?)
    }
}
