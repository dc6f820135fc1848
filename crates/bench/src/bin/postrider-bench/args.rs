//! The command line.

use std::path::PathBuf;

use clap::Parser;
use postrider_bench::Load;

use crate::case::Case;

/// Measure the providers against their bare drivers
///
/// Every workload alternates with the same work done directly on the driver: one table, one index, the same settings (for
/// SQLite write-ahead log and synchronous=FULL), the same folder or server. RATIO is the provider's rate divided by the
/// driver's, the median of the runs. Single-row transactions of the driver are measured with a tenth of the messages.
#[derive(Debug, Clone, Parser)]
#[command(version, max_term_width = 100, after_help = HELP)]
pub(crate) struct Args {
    /// Number of messages of a workload
    #[arg(long, value_name = "N", default_value_t = Load::default().messages, value_parser = at_least_one)]
    pub(crate) messages: usize,

    /// Size of a body in bytes
    #[arg(long, value_name = "BYTES", default_value_t = Load::default().size)]
    pub(crate) size: usize,

    /// Number of concurrent callers of 'send-one'
    #[arg(long, value_name = "N", default_value_t = Load::default().callers, value_parser = at_least_one)]
    pub(crate) callers: usize,

    /// Number of messages of a batch, sent or leased
    #[arg(long, value_name = "N", default_value_t = Load::default().batch, value_parser = at_least_one)]
    pub(crate) batch: usize,

    /// Number of concurrent loops that lease and acknowledge
    #[arg(long, value_name = "N", default_value_t = Load::default().workers, value_parser = at_least_one)]
    pub(crate) workers: usize,

    /// Messages per second of 'latency', for five seconds; by default 400 to a file and 100 to a server
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    pub(crate) pace: Option<usize>,

    /// Number of messages of 'backlog'
    #[arg(long, value_name = "N", default_value_t = 1_000_000, value_parser = at_least_one)]
    pub(crate) backlog_messages: usize,

    /// Number of runs of each workload; the median counts
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = at_least_one)]
    pub(crate) runs: usize,

    /// Run only these, for instance 'send-one,lone'
    #[arg(long, value_name = "WORKLOADS", value_delimiter = ',')]
    pub(crate) workload: Vec<Case>,

    /// Folder of the files; by default that for temporary files. On a file system in memory an fsync costs nothing
    #[arg(long, value_name = "FOLDER", default_value_os_t = std::env::temp_dir())]
    pub(crate) folder: PathBuf,

    /// Print one JSON object a line
    #[arg(long)]
    pub(crate) json: bool,

    /// Fail if the best of a few short runs reaches less than half of a target, or a backlog needs too much memory
    #[arg(long)]
    pub(crate) check: bool,

    /// Set by the program itself: runs the backlog, whose memory is measured, in this process
    #[arg(long, hide = true)]
    pub(crate) backlog_in_this_process: bool,

    /// Set by the program itself: runs a server, whose memory is measured, in this process
    #[arg(long, value_name = "FILE", hide = true)]
    pub(crate) serve_in_this_process: Option<PathBuf>,
}

