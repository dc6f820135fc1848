//! The provider on MariaDB or MySQL, in a temporary database.

use postrider_mysql::mysql_async::prelude::Queryable;
use postrider_mysql::{ArchivePolicy, MysqlOptions, MysqlProvider, MysqlStore};

use crate::Failure;
use crate::raw::mysql::{connect, with_database};
use crate::server::Task;

pub(crate) struct ScratchDatabase {
    server: String,
    name: String,
    options: MysqlOptions,
}

impl ScratchDatabase {
    pub(crate) async fn new(url: &str, task: Task) -> Result<Self, Failure> {
        let archive = if task == Task::DrainNone { ArchivePolicy::None } else { ArchivePolicy::All };
        let name = format!("bench_{:08x}", rand::random::<u32>());
        connect(url).await?.query_drop(format!("create database {name}")).await?;
        Ok(Self { server: url.to_owned(), name, options: MysqlOptions { archive, ..MysqlOptions::default() } })
    }

    /// A connection that shares nothing with others.
    pub(crate) async fn open(&self) -> Result<MysqlProvider, Failure> {
        let url = with_database(&self.server, &self.name)?;
        Ok(MysqlStore::open(&url, self.options.clone()).await?.connect()?)
    }

    pub(crate) async fn remove(self) -> Result<(), Failure> {
        Ok(connect(&self.server).await?.query_drop(format!("drop database {}", self.name)).await?)
    }
}
