//! MariaDB or MySQL without a queue: a table, an index and the statements that a minimal program would write.

use std::time::{Duration, Instant};

use postrider_mysql::mysql_async::prelude::Queryable;
use postrider_mysql::mysql_async::{Conn, Opts, OptsBuilder, Row, Value};
use tokio::task::JoinSet;

use crate::Failure;
use crate::raw::{RawServer, SENDERS};

/// A table in a temporary database.
pub(crate) struct Raw {
    server: String,
    url: String,
    name: String,
}

/// MySQL has no partial indexes, so the index ignores the state: a claimed row is due later.
const TABLE: &str = "\
create table raw (
  id bigint not null auto_increment primary key, vis datetime(6) not null, state tinyint not null default 0,
  payload longblob not null, index raw_due (vis)) engine = InnoDB";

const SEND: &str = "insert into raw (vis, payload) values (utc_timestamp(6), ?)";

/// Begins the transaction and claims, in one round trip.
const CLAIM: &str = "\
begin; select id, payload from raw where vis <= utc_timestamp(6) order by vis limit {batch} for update skip locked";

/// Leases and commits, in one round trip.
const LEASE: &str = "\
update raw set state = 1, vis = utc_timestamp(6) + interval 30 second where id in ({ids}); commit";

const DELETE: &str = "delete from raw where id in ({ids})";

/// A connection with the provider's settings.
pub(crate) async fn connect(url: &str) -> Result<Conn, Failure> {
    let opts = OptsBuilder::from_opts(Opts::from_url(url)?).prefer_socket(false).tcp_nodelay(true);
    let opts = opts.setup(vec!["set session transaction isolation level read committed"]);
    Conn::new(opts).await.map_err(|error| root_cause(&error).into())
}

/// The text of the innermost error: the driver's errors repeat their sources.
fn root_cause(error: &dyn std::error::Error) -> String {
    error.source().map_or_else(|| error.to_string(), root_cause)
}

/// The URL of another database on the same server.
pub(crate) fn with_database(url: &str, name: &str) -> Result<String, Failure> {
    let (server, _) = url.rsplit_once('/').ok_or("the URL names no database")?;
    Ok(format!("{server}/{name}"))
}

impl Raw {
    pub(crate) async fn open(server: &str) -> Result<Self, Failure> {
        let name = format!("raw_{:08x}", rand::random::<u32>());
        connect(server).await?.query_drop(format!("create database {name}")).await?;
        let url = with_database(server, &name)?;
        connect(&url).await?.query_drop(TABLE).await?;
        Ok(Self { server: server.to_owned(), url, name })
    }
}

impl RawServer for Raw {
    async fn send_one(&self, messages: usize, size: usize) -> Result<Duration, Failure> {
        let mut senders = Vec::new();
        for _ in 0..SENDERS {
            let mut connection = connect(&self.url).await?;
            let statement = connection.prep(SEND).await?;
            senders.push((connection, statement));
        }
        let mut sending = JoinSet::new();
        let start = Instant::now();
        for (number, (mut connection, statement)) in senders.into_iter().enumerate() {
            let count = messages / SENDERS + usize::from(number < messages % SENDERS);
            sending.spawn(async move {
                let body = vec![b'x'; size];
                for _ in 0..count {
                    connection.exec_drop(&statement, (body.as_slice(),)).await?;
                }
                Ok::<_, Failure>(Instant::now())
            });
        }
        let mut end = start;
        while let Some(sender) = sending.join_next().await {
            end = end.max(sender??);
        }
        Ok(end - start)
    }

    async fn send_batches(&self, messages: usize, batch: usize, size: usize) -> Result<Duration, Failure> {
        let mut connection = connect(&self.url).await?;
        // In a task, because the thread outside the runtime is woken more slowly than its workers.
        let sending = tokio::spawn(async move {
            let body = vec![b'x'; size];
            let insert = |rows: usize| format!("{SEND}{}", ", (utc_timestamp(6), ?)".repeat(rows - 1));
            let statement = connection.prep(insert(batch)).await?;
            let start = Instant::now();
            let mut sent = 0;
            while sent < messages {
                let rows = batch.min(messages - sent);
                let bodies: Vec<Value> = vec![Value::Bytes(body.clone()); rows];
                match rows == batch {
                    true => connection.exec_drop(&statement, bodies).await?,
                    false => connection.exec_drop(insert(rows), bodies).await?,
                }
                sent += rows;
            }
            Ok(start.elapsed())
        });
        sending.await?
    }

    async fn drain(&self, messages: usize, batch: usize) -> Result<Duration, Failure> {
        let mut connection = connect(&self.url).await?;
        let claim = CLAIM.replace("{batch}", &batch.to_string());
        let draining = tokio::spawn(async move {
            let start = Instant::now();
            let mut drained = 0;
            loop {
                let claimed = claim_batch(&mut connection, &claim).await?;
                if claimed.is_empty() {
                    connection.query_drop("commit").await?;
                    break;
                }
                let ids: Vec<String> = claimed.iter().map(|(id, _)| id.to_string()).collect();
                let ids = ids.join(", ");
                connection.query_drop(LEASE.replace("{ids}", &ids)).await?;
                connection.query_drop(DELETE.replace("{ids}", &ids)).await?;
                drained += connection.affected_rows();
            }
            let elapsed = start.elapsed();
            if drained != messages as u64 {
                return Err(format!("the driver drained {drained} of {messages} rows").into());
            }
            Ok(elapsed)
        });
        draining.await?
    }

    async fn remove(self) -> Result<(), Failure> {
        Ok(connect(&self.server).await?.query_drop(format!("drop database {}", self.name)).await?)
    }
}

/// Claims rows. The bodies are read, as a handler would.
async fn claim_batch(connection: &mut Conn, claim: &str) -> Result<Vec<(i64, Vec<u8>)>, Failure> {
    let mut answers = connection.query_iter(claim).await?;
    // The result of `begin`.
    answers.collect::<Row>().await?;
    Ok(answers.collect_and_drop().await?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::Server;

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn sent_rows_are_drained_by_the_index() {
        let raw = Raw::open(&Server::Mysql.url().unwrap()).await.unwrap();
        raw.send_one(20, 10).await.unwrap();
        raw.send_batches(10_050, 100, 200).await.unwrap();
        let mut connection = connect(&raw.url).await.unwrap();
        let (_, claim) = CLAIM.split_once("; ").unwrap();
        let explain = format!("explain {}", claim.replace("{batch}", "100"));
        let plan: Row = connection.query_first(&explain).await.unwrap().unwrap();
        assert_eq!(plan.get::<String, _>("key"), Some("raw_due".to_owned()), "{plan:?}");
        raw.drain(10_070, 100).await.unwrap();
        assert!(raw.drain(1, 100).await.is_err(), "nothing is left");
        raw.remove().await.unwrap();
    }
}
