//! `postrider bench`

use postrider::config::ProviderKind;
use postrider::{Config, Deadline, Endpoint, MessagingError, MessagingProvider, MessagingService};
use postrider_bench::{BenchError, Load, Workload};

use crate::args::Global;
use crate::failure::Failure;
use crate::output::{Output, note};
use crate::progress;
use crate::session::NewFile;
use crate::signals::first_signal;
use crate::values;

/// The configuration keys that `--archive` sets.
const ARCHIVE_KEYS: [&str; 4] = [
    "common.messaging.sqlite.archive",
    "common.messaging.postgres.archive",
    "common.messaging.mysql.archive",
    "common.messaging.pgmq.archive",
];

/// Measure a store
///
/// Sends messages to new queues whose names begin with 'pb', receives them, checks that none is lost or duplicated, and
/// removes the queues. Other queues are not touched. Archived messages stay in the store's archive until its retention
/// ends. Exits with 1 if a message is lost or duplicated.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Bench {
    /// The store [default: that of --url, POSTRIDER_URL or the configuration]
    #[arg(value_name = "URL")]
    store: Option<String>,

    /// Messages of a workload
    #[arg(long, value_name = "N", default_value_t = Load::default().messages, value_parser = values::count, allow_negative_numbers = true)]
    messages: usize,

    /// Size of a message body, in bytes
    #[arg(long, value_name = "BYTES", default_value_t = Load::default().size)]
    size: usize,

    /// Concurrent senders in 'send-one'
    #[arg(long, value_name = "N", default_value_t = Load::default().callers, value_parser = values::count, allow_negative_numbers = true)]
    callers: usize,

    /// Messages of a batch, sent or leased
    #[arg(long, value_name = "N", default_value_t = Load::default().batch, value_parser = values::count, allow_negative_numbers = true)]
    batch: usize,

    /// Concurrent loops that lease and acknowledge
    #[arg(long, value_name = "N", default_value_t = Load::default().workers, value_parser = values::count, allow_negative_numbers = true)]
    workers: usize,

    /// Messages that 'latency' sends per second, for at most five seconds
    #[arg(long, value_name = "N", default_value_t = Load::default().pace, value_parser = values::count, allow_negative_numbers = true)]
    pace: usize,

    /// Which messages the store archives [default: the configured policy, or all]
    #[arg(long, value_name = "POLICY", value_parser = ["none", "failed", "all"])]
    archive: Option<String>,

    /// Run only these workloads, for example 'send-one,drain' [default: all]
    #[arg(long, value_name = "WORKLOADS", value_delimiter = ',')]
    workload: Vec<Workload>,
}

const EXAMPLES: &str = "\
Workloads:
  send-one      concurrent callers that send one message per call
  send-batch    one caller that sends batches
  drain         lease and acknowledge, without any work
  handle        the same through a subscriber, with an empty handler
  latency       the time from a send to its receive, at a steady rate

Examples:
  postrider bench memory:
  postrider bench sqlite:/tmp/try.db --archive none
  postrider bench sqlite:/tmp/try.db --workload send-one --callers 1 --messages 2000
  postrider --json bench memory: | jq -c '{workload, per_second}'";

pub(crate) async fn run(global: &Global, command: &Bench) -> Result<(), Failure> {
    let config = configuration(global, command)?;
    let endpoint = config.endpoint()?;
    let file = NewFile::of(&config);
    let provider = endpoint.connect().await?;
    file.announce();
    let bench = postrider_bench::Bench::new(provider, command.load())?;
    let workloads = if command.workload.is_empty() { Workload::ALL.to_vec() } else { command.workload.clone() };

    let bar = progress::bar("messages");
    bar.set_length(workloads.iter().map(|workload| bench.steps(*workload) as u64).sum());
    let shown = bar.clone();
    let bench = bench.on_progress(move |messages| shown.inc(messages as u64));

    let out = Output::new(global.json);
    let measure = async {
        for workload in workloads {
            bar.set_message(workload.name());
            let measured = bench.run(workload).await?;
            bar.suspend(|| out.row(&measured, &measured))?;
        }
        Ok::<_, Failure>(())
    };
    let measured = tokio::select! {
        result = measure => Some(result),
        () = first_signal() => None,
    };
    bar.finish_and_clear();
    let clean = match &measured {
        Some(Ok(())) => Ok(()),
        Some(Err(_)) | None => clean_up(&endpoint, &bench).await,
    };
    let result = measured.unwrap_or_else(|| {
        let removed = if clean.is_ok() { "; the queues of the run were removed" } else { "" };
        Err(Failure::failed(format!("interrupted{removed}")))
    });
    if let Err(why) = clean {
        note(format_args!("queues whose names begin with '{}' may have been left behind: {why}", bench.prefix()));
    }
    // A failed close does not hide the failure of the run.
    let closed = bench.provider().close(Deadline::default()).await;
    result.and(closed.map_err(Failure::from))
}

async fn clean_up(
    endpoint: &Endpoint,
    bench: &postrider_bench::Bench<MessagingProvider>,
) -> Result<(), MessagingError> {
    let another = endpoint.connect().await?;
    bench.clean_up(&another).await?;
    another.close(Deadline::default()).await
}

impl Bench {
    fn load(&self) -> Load {
        let Self { messages, size, callers, batch, workers, pace, .. } = *self;
        Load { messages, size, callers, batch, workers, pace }
    }
}

impl From<BenchError> for Failure {
    fn from(error: BenchError) -> Self {
        match error {
            BenchError::Store(error) => error.into(),
            BenchError::Mismatch(_) | BenchError::EndedEarly(_) => Self::failed(error.to_string()),
        }
    }
}

fn configuration(global: &Global, command: &Bench) -> Result<Config, Failure> {
    let mut sources = global.sources_for(command.store.as_deref())?;
    if let Some(archive) = &command.archive {
        for key in ARCHIVE_KEYS {
            sources = sources.flag("--archive", key, archive);
        }
    }
    let config = Config::load(&sources)?;
    if command.archive.is_some()
        && !matches!(
            config.provider(),
            Some(ProviderKind::Sqlite | ProviderKind::Postgres | ProviderKind::Mysql | ProviderKind::Pgmq)
        )
    {
        return Err(Failure::usage(format!("'{}' has no archive; omit --archive", config.url())));
    }
    Ok(config)
}
