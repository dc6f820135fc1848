//! The measured servers and their comparisons.

mod mysql;
mod pgmq;
pub(crate) mod postgres;
mod rabbitmq;

use std::fmt;

use postrider_bench::{Bench, Latency, Load, Measured, Workload};
use postrider_core::{Deadline, Provider};
use postrider_sqs::{SqsOptions, SqsStore};

use crate::Failure;
use crate::case::Case;
use crate::compare::{Row, Times, a_tenth};
use crate::raw::{self, RawServer};

/// A measured server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Server {
    Postgres,
    Mysql,
    Pgmq,
    Rabbitmq,
    Sqs,
}

/// A comparison on a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Task {
    SendOne,
    SendBatch,
    DrainNone,
    DrainAll,
    Latency,
}

/// The target of a comparison.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Target {
    /// Minimum ratio to the driver's rate.
    Rate(f64),
    /// Minimum ratio to the driver's rate, or minimum rate; one of them is enough.
    RateOrSpeed { ratio: f64, per_second: f64 },
    /// Maximum ratios to the driver's times.
    Times { p50: f64, p99: f64 },
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rate(least) => write!(f, "{least}"),
            Self::RateOrSpeed { ratio, per_second } => write!(f, "{ratio} or {per_second} a second"),
            Self::Times { p50, p99 } => write!(f, "p50 {p50}, p99 {p99}"),
        }
    }
}

impl Server {
    pub(crate) const ALL: [Self; 5] = [Self::Postgres, Self::Mysql, Self::Pgmq, Self::Rabbitmq, Self::Sqs];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Postgres => "postgres",
            Self::Mysql => "mysql",
            Self::Pgmq => "pgmq",
            Self::Rabbitmq => "rabbitmq",
            Self::Sqs => "sqs",
        }
    }

    pub(crate) fn target(self, task: Task) -> Target {
        match (self, task) {
            (Self::Postgres, Task::SendOne) => Target::Rate(4.0),
            (Self::Postgres, Task::SendBatch | Task::DrainNone) => Target::Rate(0.7),
            (Self::Postgres, Task::DrainAll) => Target::Rate(0.55),
            (Self::Postgres, Task::Latency) => Target::Times { p50: 1.5, p99: 2.0 },
            (Self::Mysql, _) => Target::Rate(0.4),
            (Self::Pgmq, _) => Target::Rate(0.7),
            (Self::Rabbitmq, Task::Latency) => Target::Times { p50: 2.0, p99: 3.0 },
            (Self::Rabbitmq, _) => Target::Rate(0.8),
            (Self::Sqs, _) => Target::Rate(0.8),
        }
    }

    /// Its comparisons. Without hints between processes latency is only the polling interval, and PGMQ has functions to
    /// compare with for batches only.
    pub(crate) fn tasks(self) -> &'static [Task] {
        match self {
            Self::Postgres => &Task::ALL,
            Self::Mysql => &[Task::SendOne, Task::SendBatch, Task::DrainNone, Task::DrainAll],
            Self::Pgmq => &[Task::SendBatch, Task::DrainNone],
            // A broker has no archive.
            Self::Rabbitmq => &[Task::SendOne, Task::SendBatch, Task::DrainNone, Task::Latency],
            Self::Sqs => &[Task::SendOne, Task::SendBatch, Task::DrainNone],
        }
    }

    /// URL of the server.
    pub(crate) fn url(self) -> Result<String, Failure> {
        let name = self.name();
        let variable = match self {
            Self::Rabbitmq => "POSTRIDER_AMQP_URL".to_owned(),
            _ => format!("POSTRIDER_{}_URL", name.to_uppercase()),
        };
        std::env::var(&variable).map_err(|_| {
            format!(
                "{variable} is not set; start a server with `scripts/services up {name}`, then \
                 `eval \"$(scripts/services env)\"`, or leave its workloads out with --workload"
            )
            .into()
        })
    }

    /// Runs the driver, then the provider.
    pub(crate) async fn compare(self, task: Task, load: &Load) -> Result<Row, Failure> {
        let url = self.url()?;
        match self {
            Self::Postgres => {
                let driver = drive(raw::postgres::Raw::open(&url).await?, task, load).await?;
                let scratch = postgres::ScratchSchema::new(&url, task);
                let providers = (scratch.open().await?, scratch.open().await?);
                let measured = measure(providers, task, load).await;
                scratch.remove().await?;
                Ok(row(self, task, load, measured?, driver))
            }
            Self::Mysql => {
                let driver = drive(raw::mysql::Raw::open(&url).await?, task, load).await?;
                let scratch = mysql::ScratchDatabase::new(&url, task).await?;
                let providers = (scratch.open().await?, scratch.open().await?);
                let measured = measure(providers, task, load).await;
                scratch.remove().await?;
                Ok(row(self, task, load, measured?, driver))
            }
            Self::Sqs => {
                let driver = drive(raw::sqs::Raw::open(&url).await?, task, load).await?;
                let open = async || SqsStore::open(&url, SqsOptions::default()).await?.connect();
                let measured = measure((open().await?, open().await?), task, load).await;
                Ok(row(self, task, load, measured?, driver))
            }
            Self::Pgmq => {
                let raw = raw::pgmq::Raw::open(&url).await?;
                let sent = raw.send_batches(load.messages, load.batch, load.size).await?;
                let is_drain = task == Task::DrainNone;
                let elapsed = if is_drain { raw.drain(load.messages, load.batch).await? } else { sent };
                raw.remove().await?;
                let scratch = pgmq::ScratchSchema::new(&url);
                let providers = (scratch.open().await?, scratch.open().await?);
                let measured = measure(providers, task, load).await;
                scratch.remove().await?;
                let driver = Baseline::PerSecond(load.messages as f64 / elapsed.as_secs_f64());
                Ok(row(self, task, load, measured?, driver))
            }
            Self::Rabbitmq => {
                let driver = drive_rabbitmq(raw::rabbitmq::Raw::open(&url).await?, task, load).await?;
                // As many concurrent messages as the driver has unconfirmed.
                let load = &Load { batch: raw::rabbitmq::WINDOW, ..load.clone() };
                let providers = (rabbitmq::open(&url).await?, rabbitmq::open(&url).await?);
                Ok(row(self, task, load, measure(providers, task, load).await?, driver))
            }
        }
    }
}

