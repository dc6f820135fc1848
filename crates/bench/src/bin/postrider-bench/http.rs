//! A server, compared with the library in process.

mod client;
mod served;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use postrider_bench::{Latency, Load, Measured, Rate, Workload};
use postrider_sqlite::{SqliteOptions, SqliteStore};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::Failure;
use crate::case::Case;
use crate::compare::{Row, run};
use crate::server::Target;
use client::Connection;
pub(crate) use served::run as serve;
use served::{ServerProcess, serve_locally};

/// Number of clients that wait for messages.
const WAITING: usize = 500;

/// Number of clients that send.
const SENDING: usize = 200;

/// Total messages per second of all sending clients.
const CROWD_PACE: usize = 1000;

/// A comparison over HTTP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HttpTask {
    /// One message a request.
    Send,
    /// Hundreds of concurrent clients.
    Crowd,
}

impl HttpTask {
    pub(crate) const ALL: [Self; 2] = [Self::Send, Self::Crowd];

    /// Upper bound of the 99th percentile of a send with hundreds of clients.
    pub(crate) const MAX_P99_MS: f64 = 100.0;
    /// Memory limit of a server with hundreds of clients.
    pub(crate) const MAX_MEGABYTES: f64 = 200.0;

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Send => "http-send",
            Self::Crowd => "http-crowd",
        }
    }

    pub(crate) fn workload(self) -> Workload {
        match self {
            Self::Send => Workload::SendOne,
            Self::Crowd => Workload::Latency,
        }
    }

    pub(crate) fn target(self) -> Option<Target> {
        match self {
            Self::Send => Some(Target::Rate(0.5)),
            Self::Crowd => None,
        }
    }

    pub(crate) async fn compare(self, load: &Load, folder: &Path) -> Result<Row, Failure> {
        match self {
            Self::Send => send(load, folder).await,
            Self::Crowd => crowd(load, folder).await,
        }
    }
}

/// Callers of the library, then as many connections to a server in this process.
async fn send(load: &Load, folder: &Path) -> Result<Row, Failure> {
    let store = SqliteStore::open(folder.join("library.db"), SqliteOptions::default()).await?;
    let Measured::Rate(library) = run(store.connect().await?, Workload::SendOne, load.clone()).await? else {
        return Err("sends have a rate".into());
    };
    let server = serve_locally(&folder.join("served.db")).await?;
    let mut connections = Vec::with_capacity(load.callers);
    for _ in 0..load.callers {
        connections.push(Connection::open(server.address).await?);
    }
    let body = json!({ "body": "x".repeat(load.size) }).to_string();
    let start = Instant::now();
    let mut callers = JoinSet::new();
    for (caller, mut connection) in connections.into_iter().enumerate() {
        let count = share(load.messages, load.callers, caller);
        let request = connection.prepare("POST", "/v1/queues/bench/messages", &body, 201);
        callers.spawn(async move {
            for _ in 0..count {
                connection.exchange(&request).await?;
            }
            Ok::<_, Failure>(())
        });
    }
    while let Some(caller) = callers.join_next().await {
        caller??;
    }
    let rate = Rate::new(Workload::SendOne, load.messages, start.elapsed());
    let mut connection = Connection::open(server.address).await?;
    let stats = connection.get("/v1/queues/bench").await?;
    if stats["ready"] != json!(load.messages) {
        return Err(format!("{} messages were sent, but the queue has {stats}", load.messages).into());
    }
    server.stop().await?;
    let mut row = Row::new(Case::Http(HttpTask::Send), Measured::Rate(rate.clone()));
    row.callers = Some(load.callers);
    row.raw_per_second = Some(library.per_second);
    row.ratio = Some(rate.per_second / library.per_second);
    row.baseline = Some("as many callers of the library in one process, on a file of its own");
    Ok(row)
}

/// The number of messages of one caller; the first callers take the remainder.
fn share(messages: usize, callers: usize, caller: usize) -> usize {
    messages / callers + usize::from(caller < messages % callers)
}

/// Hundreds of clients that wait and send, and a server in a child process.
async fn crowd(load: &Load, folder: &Path) -> Result<Row, Failure> {
    let child = ServerProcess::start(&folder.join("served.db")).await?;
    let messages = load.messages.clamp(SENDING, CROWD_PACE * 10);
    let (left, received) = (Arc::new(AtomicUsize::new(messages)), Arc::new(tokio::sync::Mutex::new(Vec::new())));
    let mut waiting = JoinSet::new();
    for _ in 0..WAITING {
        let mut connection = Connection::open(child.address).await?;
        let (left, received) = (left.clone(), received.clone());
        waiting.spawn(async move {
            while left.load(Ordering::Relaxed) > 0 {
                let request = json!({ "max": 10, "wait": "2s", "visibility": "1m" });
                let answer = connection.post("/v1/queues/crowd/receive", &request, 200).await?;
                let messages = answer["messages"].as_array().cloned().unwrap_or_default();
                if messages.is_empty() {
                    continue;
                }
                let receipts: Vec<&Value> = messages.iter().map(|message| &message["receipt"]).collect();
                let rows = connection.post("/v1/messages/ack", &json!({ "receipts": receipts }), 200).await?;
                let acked = rows["results"].as_array().into_iter().flatten().filter(|row| row["outcome"] == "done");
                left.fetch_sub(acked.count(), Ordering::Relaxed);
                received.lock().await.extend(messages.iter().map(|message| message["id"].to_string()));
            }
            Ok::<_, Failure>(())
        });
    }
    let mut sending = JoinSet::new();
    let body = json!({ "body": "x".repeat(load.size) });
    let start = tokio::time::Instant::now() + Duration::from_millis(200);
    for sender in 0..SENDING {
        let mut connection = Connection::open(child.address).await?;
        let (count, body) = (share(messages, SENDING, sender), body.clone());
        sending.spawn(async move {
            let (mut times, mut ids) = (Vec::with_capacity(count), Vec::with_capacity(count));
            // At fixed times: a slow answer must not delay the next request.
            let step = Duration::from_secs_f64(SENDING as f64 / CROWD_PACE as f64);
            let first = start + step.mul_f64(sender as f64 / SENDING as f64);
            for number in 0..count {
                let due = first + step * u32::try_from(number)?;
                tokio::time::sleep_until(due).await;
                let sent = connection.post("/v1/queues/crowd/messages", &body, 201).await?;
                times.push(due.elapsed());
                ids.push(sent["id"].to_string());
            }
            Ok::<_, Failure>((times, ids))
        });
    }
    let (mut times, mut ids) = (Vec::with_capacity(messages), Vec::with_capacity(messages));
    while let Some(sender) = sending.join_next().await {
        let (took, sent) = sender??;
        times.extend(took);
        ids.extend(sent);
    }
    while let Some(waiter) = waiting.join_next().await {
        waiter??;
    }
    let mut received = std::mem::take(&mut *received.lock().await);
    ids.sort_unstable();
    received.sort_unstable();
    if ids != received {
        return Err(format!("the {} sent and {} received messages differ", ids.len(), received.len()).into());
    }
    let peak = child.stop().await?;
    let mut row = Row::new(Case::Http(HttpTask::Crowd), Measured::Latency(Latency::new(times)));
    row.callers = Some(SENDING);
    row.peak_megabytes = Some(peak);
    Ok(row)
}
