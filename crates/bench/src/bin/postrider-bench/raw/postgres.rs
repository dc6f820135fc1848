//! PostgreSQL without a queue: a table, a partial index and the statements that a minimal program would write.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use futures_util::stream::poll_fn;
use postrider_postgres::tokio_postgres::{self, AsyncMessage, Client, NoTls, Statement};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use crate::Failure;
use crate::raw::{RawServer, SENDERS, in_a_task};

/// A table in a temporary schema.
pub(crate) struct Raw {
    url: String,
    schema: String,
    client: Arc<Client>,
}

const TABLE: &str = "\
create schema {schema};
create table {schema}.raw (
  id bigint generated always as identity primary key, vis timestamptz not null default now(),
  state smallint not null default 0, payload bytea not null);
create index raw_due on {schema}.raw (vis) where state = 0";

const SEND: &str = "insert into {schema}.raw (payload) values ($1)";

const SEND_BATCH: &str = "insert into {schema}.raw (payload) select unnest($1::bytea[])";

/// The limit is part of the text: with a parameter the planner sorts the whole table.
const CLAIM: &str = "\
with chosen as materialized (
  select ctid as row_id from {schema}.raw where state = 0 and vis <= now() order by vis limit {batch} for update skip locked)
update {schema}.raw r set state = 1, vis = now() + interval '30 s' from chosen where r.ctid = chosen.row_id
returning r.id, r.payload";

const DELETE: &str = "delete from {schema}.raw where id = any ($1::bigint[])";

/// Inserts a row and sends a hint in one transaction.
const SEND_AND_NOTIFY: &str = "\
with sent as (insert into {schema}.raw (payload) values ($1) returning id) select id, pg_notify($2, '') from sent";

impl Raw {
    pub(crate) async fn open(url: &str) -> Result<Self, Failure> {
        let raw = Self {
            url: url.to_owned(),
            schema: format!("raw_{:08x}", rand::random::<u32>()),
            client: Arc::new(connect(url).await?),
        };
        raw.client.batch_execute(&raw.render(TABLE)).await?;
        Ok(raw)
    }

    fn render(&self, statement: &str) -> String {
        statement.replace("{schema}", &self.schema)
    }

    async fn claim_statement(&self, client: &Client, batch: usize) -> Result<Statement, Failure> {
        Ok(client.prepare(&self.render(CLAIM).replace("{batch}", &batch.to_string())).await?)
    }
}

async fn connect(url: &str) -> Result<Client, Failure> {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
    // The connection must be polled for the client to progress.
    tokio::spawn(connection);
    Ok(client)
}