impl Task {
    pub(crate) const ALL: [Self; 5] = [Self::SendOne, Self::SendBatch, Self::DrainNone, Self::DrainAll, Self::Latency];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::SendOne => "send-one",
            Self::SendBatch => "send-batch",
            Self::DrainNone => "drain-none",
            Self::DrainAll => "drain-all",
            Self::Latency => "latency",
        }
    }

    pub(crate) fn workload(self) -> Workload {
        match self {
            Self::SendOne => Workload::SendOne,
            Self::SendBatch => Workload::SendBatch,
            Self::DrainNone | Self::DrainAll => Workload::Drain,
            Self::Latency => Workload::Latency,
        }
    }
}

/// Result of the driver.
enum Baseline {
    PerSecond(f64),
    Times(Latency),
}

async fn drive(raw: impl RawServer, task: Task, load: &Load) -> Result<Baseline, Failure> {
    let mut rows = load.messages;
    let elapsed = match task {
        Task::SendOne => {
            rows = a_tenth(rows);
            raw.send_one(rows, load.size).await
        }
        Task::SendBatch => raw.send_batches(rows, load.batch, load.size).await,
        Task::DrainNone | Task::DrainAll => match raw.send_batches(rows, load.batch, load.size).await {
            Ok(_) => raw.drain(rows, load.batch).await,
            Err(error) => Err(error),
        },
        Task::Latency => {
            let times = raw.latency(load.latency_messages(), load.pace, load.size).await;
            raw.remove().await?;
            return Ok(Baseline::Times(Latency::new(times?)));
        }
    };
    raw.remove().await?;
    Ok(Baseline::PerSecond(rows as f64 / elapsed?.as_secs_f64()))
}

/// Runs the driver with the callers and the window of the provider.
async fn drive_rabbitmq(raw: raw::rabbitmq::Raw, task: Task, load: &Load) -> Result<Baseline, Failure> {
    let elapsed = match task {
        Task::SendOne => raw.send_one(load.messages, load.callers, load.size).await,
        Task::SendBatch => raw.send(load.messages, load.size).await,
        Task::DrainNone | Task::DrainAll => match raw.send(load.messages, load.size).await {
            Ok(_) => raw.drain(load.messages).await,
            Err(error) => Err(error),
        },
        Task::Latency => {
            let times = raw.latency(load.latency_messages(), load.pace, load.size).await;
            raw.remove().await?;
            return Ok(Baseline::Times(Latency::new(times?)));
        }
    };
    raw.remove().await?;
    Ok(Baseline::PerSecond(load.messages as f64 / elapsed?.as_secs_f64()))
}

/// Runs the workload on the provider. Latency is measured between two separate connections, as between two processes.
async fn measure<P: Provider + Clone>((provider, other): (P, P), task: Task, load: &Load) -> Result<Measured, Failure> {
    let bench = Bench::new(provider, load.clone())?.received_by(other.clone());
    // In a task, because the thread outside the runtime is woken more slowly than its workers.
    let running = tokio::spawn(async move { (bench.run(task.workload()).await, bench) });
    let (measured, bench) = running.await?;
    other.close(Deadline::default()).await?;
    bench.provider().close(Deadline::default()).await?;
    Ok(measured?)
}

fn row(server: Server, task: Task, load: &Load, measured: Measured, baseline: Baseline) -> Row {
    let mut row = Row::new(Case::On(server, task), measured);
    match task {
        Task::SendOne => row.callers = Some(load.callers),
        Task::DrainNone => row.archive = Some("none"),
        Task::DrainAll => row.archive = Some("all"),
        Task::SendBatch | Task::Latency => {}
    }
    match (&row.measured, baseline) {
        (Measured::Rate(rate), Baseline::PerSecond(raw)) => {
            row.ratio = Some(rate.per_second / raw);
            row.raw_per_second = Some(raw);
        }
        (Measured::Latency(times), Baseline::Times(raw)) => {
            row.times = Some(Times {
                raw_p50_ms: raw.p50_ms,
                raw_p99_ms: raw.p99_ms,
                p50_ratio: times.p50_ms / raw.p50_ms,
                p99_ratio: times.p99_ms / raw.p99_ms,
            });
        }
        _ => {}
    }
    row
}
