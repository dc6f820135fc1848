//! Checks of the queues of a store, with fixes.

use std::time::Duration;

use postrider_core::duration_text::show;
use postrider_core::{Deadline, Finding, Measured, MessagingError, QueueAdmin, QueueStats, Severity};

use crate::messaging_provider::MessagingProvider;

/// Age of a ready message from which a missing worker is reported.
const LONG_READY: Duration = Duration::from_secs(300);

/// Upper bound of queues that are checked.
const MOST_QUEUES: usize = 500;

/// Whether a store with these findings can be used.
pub(crate) fn is_usable(findings: &[Finding]) -> bool {
    let is_fatal = |finding: &Finding| match finding.check {
        "connection" | "schema" | "rights" => finding.severity == Severity::Problem,
        // A broker lists its queues only by the management interface.
        "management" => finding.severity != Severity::Fine,
        _ => false,
    };
    !findings.iter().any(is_fatal)
}

/// Checks the queues: messages without a worker, dead letters, pauses.
pub(crate) async fn queues(provider: &MessagingProvider, deadline: Deadline) -> Vec<Finding> {
    match check_queues(provider, deadline).await {
        Ok(findings) => findings,
        Err(error) => {
            let fix = "fix the error; a table or a function of the schema may be missing";
            vec![Finding::new("queues", Severity::Problem, error.to_string(), fix)]
        }
    }
}

async fn check_queues(provider: &MessagingProvider, deadline: Deadline) -> Result<Vec<Finding>, MessagingError> {
    let queues = provider.list_queues(deadline).await?;
    let (mut findings, mut oldest, mut ready) = (Vec::new(), None, Some(0));
    for queue in queues.iter().take(MOST_QUEUES) {
        let stats = provider.queue_stats(queue, deadline).await?;
        oldest = oldest.max(ready_for(&stats));
        ready = ready.zip(stats.ready.value()).map(|(all, these)| all + these);
        findings.extend(check_queue(&stats));
    }
    let more = queues.len().saturating_sub(MOST_QUEUES);
    let unseen = if more > 0 { format!("; {more} more were not checked") } else { String::new() };
    let waits = match (oldest, ready) {
        (Some(age), _) => format!("the oldest ready message has waited for {}", show(whole_seconds(age))),
        (None, Some(0)) => "no message is ready".to_owned(),
        // Not every store reports the age.
        (None, Some(ready)) => format!("ready: {}", number(ready, "message")),
        (None, None) => "how many messages are ready is not known".to_owned(),
    };
    findings.insert(0, Finding::fine("queues", format!("{}; {waits}{unseen}", number(queues.len() as u64, "queue"))));
    Ok(findings)
}

/// The waiting time of the oldest ready message.
fn ready_for(stats: &QueueStats) -> Option<Duration> {
    stats.oldest_age.value().flatten()
}

fn whole_seconds(age: Duration) -> Duration {
    Duration::from_secs(age.as_secs())
}

fn count(measured: Measured<u64>) -> String {
    measured.value().map_or_else(|| "an unknown number of messages".into(), |count| number(count, "message"))
}

fn number(count: impl Into<u64>, what: &str) -> String {
    match count.into() {
        1 => format!("1 {what}"),
        count => format!("{count} {what}s"),
    }
}

fn check_queue(stats: &QueueStats) -> Vec<Finding> {
    let queue = &stats.queue;
    let mut findings = Vec::new();
    if stats.paused {
        let found = format!("'{queue}' is paused: nothing is delivered");
        findings.push(Finding::new("queues", Severity::Note, found, format!("`postrider resume {queue}`")));
    } else if let Some(age) = ready_for(stats).filter(|age| *age >= LONG_READY) {
        findings.push(Finding::new(
            "queues",
            Severity::Warning,
            format!("'{queue}' has {} ready, the oldest for {}", count(stats.ready), show(whole_seconds(age))),
            format!("start more workers; see the messages with `postrider peek {queue}`"),
        ));
    }
    if stats.dead.value().is_some_and(|dead| dead > 0) {
        let found = format!("'{queue}' has dead letters: {}", count(stats.dead));
        let fix = format!("see why with `postrider dlq list {queue}`, then redrive or purge them");
        findings.push(Finding::new("dead letters", Severity::Note, found, fix));
    }
    findings
}
