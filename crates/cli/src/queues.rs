//! `postrider queues`, `stats`, `pause`, `resume`

mod manage;

use std::time::Duration;

use clap::Subcommand;
use postrider::config::nearest;
use postrider::{Deadline, Measured, QueueAdmin, QueueName, QueueStats};
use serde::Serialize;

use crate::args::Global;
use crate::failure::Failure;
use crate::output::note;
use crate::session::Session;
use crate::table::{Column, Table};
use crate::text;
use crate::values;

/// List, create or delete queues
///
/// Without a subcommand, lists the queues.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Queues {
    #[command(subcommand)]
    command: Option<Command>,
}

const EXAMPLES: &str = "\
Examples:
  postrider queues
  postrider queues create orders mails
  postrider queues delete orders";

#[derive(Debug, Subcommand)]
enum Command {
    Create(manage::Create),
    Delete(manage::Delete),
}

/// Count the messages of a queue or of all queues
///
/// '~' marks an approximate number and '?' an unknown one. In JSON, 'approximate' lists the approximate fields and unknown
/// numbers are null.
#[derive(Debug, clap::Args)]
pub(crate) struct Stats {
    /// The queue [default: all queues]
    #[arg(value_parser = values::readable_queue)]
    queue: Option<QueueName>,
}

/// Pause receives from a queue; sends and settlements continue
#[derive(Debug, clap::Args)]
pub(crate) struct Pause {
    /// The queue
    #[arg(value_parser = values::readable_queue)]
    queue: QueueName,
}

/// Resume receives from a paused queue
#[derive(Debug, clap::Args)]
pub(crate) struct Resume {
    /// The queue
    #[arg(value_parser = values::readable_queue)]
    queue: QueueName,
}

#[derive(Serialize)]
struct Named<'a> {
    queue: &'a QueueName,
}

#[derive(Serialize)]
struct Paused<'a> {
    queue: &'a QueueName,
    paused: bool,
}

/// One line of `stats --json`.
#[derive(Serialize)]
struct Row<'a> {
    queue: &'a QueueName,
    ready: Option<u64>,
    in_flight: Option<u64>,
    delayed: Option<u64>,
    dead: Option<u64>,
    oldest_age_seconds: Option<f64>,
    paused: bool,
    approximate: Vec<&'static str>,
}

impl<'a> Row<'a> {
    fn of(stats: &'a QueueStats) -> Self {
        let mut approximate = Vec::new();
        for (name, count) in counts(stats) {
            if matches!(count, Measured::Approximate(_)) {
                approximate.push(name);
            }
        }
        if matches!(stats.oldest_age, Measured::Approximate(_)) {
            approximate.push("oldest_age_seconds");
        }
        Self {
            queue: &stats.queue,
            ready: stats.ready.value(),
            in_flight: stats.in_flight.value(),
            delayed: stats.delayed.value(),
            dead: stats.dead.value(),
            oldest_age_seconds: stats.oldest_age.value().flatten().map(|age| age.as_secs_f64()),
            paused: stats.paused,
            approximate,
        }
    }
}

