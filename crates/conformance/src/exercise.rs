//! Runs the law against a store.

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
use crate::probe::{PATIENCE, Probe, Stop, soon};
use crate::rules::{self, Test};
use crate::storm::{self, StormSettings};

/// A test that has not ended by then will not end: no test waits so often with a deadline.
fn test_limit(unit: Duration) -> Duration {
    PATIENCE.max(unit * 10) * 8
}

/// How a run of the suite shall be.
#[derive(Clone)]
pub struct Settings {
    /// Decides every choice of chance; a report names it.
    pub seed: u64,
    /// The rules to try; all of them unless told otherwise.
    pub rules: Vec<Rule>,
    /// How long a lease lasts that a test waits for. Rounded up to the store's smallest unit of time.
    pub unit: Duration,
    /// How many tests run at the same time.
    pub parallel: usize,
    /// How many messages go through in one call at most: more than fit into the parameters of one SQL statement, unless
    /// the store is too slow for that.
    pub rows: usize,
    /// The storm whose history is checked at the end.
    pub storm: StormSettings,
    /// What the names of the suite's queues begin with. They are removed at the end.
    pub prefix: String,
    /// Told of every test that has ended.
    pub observer: Option<Observer>,
}

/// Somebody who is told of every test that has ended: the test, how many have ended, how many there are.
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

/// Tries every rule of the law on a store and reports what each came to.
///
/// Fails only when the store cannot be reached at all; whatever goes wrong later is a rule that is broken.
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
    let tell = |reports: &mut Vec<TestReport>, report: TestReport| {
        if let Some(observer) = &settings.observer {
            observer(&report, reports.len() + 1, total);
        }
        reports.push(report);
    };

    let run = |(index, test)| run(harness, &settings, &capabilities, index, test);
    // Whoever takes the server away runs alone: the others promise nothing about a store that is not there.
    let (alone, together): (Vec<_>, Vec<_>) = tests.iter().enumerate().partition(|(_, test)| test.is_disruptive());
    let mut together = stream::iter(together).map(run).buffer_unordered(settings.parallel.max(1));
    while let Some(report) = together.next().await {
        tell(&mut reports, report);
    }
    drop(together);
    if !storm_tests.is_empty() {
        for report in storm::run(harness, &settings, &storm_tests).await {
            tell(&mut reports, report);
        }
    }
    for test in alone {
        let report = run(test).await;
        tell(&mut reports, report);
    }
    // Tests come back in the order in which they ended; a report has them in the order in which they are written.
    let order = |name| tests.iter().position(|test| test.name == name).unwrap_or(usize::MAX);
    reports.sort_by_key(|report| (report.rule, order(report.name), report.name));
    let left_behind = leave(harness, &settings.prefix).await.err();
    Ok(Report::new(capabilities, settings.seed, reports, left_behind))
}

/// How long a lease must last that a test has to do something under: several round trips, however slow the store is.
async fn fitting_unit(provider: &SharedProvider, unit: Duration) -> Result<Duration, MessagingError> {
    let mut slowest = Duration::ZERO;
    for _ in 0..3 {
        let before = Instant::now();
        provider.health_check(soon()).await?;
        slowest = slowest.max(before.elapsed());
    }
    Ok(unit.max(slowest * 10).max(provider.capabilities().limits.time_resolution))
}

/// Removes what the run may have left, through a connection that no restart has touched.
async fn leave(harness: &dyn AnyHarness, prefix: &str) -> Result<(), MessagingError> {
    let provider = harness.open().await?;
    sweep(&provider, prefix).await?;
    provider.close(soon()).await
}

/// Removes every queue whose name begins with a run's prefix: what the run would remove itself if it came to its end.
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
    // Closed already by some tests, cut off by others; nothing depends on it.
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