const HELP: &str = "\
Workloads:
  send-one      concurrent callers with one message a call; driver: one row a transaction
  lone          the same with one caller
  send-batch    batches; driver: as many rows a transaction
  drain-none    lease and acknowledge without an archive; driver: claim and delete in two transactions
  drain-all     the same with an archive of all messages
  handle-memory a subscriber with an empty handler, in memory; baseline: a drain without a subscriber
  handle-sqlite the same on a file
  latency       the time from send to receive
  backlog       the memory of a process that sends and drains a long backlog
  spool-send-one, spool-lone
                the same in a folder; baseline: one thread that creates files one by one: write, fsync, rename,
                fsync of the folder
  spool-drain   lease and acknowledge twice as many files; baseline: rename into another folder and unlink, one by
                one without fsync; the line below has the same with an fsync of both folders once a batch. Both
                backlogs are on the disk before the clock starts: removing a file that is not costs nothing
  spool-claim   receive and acknowledge one message, in a process that has read the folder: the median of 200, with
                a backlog of a hundredth, a tenth and all of twice the messages
  postgres-send-one, postgres-send-batch, postgres-drain-none, postgres-drain-all, postgres-latency
                the same on the server of POSTRIDER_POSTGRES_URL; driver: send-one by eight connections with single
                rows, send-batch by arrays of rows, latency by insert, NOTIFY, LISTEN and claim
  mysql-send-one, mysql-send-batch, mysql-drain-none, mysql-drain-all
                the same on the server of POSTRIDER_MYSQL_URL; driver: send-batch by an insert of many rows
  pgmq-send-batch, pgmq-drain-none
                the same on the server of POSTRIDER_PGMQ_URL; driver: pgmq.send_batch, pgmq.read and pgmq.delete
  rabbitmq-send-one, rabbitmq-send-batch, rabbitmq-drain-none, rabbitmq-latency
                the same on quorum queues of the broker of POSTRIDER_AMQP_URL; driver: send-one by as many callers that
                each wait for a confirm, send-batch with a window of 200 confirms, drain-none by a consumer with a
                prefetch of 200 that acknowledges one by one, latency by a consumer. Batches have 200 messages
  sqs-send-one, sqs-send-batch, sqs-drain-none
                the same, with a tenth of the messages, on the emulator of POSTRIDER_SQS_URL; driver: send-one by eight
                senders, the others by concurrent calls of ten rows, as many as a batch needs
  tasks-sqlite-polling, tasks-postgres-polling
                tasks with an empty handler, created in batches by four callers while a worker runs them, until the
                last has succeeded; driver: claims and deletions alone
  tasks-sqlite-queue, tasks-postgres-queue
                the same with delivery by queues of the same database; baseline: polling
  http-send     one message a request, on a connection for each caller, to a server on a file; baseline: as many
                callers of the library
  http-crowd    500 clients that wait for messages and 200 that together send 1000 a second: the time of a send, and the
                memory of the server in a process of its own; every message is received once

In send-one the callers share commits: waiting sends go into one transaction. The driver commits each row, like a
program in which each handler opens a transaction. The ratio shows the gain of shared commits, not the cost of a row;
lone and send-batch compare the same number of commits. In the drains the driver commits twice a batch, like a program
that claims, works and then deletes; the provider settles one batch in the transaction that claims the next.

Targets (RATIO, at least): send-one 8, lone 0.77, send-batch 0.6, drain-none 0.5, drain-all 0.38, handle-memory 0.8,
handle-sqlite 0.8, spool-send-one 2, spool-lone 0.8, spool-drain 0.5, postgres-send-one 4,
postgres-send-batch 0.7, postgres-drain-none 0.7, postgres-drain-all 0.55,
mysql-send-one 0.4, mysql-send-batch 0.4, mysql-drain-none 0.4, mysql-drain-all 0.4, pgmq-send-batch 0.7,
pgmq-drain-none 0.7, rabbitmq-send-one 0.8, rabbitmq-send-batch 0.8, rabbitmq-drain-none 0.8, sqs-send-one 0.8,
sqs-send-batch 0.8, sqs-drain-none 0.8, tasks-sqlite-polling 0.2,
tasks-postgres-polling 0.25 or 8000 a second (whichever is less), tasks-postgres-queue 0.5, http-send 0.5;
times (at most, of the driver's): postgres-latency p50 1.5, p99 2, rabbitmq-latency p50 2, p99 3; backlog: less than 100 MB;
http-crowd: p99 below 100 ms, less than 200 MB. --check requires half of
a ratio or twice the time (a quarter in handle-memory and http-send) in one of up to five runs of 5000 messages, to pass
on a busy machine; its backlog has 100000 messages, and a folder a fifth of the messages.

Examples:
  postrider-bench
  postrider-bench --workload drain-none,drain-all --runs 9
  postrider-bench --check
  postrider-bench --json | jq -c '{workload, ratio}'";

impl Args {
    /// The cases to run.
    pub(crate) fn cases(&self) -> Vec<Case> {
        if self.workload.is_empty() { Case::all() } else { self.workload.clone() }
    }

    /// The load of a workload.
    pub(crate) fn load(&self) -> Load {
        let Self { messages, size, callers, batch, workers, .. } = *self;
        let pace = self.pace.unwrap_or(Load::default().pace);
        Load { messages, size, callers, batch, workers, pace }
    }
}

fn at_least_one(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0) => Err("use at least 1".into()),
        Ok(number) => Ok(number),
        Err(_) => Err("use a number".into()),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_help_names_every_workload_with_its_target() {
        Args::command().debug_assert();
        for case in Case::all() {
            let named = [format!("\n  {case} "), format!(" {case},"), format!(" {case}\n")];
            assert!(named.iter().any(|name| HELP.contains(name)), "{case}");
            if let Some(target) = case.target() {
                assert!(HELP.contains(&format!("{case} {target}")), "{case} {target}");
            }
        }
    }
}
