//! Many concurrent recorded workers that make every call, also with ended leases.
//!
//! Every random choice comes from one seed. On a store in memory and under paused time a seed repeats the whole storm;
//! on a real server it repeats the choices of each worker.

mod worker;

use std::future::pending;

use futures_util::future::LocalBoxFuture;
use postrider_core::{MessagingError, MessagingService, QueueAdmin, QueueName};
use tokio::task::JoinSet;

use crate::checker::{CheckOptions, Network, Verdict, check};
use crate::exercise::Settings;
use crate::harness::{AnyHarness, Harness};
use crate::history::History;
use crate::law::{Outcome, Rule, TestReport};
use crate::probe::soon;
use crate::recorded::Recorded;
use worker::{Plan, drain, receive_and_settle, send};

/// The size of a storm.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StormSettings {
    /// The number of messages; 0 leaves the storm out.
    pub messages: usize,
    /// The number of sending workers.
    pub senders: usize,
    /// The number of receiving workers.
    pub receivers: usize,
}

impl Default for StormSettings {
    fn default() -> Self {
        Self { messages: 2000, senders: 2, receivers: 4 }
    }
}

impl StormSettings {
    /// A storm with few workers, for a store under faults.
    pub fn small(messages: usize) -> Self {
        Self { messages, senders: 2, receivers: 3 }
    }
}

/// The result of a storm.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StormReport {
    /// The seed that repeats it.
    pub seed: u64,
    /// The checker's verdict on its history.
    pub verdict: Verdict,
}

impl StormReport {
    /// Fails with the verdict and the seed if a rule was broken or a message can no longer be received.
    pub fn ensure_clean(&self) -> Result<(), String> {
        let Self { seed, verdict } = self;
        if verdict.is_clean() && verdict.counts.live == 0 { Ok(()) } else { Err(format!("seed {seed}: {verdict}")) }
    }
}

/// The tests that report the checker's findings, by rule.
const TESTS: &[(Rule, &str)] = &[
    (Rule::L1, "l1_storm_loses_and_doubles_nothing"),
    (Rule::L2, "l2_storm_holds_one_lease_at_a_time"),
    (Rule::L3, "l3_storm_obeys_no_dead_token"),
    (Rule::L6, "l6_storm_retries_nothing_early"),
    (Rule::L8, "l8_storm_forgets_no_delivery"),
    (Rule::L10, "l10_storm_keeps_every_dead_letter"),
    (Rule::L11, "l11_storm_keeps_the_order_of_every_key"),
    (Rule::L12, "l12_storm_delivers_nothing_early"),
];

/// The storm's tests of these rules.
pub(crate) fn tests(rules: &[Rule]) -> Vec<(Rule, &'static str)> {
    TESTS.iter().filter(|(rule, _)| rules.contains(rule)).copied().collect()
}

