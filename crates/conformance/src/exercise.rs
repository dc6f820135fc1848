//! Runs the tests of the law against a store.

use std::fmt;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::LocalBoxFuture;
use futures_util::{FutureExt, StreamExt, stream};
use postrider_core::{Capabilities, Feature, MessagingError, MessagingService, QueueAdmin, SharedProvider, Support};
use tokio::time::Instant;

use crate::harness::{AnyHarness, Harness};
use crate::law::{Outcome, Report, Rule, TestReport};
use crate::probe::{Probe, Stop, TIME_LIMIT, soon};
use crate::rules::{self, Test};
use crate::storm::{self, StormSettings};

/// Time limit of one test: more than all its waits parallel.
fn test_limit(unit: Duration) -> Duration {
    TIME_LIMIT.max(unit * 10) * 8
}

/// Settings of a run of the suite.
#[derive(Clone)]
pub struct Settings {
    /// Seed of all random choices; a report names it.
    pub seed: u64,
    /// The rules to test; by default all.
    pub rules: Vec<Rule>,
    /// Length of a lease whose expiry a test waits for. Rounded up to the store's smallest unit of time.
    pub unit: Duration,
    /// How many tests run at the same time.
    pub parallel: usize,
    /// Number of messages in the largest calls: more than fit into the parameters of one SQL statement. Lower it for a
    /// slow store.
    pub rows: usize,
    /// The storm at the end of the run.
    pub storm: StormSettings,
    /// Prefix of the suite's queues, which are removed at the end.
    pub prefix: String,
    /// Called after every test.
    pub observer: Option<Observer>,
}

/// A callback after every test, with the test, the number of finished tests and the number of all tests.
pub type Observer = Arc<dyn Fn(&TestReport, usize, usize) + Send + Sync>;

impl Default for Settings {
    fn default() -> Self {
        Self {
            seed: rand::random(),
            rules: Rule::ALL.to_vec(),
            unit: Duration::from_millis(200),
            parallel: 8,
            rows: 7000,
            storm: StormSettings::default(),
            prefix: format!("pv{:08x}", rand::random::<u32>()),
            observer: None,
        }
    }
}

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Settings").field("seed", &self.seed).field("rules", &self.rules).finish_non_exhaustive()
    }
}

/// Tests every rule of the law on a store and reports the outcomes.
///
/// Fails only when the store cannot be reached at all; later failures are reported as broken rules.
pub async fn exercise<H: Harness>(harness: H, settings: Settings) -> Result<Report, MessagingError> {
    exercise_any(&harness, settings).await
}

fn exercise_any(harness: &dyn AnyHarness, settings: Settings) -> LocalBoxFuture<'_, Result<Report, MessagingError>> {
    Box::pin(try_rules(harness, settings))
}

async fn try_rules(harness: &dyn AnyHarness, settings: Settings) -> Result<Report, MessagingError> {
    let first = harness.open().await?;
    let settings = Settings { unit: fitting_unit(&first, settings.unit).await?, ..settings };
    let capabilities = first.capabilities().clone();
    let tests: Vec<Test> = rules::all().into_iter().filter(|test| settings.rules.contains(&test.rule)).collect();
    let storm_tests = storm::tests(&settings.rules);
    let total = tests.len() + storm_tests.len();
    let mut reports: Vec<TestReport> = Vec::with_capacity(total);
    let add_report = |reports: &mut Vec<TestReport>, report: TestReport| {
        if let Some(observer) = &settings.observer {
            observer(&report, reports.len() + 1, total);
        }
        reports.push(report);
    };

    let run = |(index, test)| run(harness, &settings, &capabilities, index, test);
    // Tests that take the server away run alone: the others assume a reachable store.
    let (disruptive, parallel): (Vec<_>, Vec<_>) = tests.iter().enumerate().partition(|(_, test)| test.is_disruptive());
    let mut parallel = stream::iter(parallel).map(run).buffer_unordered(settings.parallel.max(1));
    while let Some(report) = parallel.next().await {
        add_report(&mut reports, report);
    }
    drop(parallel);
    if !storm_tests.is_empty() {
        for report in storm::run(harness, &settings, &storm_tests).await {
            add_report(&mut reports, report);
        }
    }
    for test in disruptive {
        let report = run(test).await;
        add_report(&mut reports, report);
    }
    // Tests finish in any order; a report lists them in the order of the code.
    let order = |name| tests.iter().position(|test| test.name == name).unwrap_or(usize::MAX);
    reports.sort_by_key(|report| (report.rule, order(report.name), report.name));
    let left_behind = remove_leftovers(harness, &settings.prefix).await.err();
    Ok(Report::new(capabilities, settings.seed, reports, left_behind))
}

