//! The command line.

use std::path::PathBuf;

use clap::Parser;
use postrider_bench::Load;

use crate::case::Case;

/// Measure the providers beside their bare drivers
///
/// Every workload is run in turns with the same work written straight on the driver: one table, one index, the same
/// settings (for SQLite write-ahead log and synchronous=FULL), the same folder or server. RATIO is the provider's rate
/// over the driver's, the median of the runs. Rows that cost a transaction each are measured with a tenth of the messages.
#[derive(Debug, Clone, Parser)]
#[command(version, max_term_width = 100, after_help = HELP)]
pub(crate) struct Args {
    /// How many messages a workload has
    #[arg(long, value_name = "N", default_value_t = Load::default().messages, value_parser = at_least_one)]
    pub(crate) messages: usize,

    /// How many bytes a body has
    #[arg(long, value_name = "BYTES", default_value_t = Load::default().size)]
    pub(crate) size: usize,

    /// How many callers send at the same time in 'send-one'
    #[arg(long, value_name = "N", default_value_t = Load::default().callers, value_parser = at_least_one)]
    pub(crate) callers: usize,

    /// How many messages a batch has, sent or leased
    #[arg(long, value_name = "N", default_value_t = Load::default().batch, value_parser = at_least_one)]
    pub(crate) batch: usize,

    /// How many loops lease and acknowledge at the same time
    #[arg(long, value_name = "N", default_value_t = Load::default().workers, value_parser = at_least_one)]
    pub(crate) workers: usize,

    /// How many messages a second 'latency' sends, for five seconds; by default 400 to a file and 100 to a server
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    pub(crate) pace: Option<usize>,

    /// How many messages 'backlog' has
    #[arg(long, value_name = "N", default_value_t = 1_000_000, value_parser = at_least_one)]
    pub(crate) backlog_messages: usize,

    /// How often each workload is run; the median counts
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = at_least_one)]
    pub(crate) runs: usize,

    /// Run only these, for instance 'send-one,lone'
    #[arg(long, value_name = "WORKLOADS", value_delimiter = ',')]
    pub(crate) workload: Vec<Case>,

    /// Where the files are made; by default where temporary files are. On a file system in memory an fsync costs nothing
    #[arg(long, value_name = "FOLDER", default_value_os_t = std::env::temp_dir())]
    pub(crate) folder: PathBuf,

    /// Print one JSON object a line
    #[arg(long)]
    pub(crate) json: bool,

    /// Fail when the best of a few short runs does not reach half of a bar, or a backlog needs too much memory
    #[arg(long)]
    pub(crate) check: bool,

    /// Set by the program itself: the backlog has a process of its own, whose memory is measured
    #[arg(long, hide = true)]
    pub(crate) backlog_in_this_process: bool,

    /// Set by the program itself: a server has a process of its own, whose memory is measured
    #[arg(long, value_name = "FILE", hide = true)]
    pub(crate) serve_in_this_process: Option<PathBuf>,
}