fn counts(stats: &QueueStats) -> [(&'static str, Measured<u64>); 4] {
    [("ready", stats.ready), ("in_flight", stats.in_flight), ("delayed", stats.delayed), ("dead", stats.dead)]
}

pub(crate) async fn run(global: &Global, command: Queues) -> Result<(), Failure> {
    match command.command {
        None => list(global).await,
        Some(Command::Create(command)) => manage::create(global, command).await,
        Some(Command::Delete(command)) => manage::delete(global, command).await,
    }
}

async fn list(global: &Global) -> Result<(), Failure> {
    let session = global.connect().await?;
    let queues = session.provider.list_queues(Deadline::default()).await?;
    session.out.rows(queues.iter().map(|queue| (Named { queue }, queue)))?;
    session.close().await
}

pub(crate) async fn stats(global: &Global, command: Stats) -> Result<(), Failure> {
    let session = global.connect().await?;
    let queues = match command.queue {
        Some(queue) => {
            must_exist(&session, &queue).await?;
            vec![queue]
        }
        None => session.provider.list_queues(Deadline::default()).await?,
    };
    let mut all = Vec::with_capacity(queues.len());
    for queue in &queues {
        all.push(session.provider.queue_stats(queue, Deadline::default()).await?);
    }
    if session.out.is_json() {
        session.out.rows(all.iter().map(|stats| (Row::of(stats), "")))?;
    } else {
        session.out.text(&table(&all))?;
    }
    session.close().await
}

fn table(all: &[QueueStats]) -> String {
    let mut table = Table::new([
        Column::Text("QUEUE"),
        Column::Number("READY"),
        Column::Number("IN FLIGHT"),
        Column::Number("DELAYED"),
        Column::Number("DEAD"),
        Column::Number("OLDEST"),
        Column::Text(""),
    ]);
    for stats in all {
        let [ready, in_flight, delayed, dead] = counts(stats).map(|(_, count)| shown(count, |count| count.to_string()));
        let oldest = shown(stats.oldest_age, |age: Option<Duration>| age.map_or_else(|| "-".into(), text::age));
        let paused = if stats.paused { "paused" } else { "" };
        table.push([stats.queue.to_string(), ready, in_flight, delayed, dead, oldest, paused.into()]);
    }
    table.render()
}

fn shown<T: Copy>(measured: Measured<T>, show: impl Fn(T) -> String) -> String {
    match measured {
        Measured::Exact(value) => show(value),
        Measured::Approximate(value) => format!("~{}", show(value)),
        Measured::Unknown => "?".into(),
    }
}

pub(crate) async fn pause(global: &Global, command: Pause) -> Result<(), Failure> {
    let session = global.connect().await?;
    let queue = &command.queue;
    must_exist(&session, queue).await?;
    session.provider.pause(queue, Deadline::default()).await?;
    session.out.row(&Paused { queue, paused: true }, format_args!("{queue} is paused"))?;
    session.close().await
}

pub(crate) async fn resume(global: &Global, command: Resume) -> Result<(), Failure> {
    let session = global.connect().await?;
    let queue = &command.queue;
    // An application may pause a queue before it exists.
    if !session.provider.queue_stats(queue, Deadline::default()).await?.paused {
        must_exist(&session, queue).await?;
    }
    session.provider.resume(queue, Deadline::default()).await?;
    session.out.row(&Paused { queue, paused: false }, format_args!("{queue} is not paused"))?;
    session.close().await
}

pub(crate) async fn is_missing(session: &Session, queue: &QueueName) -> Result<bool, Failure> {
    let report = session.provider.verify_queues(&[queue.origin()], Deadline::default()).await?;
    Ok(!report.missing.is_empty())
}

/// Fails if the queue does not exist.
pub(crate) async fn must_exist(session: &Session, queue: &QueueName) -> Result<(), Failure> {
    if !is_missing(session, queue).await? {
        return Ok(());
    }
    let queue = queue.origin();
    Err(Failure::failed(format!("there is no queue '{queue}'; {}", hint_for_missing(session, &queue).await)))
}

/// The next step for a queue that does not exist.
pub(crate) async fn hint_for_missing(session: &Session, queue: &QueueName) -> String {
    // Without the right to list queues there is nothing to suggest.
    let queues = session.provider.list_queues(Deadline::default()).await.unwrap_or_default();
    match nearest(queue.as_str(), queues.iter().map(QueueName::as_str)) {
        Some(meant) => format!("did you mean '{meant}'?"),
        None => "'postrider queues' lists the queues".to_owned(),
    }
}

/// Notes why a receive returns nothing, if the queue is missing or paused. A missing queue is no failure: a receiver may
/// start before the first sender.
pub(crate) async fn note_if_unreceivable(session: &Session, queue: &QueueName) -> Result<(), Failure> {
    if is_missing(session, queue).await? {
        let queue = queue.origin();
        note(format!("there is no queue '{queue}' yet; {}", hint_for_missing(session, &queue).await));
    } else if session.provider.queue_stats(queue, Deadline::default()).await?.paused {
        note(format!("queue '{queue}' is paused; 'postrider resume {queue}' resumes it"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn approximate_and_unknown_numbers_are_marked() {
        let stats = QueueStats {
            queue: QueueName::new("orders").unwrap(),
            ready: Measured::Approximate(12),
            in_flight: Measured::Unknown,
            delayed: Measured::Exact(0),
            dead: Measured::Exact(3),
            oldest_age: Measured::Approximate(Some(Duration::from_secs(90))),
            paused: true,
        };
        let row = serde_json::to_value(Row::of(&stats)).unwrap();
        assert_eq!(row["approximate"], serde_json::json!(["ready", "oldest_age_seconds"]));
        assert_eq!((&row["ready"], &row["in_flight"]), (&serde_json::json!(12), &serde_json::Value::Null));
        let table = table(&[stats]);
        let line: Vec<_> = table.lines().nth(1).unwrap().split_whitespace().collect();
        assert_eq!(line, ["orders", "~12", "?", "0", "3", "~1m", "paused"]);
    }
}