impl RawServer for Raw {
    async fn send_one(&self, messages: usize, size: usize) -> Result<Duration, Failure> {
        let mut senders = Vec::new();
        for _ in 0..SENDERS {
            let client = connect(&self.url).await?;
            let statement = client.prepare(&self.render(SEND)).await?;
            senders.push((client, statement));
        }
        let mut sending = JoinSet::new();
        let start = Instant::now();
        for (number, (client, statement)) in senders.into_iter().enumerate() {
            let count = messages / SENDERS + usize::from(number < messages % SENDERS);
            sending.spawn(async move {
                let body = vec![b'x'; size];
                for _ in 0..count {
                    client.execute(&statement, &[&body]).await?;
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
        let client = self.client.clone();
        let statement = client.prepare(&self.render(SEND_BATCH)).await?;
        in_a_task(async move {
            let body = vec![b'x'; size];
            let start = Instant::now();
            let mut sent = 0;
            while sent < messages {
                let bodies = vec![&body; batch.min(messages - sent)];
                client.execute(&statement, &[&bodies]).await?;
                sent += bodies.len();
            }
            Ok(start.elapsed())
        })
        .await
    }

    async fn drain(&self, messages: usize, batch: usize) -> Result<Duration, Failure> {
        let client = self.client.clone();
        client.batch_execute(&self.render("analyze {schema}.raw")).await?;
        let claim = self.claim_statement(&client, batch).await?;
        let delete = client.prepare(&self.render(DELETE)).await?;
        in_a_task(async move {
            let start = Instant::now();
            let mut drained = 0;
            loop {
                let claimed = client.query(&claim, &[]).await?;
                if claimed.is_empty() {
                    break;
                }
                // The body is read, as a handler would.
                let bodies: Vec<Vec<u8>> = claimed.iter().map(|row| row.get(1)).collect();
                let ids: Vec<i64> = claimed.iter().map(|row| row.get(0)).collect();
                drop(bodies);
                drained += client.execute(&delete, &[&ids]).await?;
            }
            let elapsed = start.elapsed();
            if drained != messages as u64 {
                return Err(format!("the driver drained {drained} of {messages} rows").into());
            }
            Ok(elapsed)
        })
        .await
    }

    async fn latency(&self, messages: usize, pace: usize, size: usize) -> Result<Vec<Duration>, Failure> {
        let (receiver, mut connection) = tokio_postgres::connect(&self.url, NoTls).await?;
        let (hint, mut hints) = mpsc::unbounded_channel();
        // The connection must be polled for the client to progress. The task ends with the client.
        tokio::spawn(async move {
            let mut messages = poll_fn(move |context| connection.poll_message(context));
            while let Some(Ok(message)) = messages.next().await {
                if matches!(message, AsyncMessage::Notification(_)) && hint.send(()).is_err() {
                    return;
                }
            }
        });
        receiver.batch_execute(&format!("listen {}", self.schema)).await?;
        let claim = self.claim_statement(&receiver, messages).await?;
        let delete = receiver.prepare(&self.render(DELETE)).await?;
        let receiving = tokio::spawn(async move {
            let mut received: Vec<(i64, Instant)> = Vec::with_capacity(messages);
            while received.len() < messages {
                hints.recv().await.ok_or("the listening connection has ended")?;
                let rows = receiver.query(&claim, &[]).await?;
                let now = Instant::now();
                let ids: Vec<i64> = rows.iter().map(|row| row.get(0)).collect();
                received.extend(ids.iter().map(|id| (*id, now)));
                if !ids.is_empty() {
                    receiver.execute(&delete, &[&ids]).await?;
                }
            }
            Ok::<_, Failure>(received)
        });
        let statement = self.client.prepare(&self.render(SEND_AND_NOTIFY)).await?;
        let mut ticks = tokio::time::interval(Duration::from_secs(1) / u32::try_from(pace)?);
        let mut sending = JoinSet::new();
        for _ in 0..messages {
            ticks.tick().await;
            let (client, statement, channel) = (self.client.clone(), statement.clone(), self.schema.clone());
            sending.spawn(async move {
                let body = vec![b'x'; size];
                let sent_at = Instant::now();
                let row = client.query_one(&statement, &[&body, &channel]).await?;
                Ok::<_, Failure>((row.get::<_, i64>(0), sent_at))
            });
        }
        let mut sent_at = std::collections::HashMap::new();
        while let Some(sent) = sending.join_next().await {
            let (id, at) = sent??;
            sent_at.insert(id, at);
        }
        let received = receiving.await??;
        received
            .iter()
            .map(|(id, at)| Ok(*at - *sent_at.get(id).ok_or("a row was received that was never sent")?))
            .collect()
    }

    async fn remove(self) -> Result<(), Failure> {
        Ok(self.client.batch_execute(&format!("drop schema {} cascade", self.schema)).await?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::Server;

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn sent_rows_are_drained_by_the_index() {
        let raw = Raw::open(&Server::Postgres.url().unwrap()).await.unwrap();
        raw.send_one(20, 10).await.unwrap();
        raw.send_batches(10_000, 100, 200).await.unwrap();
        raw.client.batch_execute(&raw.render("analyze {schema}.raw")).await.unwrap();
        let explain = format!("explain {}", raw.render(CLAIM).replace("{batch}", "100"));
        let plan = raw.client.query(&explain, &[]).await.unwrap();
        let plan: Vec<String> = plan.iter().map(|row| row.get(0)).collect();
        for step in ["Index Scan using raw_due", "Tid Scan on raw"] {
            assert!(plan.iter().any(|line| line.contains(step)), "{plan:#?}");
        }
        raw.drain(10_020, 100).await.unwrap();
        assert!(raw.drain(1, 100).await.is_err(), "nothing is left");
        assert_eq!(raw.latency(5, 1000, 10).await.unwrap().len(), 5);
        raw.remove().await.unwrap();
    }
}
