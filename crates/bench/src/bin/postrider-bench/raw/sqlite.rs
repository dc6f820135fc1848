//! SQLite without a queue: a table, an index and the statements that a minimal program would write.

use std::path::Path;
use std::time::{Duration, Instant};

use postrider_sqlite::rusqlite::{Connection, params};

use crate::Failure;

/// The provider's settings, including the size of the log before a checkpoint.
const SETTINGS: &str = "pragma journal_mode = wal; pragma synchronous = full; pragma cache_size = -16000; \
                        pragma temp_store = memory; pragma wal_autocheckpoint = 2048";

const TABLE: &str = "\
create table raw (id integer primary key, queue text not null, payload blob not null, state int not null, vis int not null);
create index raw_due on raw (queue, vis) where state = 0";

const SEND: &str = "insert into raw (queue, payload, state, vis) values (?1, ?2, 0, ?3)";

const CLAIM: &str = "\
update raw set state = 1, vis = ?3
where id in (select id from raw where state = 0 and queue = ?1 and vis <= ?2 order by vis limit ?4)
returning id, payload";

const DELETE: &str = "delete from raw where id in (select value from json_each(?1))";

const QUEUE: &str = "orders";

/// Any time of the usual length.
const DUE: i64 = 1_700_000_000_000_000;

pub(crate) struct Raw {
    connection: Connection,
}

impl Raw {
    pub(crate) fn open(path: &Path) -> Result<Self, Failure> {
        let connection = Connection::open(path)?;
        connection.execute_batch(SETTINGS)?;
        connection.execute_batch(TABLE)?;
        Ok(Self { connection })
    }

    /// Sends rows, `batch` in a transaction.
    pub(crate) fn send(&self, messages: usize, batch: usize, size: usize) -> Result<Duration, Failure> {
        let body = vec![b'x'; size];
        let start = Instant::now();
        let mut sent = 0;
        while sent < messages {
            let count = batch.min(messages - sent);
            self.transaction(|| {
                let mut send = self.connection.prepare_cached(SEND)?;
                for _ in 0..count {
                    send.execute(params![QUEUE, body, DUE])?;
                }
                Ok(())
            })?;
            sent += count;
        }
        Ok(start.elapsed())
    }

    /// Claims and deletes until the table is empty, in two transactions a batch: a claim must be durable before the work,
    /// and the deletion follows it.
    pub(crate) fn drain(&self, messages: usize, batch: usize) -> Result<Duration, Failure> {
        let start = Instant::now();
        let mut drained = 0;
        loop {
            let claimed = self.transaction(|| {
                let mut claim = self.connection.prepare_cached(CLAIM)?;
                let rows = claim.query_map(params![QUEUE, DUE + 1, DUE + 30_000_000, batch as i64], |row| {
                    // The body is read, as a handler would.
                    row.get::<_, Vec<u8>>(1)?;
                    row.get::<_, i64>(0)
                })?;
                Ok(rows.collect::<Result<Vec<_>, _>>()?)
            })?;
            if claimed.is_empty() {
                break;
            }
            let ids: Vec<_> = claimed.iter().map(ToString::to_string).collect();
            drained += self.transaction(|| {
                Ok(self.connection.prepare_cached(DELETE)?.execute([format!("[{}]", ids.join(","))])?)
            })?;
        }
        let elapsed = start.elapsed();
        if drained != messages {
            return Err(format!("the driver drained {drained} of {messages} rows").into());
        }
        Ok(elapsed)
    }

    fn transaction<T>(&self, work: impl FnOnce() -> Result<T, Failure>) -> Result<T, Failure> {
        self.connection.prepare_cached("begin immediate")?.execute([])?;
        let result = work()?;
        self.connection.prepare_cached("commit")?.execute([])?;
        Ok(result)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sent_rows_are_drained_by_the_index() {
        let folder = tempfile::tempdir().unwrap();
        let raw = Raw::open(&folder.path().join("raw.db")).unwrap();
        raw.send(250, 100, 10).unwrap();
        let plan = format!("explain query plan {CLAIM}");
        let mut plan = raw.connection.prepare(&plan).unwrap();
        let steps: Vec<String> =
            plan.query_map(params![QUEUE, 0, 0, 1], |row| row.get(3)).unwrap().collect::<Result<_, _>>().unwrap();
        assert!(steps.iter().any(|step| step.contains("raw_due (queue=? AND vis<?)")), "{steps:?}");
        raw.drain(250, 100).unwrap();
        assert!(raw.drain(1, 100).is_err(), "nothing is left");
    }
}
