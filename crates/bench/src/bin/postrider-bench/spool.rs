//! A folder of queues, compared with bare file system calls.

use std::path::Path;
use std::time::Instant;

use postrider_bench::{Latency, Load, Measured, Workload};
use postrider_core::{Deadline, Message, MessagingService, QueueAdmin, QueueName, ReceiveOptions};
use postrider_spool::{SpoolOptions, SpoolProvider, SpoolStore};
use serde::Serialize;

use crate::Failure;
use crate::case::Case;
use crate::compare::{Row, a_tenth, run};
use crate::raw::spool::{Durable, Raw};
use crate::server::Target;

/// Number of timed claims for each backlog.
const CLAIMS: usize = 200;

/// A comparison on a folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SpoolTask {
    SendOne,
    Lone,
    Drain,
    Claim,
}

/// Time of a claim with a backlog.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct ClaimTime {
    pub(crate) backlog: usize,
    pub(crate) p50_ms: f64,
}

/// The rate of a baseline with fsync, and the ratio to it.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct DurableBaseline {
    pub(crate) durable_raw_per_second: f64,
    pub(crate) durable_ratio: f64,
}

impl SpoolTask {
    pub(crate) const ALL: [Self; 4] = [Self::SendOne, Self::Lone, Self::Drain, Self::Claim];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::SendOne => "spool-send-one",
            Self::Lone => "spool-lone",
            Self::Drain => "spool-drain",
            Self::Claim => "spool-claim",
        }
    }

    pub(crate) fn workload(self) -> Workload {
        match self {
            Self::SendOne | Self::Lone => Workload::SendOne,
            Self::Drain => Workload::Drain,
            Self::Claim => Workload::Latency,
        }
    }

    pub(crate) fn target(self) -> Option<Target> {
        match self {
            Self::SendOne => Some(Target::Rate(2.0)),
            Self::Lone => Some(Target::Rate(0.8)),
            Self::Drain => Some(Target::Rate(0.5)),
            Self::Claim => None,
        }
    }

    /// Description of its baseline.
    pub(crate) fn baseline(self) -> Option<&'static str> {
        match self {
            Self::SendOne | Self::Lone => {
                Some("one thread, a file at a time: write, fsync, rename into the folder, fsync of the folder")
            }
            Self::Drain => Some(
                "one thread, a file at a time, of a backlog on the disk: rename into another folder, unlink, no fsync",
            ),
            Self::Claim => None,
        }
    }

    pub(crate) fn load(self, load: Load) -> Load {
        match self {
            Self::SendOne => load,
            Self::Lone => Load { callers: 1, messages: a_tenth(load.messages), ..load },
            // A long backlog shows the cost of a large folder.
            Self::Drain | Self::Claim => Load { messages: load.messages * 2, ..load },
        }
    }

    /// Runs the file system calls, then the provider.
    pub(crate) async fn compare(self, load: &Load, folder: &Path) -> Result<Row, Failure> {
        let path = folder.join("postrider");
        if self == Self::Claim {
            return claim(&path, load).await;
        }
        let (raw, durable) = tokio::task::block_in_place(|| self.raw(load, folder))?;
        let measured = run(open(&path).await?, self.workload(), load.clone()).await?;
        let mut row = Row::new(Case::Spool(self), measured);
        if let Measured::Rate(rate) = &row.measured {
            row.ratio = Some(rate.per_second / raw);
            row.raw_per_second = Some(raw);
            row.durable = durable.map(|durable| DurableBaseline {
                durable_raw_per_second: durable,
                durable_ratio: rate.per_second / durable,
            });
        }
        row.callers = matches!(self, Self::SendOne | Self::Lone).then_some(load.callers);
        row.baseline = self.baseline();
        Ok(row)
    }

    /// The rate of the file system in files per second; for a drain also with an fsync once a batch.
    fn raw(self, load: &Load, folder: &Path) -> Result<(f64, Option<f64>), Failure> {
        let raw = Raw::open(&folder.join("raw"))?;
        let per_second = |files: usize, elapsed: std::time::Duration| files as f64 / elapsed.as_secs_f64();
        let files = load.messages;
        match self {
            Self::SendOne => Ok((per_second(a_tenth(files), raw.send(a_tenth(files), load.size)?), None)),
            Self::Lone => Ok((per_second(files, raw.send(files, load.size)?), None)),
            Self::Drain | Self::Claim => {
                let drain = |durable| {
                    raw.fill(files, load.size)?;
                    Ok::<_, Failure>(per_second(files, raw.drain(files, durable)?))
                };
                Ok((drain(Durable::Never)?, Some(drain(Durable::Every(load.batch))?)))
            }
        }
    }
}

async fn open(path: &Path) -> Result<SpoolProvider, Failure> {
    Ok(SpoolStore::open(path, SpoolOptions::default()).await?.connect()?)
}

/// Times receiving and acknowledging one message with a backlog of a hundredth, a tenth and all of the messages, by a
/// connection that has read the folder and did not send them.
async fn claim(path: &Path, load: &Load) -> Result<Row, Failure> {
    let (sender, receiver) = (open(path).await?, open(path).await?);
    let (load, queue) = (load.clone(), QueueName::new("claimed")?);
    // In a task, because the thread outside the runtime is woken more slowly than its workers.
    let measured = tokio::spawn(async move {
        let mut claims = Vec::new();
        let mut waiting = 0;
        let mut times = Vec::new();
        for share in [100, 10, 1] {
            let backlog = (load.messages / share).max(1);
            while waiting < backlog + CLAIMS {
                let count = 1000.min(backlog + CLAIMS - waiting);
                let messages = (0..count).map(|_| Message::new(vec![b'x'; load.size])).collect();
                for row in sender.send_batch(&queue, messages, Deadline::default()).await? {
                    row?;
                }
                waiting += count;
            }
            // The first call reads the changes of the folder.
            receiver.queue_stats(&queue, Deadline::default()).await?;
            times.clear();
            for _ in 0..CLAIMS {
                let start = Instant::now();
                let received =
                    receiver.receive_messages(&queue, &ReceiveOptions::batch(1), Deadline::default()).await?;
                for message in received {
                    receiver.ack_message(&queue, message, Deadline::default()).await?;
                    waiting -= 1;
                }
                times.push(start.elapsed());
            }
            if waiting != backlog {
                return Err(format!("{waiting} messages are left instead of {backlog}").into());
            }
            claims.push(ClaimTime { backlog, p50_ms: Latency::new(times.clone()).p50_ms });
        }
        for provider in [sender, receiver] {
            provider.close(Deadline::default()).await?;
        }
        Ok::<_, Failure>((claims, Latency::new(times)))
    });
    let (claims, all) = measured.await??;
    let mut row = Row::new(Case::Spool(SpoolTask::Claim), Measured::Latency(all));
    row.claims = claims;
    Ok(row)
}
