//! `postrider verify`

mod outage;
mod table;

use std::io::Write;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use indicatif::ProgressBar;
use postrider::{Deadline, Endpoint, MessagingError, MessagingProvider, QueueAdmin};
use postrider_conformance::{
    Harness, Observer, Outcome, Report, Rule, RuleReport, Settings, StormSettings, exercise, sweep,
};
use serde::Serialize;

use outage::Outage;

use crate::args::Global;
use crate::failure::Failure;
use crate::output::note;
use crate::progress;
use crate::session::NewFile;
use crate::signals::first_signal;
use crate::text;
use crate::values;

/// Check the sixteen rules of the law on a store
///
/// Creates queues whose names begin with 'pv', checks every rule on them, checks the history of a storm of concurrent
/// workers, and removes the queues. Other queues are not touched. Acknowledged messages stay in the archive until its
/// retention ends, unless archive is "none". A file or folder is locked for less than a second, as another program might,
/// to check that nothing is lost. Exits with 1 if a rule is broken.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Verify {
    /// The store [default: that of --url, POSTRIDER_URL or the configuration]
    #[arg(value_name = "URL")]
    store: Option<String>,

    /// Check only these rules, for example 'L3,L11' [default: all]
    #[arg(long, value_name = "RULES", value_delimiter = ',')]
    rules: Vec<Rule>,

    /// Seed of random choices, to repeat a run [default: a random one]
    #[arg(long, value_name = "N", value_parser = values::seed, allow_negative_numbers = true)]
    seed: Option<u64>,

    /// Messages that the storm sends; 0 skips it
    #[arg(long, value_name = "N", default_value = "2000", value_parser = values::storm, allow_negative_numbers = true)]
    messages: usize,
}

const EXAMPLES: &str = "\
Examples:
  postrider verify memory:
  postrider verify memory: --rules L3,L11
  postrider verify memory: --seed 42 --messages 100000
  postrider --json verify memory: | jq -r 'select(.outcome == \"broken\") | .reason'";

/// Time for sends that were running at an interrupt to finish.
const LATE_SENDS: Duration = Duration::from_millis(500);

/// The harness of the store at a URL.
struct VerifiedStore {
    endpoint: Endpoint,
    outage: Option<Outage>,
}

impl Harness for VerifiedStore {
    type Provider = MessagingProvider;

    async fn open(&self) -> Result<MessagingProvider, MessagingError> {
        self.endpoint.connect().await
    }

    fn restart(&self) -> Option<Pin<Box<dyn Future<Output = Result<(), MessagingError>> + Send + '_>>> {
        let outage = self.outage.clone()?;
        Some(Box::pin(outage.run()))
    }
}

pub(crate) async fn run(global: &Global, command: &Verify) -> Result<(), Failure> {
    let config = global.config_for(command.store.as_deref())?;
    let (endpoint, file) = (config.endpoint()?, NewFile::of(&config));
    let mut settings = Settings {
        storm: StormSettings { messages: command.messages, ..StormSettings::default() },
        ..Settings::default()
    };
    if !command.rules.is_empty() {
        settings.rules.clone_from(&command.rules);
    }
    if let Some(seed) = command.seed {
        settings.seed = seed;
    }
    let bar = progress::bar("tests");
    settings.observer = Some(observer(bar.clone()));
    let prefix = settings.prefix.clone();

    let store = VerifiedStore { endpoint: endpoint.clone(), outage: Outage::of(&config) };
    let report = tokio::select! {
        report = exercise(store, settings) => report?,
        () = first_signal() => {
            bar.finish_and_clear();
            sweep_interrupted(&endpoint.connect().await?, &prefix).await?;
            return Err(Failure::failed("interrupted: the rules were not checked; the queues of the run were removed"));
        }
    };
    bar.finish_and_clear();
    file.announce();
    if let Some(why) = &report.left_behind {
        note(format!("queues whose names begin with '{prefix}_' may be left behind: {why}"));
    }
    let mut out = std::io::stdout().lock();
    if global.json {
        for rule in &report.rules {
            serde_json::to_writer(&mut out, &Row::of(&report, rule)).map_err(std::io::Error::from)?;
            writeln!(out)?;
        }
    } else {
        write!(out, "{}", text::lines(&table::render(&endpoint.to_string(), &report)))?;
    }
    out.flush()?;
    conclude(&report)
}

fn conclude(report: &Report) -> Result<(), Failure> {
    if report.is_lawful() {
        return Ok(());
    }
    note(format!("a rule is broken; repeat the run with --seed {}", report.seed));
    Err(Failure::Reported)
}

/// Removes the queues of an interrupted run. Repeats until no queue is left, because a send that was running may create
/// one again.
async fn sweep_interrupted(provider: &MessagingProvider, prefix: &str) -> Result<(), MessagingError> {
    loop {
        sweep(provider, prefix).await?;
        tokio::time::sleep(LATE_SENDS).await;
        let queues = provider.list_queues(Deadline::default()).await?;
        if !queues.iter().any(|queue| queue.as_str().starts_with(prefix)) {
            return Ok(());
        }
    }
}

/// One line of `--json`.
#[derive(Serialize)]
struct Row {
    rule: String,
    name: &'static str,
    outcome: &'static str,
    how: Option<&'static str>,
    reason: Option<String>,
    provider: &'static str,
    seed: u64,
}

impl Row {
    fn of(report: &Report, rule: &RuleReport) -> Self {
        Self {
            provider: report.provider,
            seed: report.seed,
            rule: rule.rule.to_string(),
            name: rule.rule.title(),
            outcome: rule.outcome.as_str(),
            how: rule.how(),
            reason: rule.reason(),
        }
    }
}

fn observer(bar: ProgressBar) -> Observer {
    Arc::new(move |test, done, total| {
        bar.set_length(total as u64);
        bar.set_position(done as u64);
        bar.set_message(test.name);
        if let Outcome::Broken(why) = &test.outcome {
            bar.suspend(|| note(format!("broken: {}: {why}", test.name)));
        }
    })
}
