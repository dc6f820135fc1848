//! Alternating runs of the provider and its baseline.

use std::path::Path;

use postrider_bench::{Bench, Load, Measured, Workload, median};
use postrider_core::{Deadline, MemoryStore, Provider};
use postrider_sqlite::{SqliteOptions, SqliteProvider, SqliteStore};
use serde::Serialize;
use tempfile::TempDir;
use tokio::runtime::Runtime;

use crate::Failure;
use crate::args::Args;
use crate::case::Case;
use crate::raw::sqlite::Raw;
use crate::server::{Server, Target, Task};
use crate::spool::{ClaimTime, DurableBaseline};

/// Messages per second of the latency workload on a server.
const SERVER_PACE: usize = 100;

/// One line of the report.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Row {
    #[serde(skip)]
    pub(crate) case: Case,
    #[serde(flatten)]
    pub(crate) measured: Measured,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) callers: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) archive: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) raw_per_second: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) ratio: Option<f64>,
    /// What the baseline does, where it is not obvious.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) baseline: Option<&'static str>,
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub(crate) durable: Option<DurableBaseline>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) claims: Vec<ClaimTime>,
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub(crate) times: Option<Times>,
    /// Duration of the sends, where only the drain is measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) send_seconds: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) peak_megabytes: Option<f64>,
}

impl Row {
    pub(crate) fn new(case: Case, measured: Measured) -> Self {
        Self {
            case,
            measured,
            callers: None,
            archive: None,
            raw_per_second: None,
            ratio: None,
            baseline: None,
            durable: None,
            claims: Vec::new(),
            times: None,
            send_seconds: None,
            peak_megabytes: None,
        }
    }

    /// The reached part of its target; 1 is all of it.
    pub(crate) fn reached(&self) -> Option<f64> {
        match self.case.target()? {
            Target::Rate(least) => Some(self.ratio? / least),
            Target::RateOrSpeed { ratio, per_second } => Some((self.ratio? / ratio).max(speed(self) / per_second)),
            Target::Times { p50, p99 } => {
                let times = self.times.as_ref()?;
                Some((p50 / times.p50_ratio).min(p99 / times.p99_ratio))
            }
        }
    }
}

/// The latency of the baseline, and the ratios to it.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Times {
    pub(crate) raw_p50_ms: f64,
    pub(crate) raw_p99_ms: f64,
    pub(crate) p50_ratio: f64,
    pub(crate) p99_ratio: f64,
}

/// Runs cases on temporary files.
pub(crate) struct Comparison<'a> {
    args: &'a Args,
    runtime: Runtime,
}

impl<'a> Comparison<'a> {
    pub(crate) fn new(args: &'a Args) -> Result<Self, Failure> {
        Ok(Self { args, runtime: runtime()? })
    }

    /// The median run, with the median of the ratios.
    pub(crate) fn median(&self, case: Case) -> Result<Row, Failure> {
        let mut rows = (0..self.args.runs).map(|_| self.once(case)).collect::<Result<Vec<_>, _>>()?;
        let ratios: Vec<f64> = rows.iter().filter_map(|row| row.ratio).collect();
        let raws: Vec<f64> = rows.iter().filter_map(|row| row.raw_per_second).collect();
        let times = median_times(&rows);
        rows.sort_by(|a, b| speed(a).total_cmp(&speed(b)));
        let mut row = rows.swap_remove((rows.len() - 1) / 2);
        row.ratio = median(&ratios);
        row.raw_per_second = median(&raws);
        row.times = times;
        Ok(row)
    }

    /// Runs the baseline, then the provider.
    pub(crate) fn once(&self, case: Case) -> Result<Row, Failure> {
        let load = self.load(case);
        if let Case::On(server, task) = case {
            return self.runtime.block_on(server.compare(task, &load));
        }
        let folder = TempDir::with_prefix_in("postrider-bench-", &self.args.folder)?;
        if let Case::Spool(task) = case {
            return self.runtime.block_on(task.compare(&load, folder.path()));
        }
        if let Case::Http(task) = case {
            return self.runtime.block_on(task.compare(&load, folder.path()));
        }
        if let Case::Tasks(task) = case {
            return self.runtime.block_on(task.compare(&load, folder.path()));
        }
        let raw = match case {
            Case::HandleMemory | Case::HandleSqlite => {
                Some(self.drained(case, &load, &folder.path().join("drained.db"))?)
            }
            _ => raw(case, &load, &folder.path().join("raw.db"))?,
        };
        let path = folder.path().join("postrider.db");
        let measured = self.runtime.block_on(provider(case, case.workload(), load.clone(), &path))?;
        let mut row = Row::new(case, measured);
        match case {
            Case::SendOne | Case::Lone => row.callers = Some(load.callers),
            Case::DrainNone => row.archive = Some("none"),
            Case::DrainAll => row.archive = Some("all"),
            _ => {}
        }
        if let (Measured::Rate(rate), Some(raw)) = (&row.measured, raw) {
            row.ratio = Some(rate.per_second / raw);
            row.raw_per_second = Some(raw);
        }
        Ok(row)
    }

    /// The drain rate of the same provider without a subscriber.
    fn drained(&self, case: Case, load: &Load, path: &Path) -> Result<f64, Failure> {
        match self.runtime.block_on(provider(case, Workload::Drain, load.clone(), path))? {
            Measured::Rate(rate) => Ok(rate.per_second),
            Measured::Latency(_) => Err("a drain has a rate".into()),
        }
    }