/// Length of a short lease: several round trips to the store.
async fn fitting_unit(provider: &SharedProvider, unit: Duration) -> Result<Duration, MessagingError> {
    let mut slowest = Duration::ZERO;
    for _ in 0..3 {
        let before = Instant::now();
        provider.health_check(soon()).await?;
        slowest = slowest.max(before.elapsed());
    }
    Ok(unit.max(slowest * 10).max(provider.capabilities().limits.time_resolution))
}

/// Removes queues that the run may have left, through a new connection.
async fn remove_leftovers(harness: &dyn AnyHarness, prefix: &str) -> Result<(), MessagingError> {
    let provider = harness.open().await?;
    sweep(&provider, prefix).await?;
    provider.close(soon()).await
}

/// Removes every queue whose name begins with a run's prefix, as a complete run does itself.
pub async fn sweep<A: QueueAdmin>(provider: &A, prefix: &str) -> Result<(), MessagingError> {
    for queue in provider.list_queues(soon()).await? {
        if queue.as_str().strip_prefix(prefix).is_some_and(|rest| rest.starts_with('_')) {
            provider.delete_queue(&queue, soon()).await?;
        }
    }
    Ok(())
}

async fn run(
    harness: &dyn AnyHarness,
    settings: &Settings,
    capabilities: &Capabilities,
    index: usize,
    test: &Test,
) -> TestReport {
    let own = test.rule.feature();
    let outcome = match refusal(capabilities, own.iter().chain(test.needs)) {
        Some(refused) => refused,
        None => {
            let attempt = attempt(harness, settings, index, test);
            let limit = test_limit(settings.unit);
            match tokio::time::timeout(limit, AssertUnwindSafe(attempt).catch_unwind()).await {
                Ok(Ok(outcome)) => outcome,
                Ok(Err(panic)) => Outcome::Broken(format!("a call panicked: {}", panic_text(panic.as_ref()))),
                Err(_) => Outcome::Broken(format!("it did not end within {limit:?}: a call ignores its deadline")),
            }
        }
    };
    TestReport { rule: test.rule, name: test.name, outcome }
}

fn refusal<'a>(capabilities: &Capabilities, needs: impl IntoIterator<Item = &'a Feature>) -> Option<Outcome> {
    needs.into_iter().find_map(|feature| match capabilities.support(*feature) {
        Support::Refused { why } => Some(Outcome::Refused(why.to_string())),
        Support::Native | Support::Emulated { .. } => None,
    })
}

async fn attempt(harness: &dyn AnyHarness, settings: &Settings, index: usize, test: &Test) -> Outcome {
    let provider = match harness.open().await {
        Ok(provider) => provider,
        Err(error) => return Outcome::Broken(format!("no further connection could be opened: {error}")),
    };
    let probe = Probe::new(harness, provider, settings, format!("{}_{index}", settings.prefix));
    let outcome = match (test.run)(&probe).await {
        Ok(()) => Outcome::Holds,
        Err(Stop::Violation(why)) => Outcome::Broken(why),
        Err(Stop::NotExercised(why)) => Outcome::NotExercised(why),
    };
    let cleaned = probe.clean_up().await;
    // Some tests have closed it or cut it off.
    let _ = probe.provider.close(soon()).await;
    match (outcome, cleaned) {
        (Outcome::Holds, Err(error)) => Outcome::Broken(format!("its queues could not be removed: {error}")),
        (outcome, _) => outcome,
    }
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> &str {
    panic
        .downcast_ref::<String>()
        .map(String::as_str)
        .or_else(|| panic.downcast_ref::<&str>().copied())
        .unwrap_or("no text")
}