/// Runs a storm and reports it rule by rule.
pub(crate) async fn run(
    harness: &dyn AnyHarness,
    settings: &Settings,
    tests: &[(Rule, &'static str)],
) -> Vec<TestReport> {
    let outcome = if settings.storm.messages == 0 {
        Err(Outcome::NotExercised("the storm was left out".into()))
    } else {
        run_storm(harness, settings, Network::Intact, Box::pin(pending()))
            .await
            .map_err(|error| Outcome::Broken(format!("the storm was cut short: {error}")))
    };
    let of = |rule: Rule| match &outcome {
        Err(outcome) => outcome.clone(),
        Ok(report) => {
            // A finding for a rule without a storm test is reported by the first test.
            let is_reported_here = |number| {
                let named = tests.iter().any(|(rule, _)| rule.number() == number);
                number == rule.number() || (!named && Some(rule) == tests.first().map(|(rule, _)| *rule))
            };
            let stuck = report.verdict.counts.live;
            if rule == Rule::L1 && stuck > 0 {
                let seed = report.seed;
                return Outcome::Broken(format!(
                    "{stuck} messages are in the queue and can no longer be received; repeat it with seed {seed}"
                ));
            }
            let mut found = report.verdict.findings.iter().filter(|finding| is_reported_here(finding.rule));
            match found.next() {
                None => Outcome::Holds,
                Some(first) => Outcome::Broken(format!(
                    "{first} (and {} more; repeat it with seed {})",
                    found.count(),
                    report.seed
                )),
            }
        }
    };
    tests.iter().map(|(rule, name)| TestReport { rule: *rule, name, outcome: of(*rule) }).collect()
}

/// Runs a storm on the store and checks its history.
pub async fn storm<H: Harness>(harness: &H, settings: &Settings) -> Result<StormReport, MessagingError> {
    run_storm(harness, settings, Network::Intact, Box::pin(pending())).await
}

/// Runs a storm while `faults` cut connections, lose answers or stop the server, and checks its history. Every worker
/// keeps its first connection and must finish with it.
///
/// `faults` may run forever: it is dropped when the workers are done, and its drop must end every fault
/// ([`restored_at_end`](crate::proxy::FaultProxy::restored_at_end)).
pub async fn storm_under_faults<H: Harness>(
    harness: &H,
    settings: &Settings,
    faults: impl Future<Output = ()>,
) -> Result<StormReport, MessagingError> {
    run_storm(harness, settings, Network::Faulty, Box::pin(faults)).await
}

fn run_storm<'a>(
    harness: &'a dyn AnyHarness,
    settings: &'a Settings,
    network: Network,
    faults: LocalBoxFuture<'a, ()>,
) -> LocalBoxFuture<'a, Result<StormReport, MessagingError>> {
    Box::pin(run_in(harness, settings, network, faults))
}

async fn run_in(
    harness: &dyn AnyHarness,
    settings: &Settings,
    network: Network,
    faults: LocalBoxFuture<'_, ()>,
) -> Result<StormReport, MessagingError> {
    let history = History::new();
    let queue = QueueName::new(format!("{}_storm", settings.prefix))?;
    let first = harness.open().await?;
    first.ensure_queue(&queue, soon()).await?;
    let capabilities = first.capabilities().clone();
    let plan = Plan::new(settings, network, queue.clone(), capabilities.clone());

    let mut workers = JoinSet::new();
    let StormSettings { messages, senders, receivers } = settings.storm;
    let mut number = 0;
    for sender in 0..senders.max(1) {
        let share = messages / senders.max(1) + usize::from(sender < messages % senders.max(1));
        let provider = Recorded::new(harness.open().await?, history.clone(), number);
        workers.spawn(send(provider, plan.clone(), number, share));
        number += 1;
    }
    for _ in 0..receivers.max(1) {
        let provider = Recorded::new(harness.open().await?, history.clone(), number);
        workers.spawn(receive_and_settle(provider, plan.clone(), number));
        number += 1;
    }
    let working = end_of_all(workers, capabilities.provider());
    tokio::pin!(working);
    let ended = tokio::select! {
        biased;
        ended = &mut working => Some(ended),
        () = faults => None,
    };
    match ended {
        Some(ended) => ended?,
        None => working.await?,
    }
    // The first connection, which went through all the faults, instead of a new one.
    let recorded = Recorded::new(first, history.clone(), number);
    drain(&recorded, &plan).await?;
    recorded.record_final(std::slice::from_ref(&queue), soon()).await?;
    recorded.provider().delete_queue(&queue, soon()).await?;
    recorded.provider().close(soon()).await?;
    let mut options = CheckOptions::for_provider(&capabilities, network);
    options.tolerance += history.lead();
    let verdict = check(&history.events(), &options);
    Ok(StormReport { seed: settings.seed, verdict })
}

async fn end_of_all(
    mut workers: JoinSet<Result<(), MessagingError>>,
    provider: &'static str,
) -> Result<(), MessagingError> {
    while let Some(worker) = workers.join_next().await {
        match worker {
            Ok(result) => result?,
            Err(panic) => {
                return Err(MessagingError::Provider {
                    provider,
                    operation: "keep a worker alive",
                    source: std::sync::Arc::new(panic),
                    retryable: false,
                });
            }
        }
    }
    Ok(())
}