    fn load(&self, case: Case) -> Load {
        let load = self.args.load();
        match case {
            Case::Lone => Load { callers: 1, messages: a_tenth(load.messages), ..load },
            // An emulator is about ten times slower than a server.
            Case::On(Server::Sqs, _) => Load { messages: a_tenth(load.messages), ..load },
            // Each message is a file, and a check should be short.
            Case::Spool(task) if self.args.check => task.load(Load { messages: load.messages / 5, ..load }),
            Case::Spool(task) => task.load(load),
            Case::On(_, Task::Latency) => Load { pace: self.args.pace.unwrap_or(SERVER_PACE), ..load },
            _ => load,
        }
    }
}

/// A multi-threaded runtime, as in an application.
pub(crate) fn runtime() -> std::io::Result<Runtime> {
    tokio::runtime::Builder::new_multi_thread().enable_all().build()
}

/// A connection to a new file.
pub(crate) async fn open(path: &Path, case: Case) -> Result<SqliteProvider, Failure> {
    let options = SqliteOptions { archive: case.archive(), ..SqliteOptions::default() };
    Ok(SqliteStore::open(path, options).await?.connect().await?)
}

async fn provider(case: Case, workload: Workload, load: Load, path: &Path) -> Result<Measured, Failure> {
    match case {
        Case::HandleMemory => run(MemoryStore::new().open(), workload, load).await,
        _ => run(open(path, case).await?, workload, load).await,
    }
}

pub(crate) async fn run<P: Provider + Clone>(provider: P, workload: Workload, load: Load) -> Result<Measured, Failure> {
    let bench = Bench::new(provider, load)?;
    // In a task, because the thread outside the runtime is woken more slowly than its workers.
    let (bench, measured) =
        tokio::spawn(async move { (bench.run(workload).await, bench) }).await.map(|(m, b)| (b, m))?;
    let measured = measured?;
    bench.provider().close(Deadline::default()).await?;
    Ok(measured)
}

/// The rate of the driver, in rows per second.
fn raw(case: Case, load: &Load, path: &Path) -> Result<Option<f64>, Failure> {
    let raw = Raw::open(path)?;
    let (rows, elapsed) = match case {
        Case::SendOne => {
            let rows = a_tenth(load.messages);
            (rows, raw.send(rows, 1, load.size)?)
        }
        Case::Lone => (load.messages, raw.send(load.messages, 1, load.size)?),
        Case::SendBatch => (load.messages, raw.send(load.messages, load.batch, load.size)?),
        Case::DrainNone | Case::DrainAll => {
            raw.send(load.messages, load.batch, load.size)?;
            (load.messages, raw.drain(load.messages, load.batch)?)
        }
        Case::HandleMemory
        | Case::HandleSqlite
        | Case::Latency
        | Case::Backlog
        | Case::Spool(_)
        | Case::On(..)
        | Case::Tasks(_)
        | Case::Http(_) => {
            return Ok(None);
        }
    };
    Ok(Some(rows as f64 / elapsed.as_secs_f64()))
}

/// Number of messages for single-row transactions, which are slow.
pub(crate) fn a_tenth(messages: usize) -> usize {
    (messages / 10).max(1)
}

fn median_times(rows: &[Row]) -> Option<Times> {
    let median_of = |value: fn(&Times) -> f64| {
        median(&rows.iter().filter_map(|row| row.times.as_ref().map(value)).collect::<Vec<_>>())
    };
    Some(Times {
        raw_p50_ms: median_of(|times| times.raw_p50_ms)?,
        raw_p99_ms: median_of(|times| times.raw_p99_ms)?,
        p50_ratio: median_of(|times| times.p50_ratio)?,
        p99_ratio: median_of(|times| times.p99_ratio)?,
    })
}

fn speed(row: &Row) -> f64 {
    match &row.measured {
        Measured::Rate(rate) => rate.per_second,
        Measured::Latency(latency) => -latency.p50_ms,
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::http::HttpTask;
    use crate::spool::SpoolTask;

    #[test]
    fn every_case_is_compared_and_the_median_has_the_fields_of_its_row() {
        let args = Args::parse_from(["postrider-bench", "--messages", "200", "--callers", "8", "--pace", "2000"]);
        let comparison = Comparison::new(&args).unwrap();
        // These start the program itself, which is not the test binary.
        let others = [Case::Backlog, Case::Http(HttpTask::Crowd)];
        for case in Case::all().into_iter().filter(|case| !others.contains(case)) {
            let row = comparison.median(case).unwrap();
            let json: serde_json::Value = serde_json::to_value(&row).unwrap();
            assert_eq!(json["workload"], case.workload().name());
            match case {
                Case::On(_, Task::Latency) => assert!(json["p99_ratio"].as_f64() > Some(0.0), "{json}"),
                Case::Spool(SpoolTask::Claim) => assert_eq!(json["claims"][2]["backlog"], 400, "{json}"),
                Case::Latency => assert!(json["p99_ms"].as_f64() > Some(0.0) && json.get("ratio").is_none(), "{json}"),
                _ => assert!(json["ratio"].as_f64() > Some(0.0) && json["raw_per_second"].as_f64() > Some(0.0)),
            }
            match case {
                Case::Lone => assert_eq!((&json["messages"], &json["callers"]), (&20.into(), &1.into())),
                Case::DrainNone => assert_eq!(json["archive"], "none"),
                Case::Spool(SpoolTask::Drain) => {
                    assert_eq!(json["messages"], 400);
                    assert!(json["durable_ratio"].as_f64() > Some(0.0), "{json}");
                }
                _ => {}
            }
        }
    }
}