const HELP: &str = "\
Workloads:
  send-one      concurrent callers with one message a call, over one row a transaction on the driver
  lone          the same with one caller
  send-batch    batches, over as many rows a transaction
  drain-none    lease and acknowledge without an archive, over claim and delete in two transactions
  drain-all     the same with everything archived
  handle-memory lease, hand over to a handler that does nothing and acknowledge, through a subscriber in memory,
                over a drain by the provider alone
  handle-sqlite the same on a file
  latency       from a send to its hand-over
  backlog       the memory of a process that sends and drains a long backlog
  spool-send-one, spool-lone
                the same in a folder, over one thread that makes files one by one: write, fsync, rename, fsync of the
                folder
  spool-drain   lease and acknowledge twice as many files, over rename into another folder and unlink, one by one
                and without a wait for the disk; the line below has the same with an fsync of both folders once a batch.
                Both backlogs are on the disk before the clock starts: a file that never got there goes for nothing
  spool-claim   receive and acknowledge one message, in a process that has read the folder: the middle of 200 with a
                backlog of a hundredth, a tenth and all of twice the messages
  postgres-send-one, postgres-send-batch, postgres-drain-none, postgres-drain-all, postgres-latency
                the same on the server that POSTRIDER_POSTGRES_URL names; send-one over single rows by eight
                connections, send-batch over rows by arrays, latency over insert, NOTIFY, LISTEN and claim
  mysql-send-one, mysql-send-batch, mysql-drain-none, mysql-drain-all
                the same on the server that POSTRIDER_MYSQL_URL names; send-batch over an insert of many rows
  pgmq-send-batch, pgmq-drain-none
                the same on the server that POSTRIDER_PGMQ_URL names, over pgmq.send_batch, and over pgmq.read and
                pgmq.delete
  rabbitmq-send-one, rabbitmq-send-batch, rabbitmq-drain-none, rabbitmq-latency
                the same on the broker that POSTRIDER_AMQP_URL names, on quorum queues; send-one over as many callers
                that each wait for a confirm, send-batch over a window of 200 confirms, drain-none over a consumer with
                a prefetch of 200 that acknowledges one by one, latency over a consumer. Batches have 200 messages
  sqs-send-one, sqs-send-batch, sqs-drain-none
                the same, with a tenth of the messages, on the emulator that POSTRIDER_SQS_URL names; send-one over single
                sends by eight senders, the others over calls of ten rows, as many at the same time as a batch has
  tasks-sqlite-polling, tasks-postgres-polling
                tasks that do nothing, made in batches by four callers while a worker runs them, until the last has
                succeeded, over claims and deletions of the driver alone
  tasks-sqlite-queue, tasks-postgres-queue
                the same with their ids sent over queues of the same database, over polling
  http-send     one message a request over as many connections as there are callers, to a server on a file, over as many
                callers of the library
  http-crowd    500 clients that wait for messages and 200 that send 1000 a second together, at once: the time of a send
                and the memory of the server, in a process of its own; every message is received once

In send-one the callers share commits: whatever waits goes into one transaction. The driver beside it commits
each row, as a program does whose handlers each open a transaction. The ratio says what sharing is worth, not
that a row costs less; lone and send-batch compare the same number of commits. In the drains the driver commits
twice a batch, as a program does that claims, works and then deletes; the provider settles one batch in the
transaction that claims the next.

Bars (RATIO, at least): send-one 8, lone 0.77, send-batch 0.6, drain-none 0.5, drain-all 0.38, handle-memory 0.8,
handle-sqlite 0.8, spool-send-one 2, spool-lone 0.8, spool-drain 0.5, postgres-send-one 4,
postgres-send-batch 0.7, postgres-drain-none 0.7, postgres-drain-all 0.55,
mysql-send-one 0.4, mysql-send-batch 0.4, mysql-drain-none 0.4, mysql-drain-all 0.4, pgmq-send-batch 0.7,
pgmq-drain-none 0.7, rabbitmq-send-one 0.8, rabbitmq-send-batch 0.8, rabbitmq-drain-none 0.8, sqs-send-one 0.8,
sqs-send-batch 0.8, sqs-drain-none 0.8, tasks-sqlite-polling 0.2,
tasks-postgres-polling 0.25 or 8000 a second (whichever is less), tasks-postgres-queue 0.5, http-send 0.5;
times (at most, of the driver's): postgres-latency p50 1.5, p99 2, rabbitmq-latency p50 2, p99 3; backlog: less than 100 MB;\nhttp-crowd: p99 below 100 ms, less than 200 MB. --check asks for half of
a ratio or twice the time (a quarter in handle-memory and http-send), once in five runs of 5000 messages at most, so that a busy
machine does not fail it; its backlog has 100000 messages, and a folder a fifth of the messages.

Examples:
  postrider-bench
  postrider-bench --workload drain-none,drain-all --runs 9
  postrider-bench --check
  postrider-bench --json | jq -c '{workload, ratio}'";

impl Args {
    /// What is to be run.
    pub(crate) fn cases(&self) -> Vec<Case> {
        if self.workload.is_empty() { Case::all() } else { self.workload.clone() }
    }

    /// How much is asked of a store.
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
    fn the_help_names_every_workload_with_its_bar() {
        Args::command().debug_assert();
        for case in Case::all() {
            let named = [format!("\n  {case} "), format!(" {case},"), format!(" {case}\n")];
            assert!(named.iter().any(|name| HELP.contains(name)), "{case}");
            if let Some(bar) = case.bar() {
                assert!(HELP.contains(&format!("{case} {bar}")), "{case} {bar}");
            }
        }
    }
}
