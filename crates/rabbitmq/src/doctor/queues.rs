//! Queues, their policies and the ways between them: whatever would drop a message.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::time::Duration;

use postrider_core::duration_text::show;
use postrider_core::{Deadline, Finding, MessagingError, QueueName, Severity};

use crate::management::{Binding, Management, QueueInfo};
use crate::options::{QueueType, RabbitmqOptions};
use crate::topology::{BACKSTOP, all_levels, below, exchange, pattern, waiting_queue, word};

/// Looks at everything that Postrider's queues are made of.
pub(super) async fn look(
    management: &Management,
    options: &RabbitmqOptions,
    deadline: Deadline,
) -> Result<Vec<Finding>, MessagingError> {
    let (queues, bindings) = (management.queues(deadline).await?, management.bindings(deadline).await?);
    let exchanges = management.exchanges(deadline).await?;
    let broker = Broker { queues: &queues, bindings: &bindings, exchanges: &exchanges, options };
    Ok(broker.judge())
}

/// What a queue of the broker's is to a queue of ours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    Ready,
    DeadLetters,
    Partition(u32),
    Waiting(u32),
}

struct Broker<'a> {
    queues: &'a [QueueInfo],
    bindings: &'a [Binding],
    exchanges: &'a [String],
    options: &'a RabbitmqOptions,
}

impl Broker<'_> {
    fn judge(&self) -> Vec<Finding> {
        let names: HashSet<&str> = self.queues.iter().map(|queue| queue.name.as_str()).collect();
        // Whoever else uses the broker has queues of his own, and they are none of ours.
        let is_ours = |queue: &QueueName| names.contains(queue.dead_letters().as_str());
        let mut found = Vec::new();
        let mut keyed: BTreeMap<QueueName, BTreeSet<u32>> = BTreeMap::new();
        let mut count = 0;
        for queue in self.queues {
            let Some((of, part)) = part(&queue.name).filter(|(of, _)| is_ours(of)) else { continue };
            count += 1;
            found.extend(judge_queue(queue, part, self.options));
            match part {
                Part::Partition(index) => _ = keyed.entry(of).or_default().insert(index),
                Part::Waiting(level) => found.extend(self.judge_way(queue, &of, level, names.contains(of.as_str()))),
                Part::Ready | Part::DeadLetters => {}
            }
        }
        for (queue, indexes) in &keyed {
            found.extend(judge_partitions(queue, indexes, self.options.partitions));
        }
        if found.is_empty() {
            let fine = format!("none drops a message, and every way leads somewhere ({count} queues of the broker)");
            found.push(Finding::fine("policies", fine));
        }
        found
    }

    /// The ways into a waiting queue, out of it, and on to the queue itself.
    fn judge_way(&self, queue: &QueueInfo, of: &QueueName, level: u32, has_queue: bool) -> Vec<Finding> {
        let again = "start a program of it anew: it makes what is missing before it delays the next message";
        let lost = |what: String| {
            let found = format!("messages of '{of}' that wait are lost: {what}");
            Finding::new("bindings", Severity::Problem, found, again)
        };
        if !has_queue {
            let found = format!("'{}' holds messages for '{of}', which is not there", queue.name);
            let fix = format!("make '{of}' again with a message that is sent to it with a delay");
            return vec![Finding::new("bindings", Severity::Problem, found, fix)];
        }
        let mut findings = Vec::new();
        let leads = |from: &str, to: &str, key: &str| {
            self.bindings.iter().any(|way| way.source == from && way.destination == to && way.routing_key == key)
        };
        let own = format!("#.{}", word(of));
        if !leads(&exchange(Some(level)), &queue.name, &pattern(level, "1", &own)) {
            findings.push(lost(format!("no binding leads into '{}'", queue.name)));
        }
        if !leads(&exchange(None), of.as_str(), &own) {
            findings.push(lost(format!("no binding leads from '{}' to it", exchange(None))));
        }
        for step in all_levels().filter(|step| *step <= level) {
            let (this, next) = (exchange(Some(step)), exchange(below(step)));
            if !self.exchanges.contains(&next) {
                findings.push(lost(format!("there is no exchange '{next}'")));
            } else if !leads(&this, &next, &pattern(step, "0", "#")) {
                findings.push(lost(format!("no binding leads from '{this}' to '{next}'")));
            }
        }
        findings
    }
}

/// Which queue of ours it belongs to, and what it is to it.
fn part(name: &str) -> Option<(QueueName, Part)> {
    match name.split_once(':') {
        None => {
            let queue = QueueName::for_reading(name).ok()?;
            match queue.holds_dead_letters() {
                true => Some((queue.origin(), Part::DeadLetters)),
                false => Some((queue, Part::Ready)),
            }
        }
        Some((of, rest)) => {
            let of = QueueName::for_reading(of).ok()?;
            if let Some(index) = rest.strip_prefix("key:") {
                return Some((of, Part::Partition(index.parse().ok()?)));
            }
            let level = all_levels().find(|level| waiting_queue(&of, *level) == name)?;
            Some((of, Part::Waiting(level)))
        }
    }
}

fn judge_partitions(queue: &QueueName, indexes: &BTreeSet<u32>, partitions: u32) -> Vec<Finding> {
    let mut findings = Vec::new();
    let same = "let common.messaging.rabbitmq.partitions be the same for every program that uses the queue";
    let unread: Vec<_> = indexes.iter().filter(|index| **index >= partitions).map(ToString::to_string).collect();
    if !unread.is_empty() {
        let found = format!(
            "nobody reads the partitions {} of '{queue}': it was used with more partitions than {partitions}",
            unread.join(", ")
        );
        findings.push(Finding::new("partitions", Severity::Problem, found, same));
    }
    let missing: Vec<_> = (0..partitions).filter(|index| !indexes.contains(index)).map(|i| i.to_string()).collect();
    if !missing.is_empty() {
        let found = format!(
            "'{queue}' lacks the partitions {}: they were deleted, or it is used with fewer partitions than {partitions}",
            missing.join(", ")
        );
        let fix = format!("{same}; the next message with a key makes them");
        findings.push(Finding::new("partitions", Severity::Warning, found, fix));
    }
    findings
}

/// A number that the queue's arguments or its policies say. The broker takes the smaller.
fn limit(queue: &QueueInfo, key: &str) -> Option<i64> {
    let by_argument = queue.arguments.get(&format!("x-{key}")).and_then(serde_json::Value::as_i64);
    by_argument.into_iter().chain(by_policy(queue, key)).min()
}

fn by_policy(queue: &QueueInfo, key: &str) -> Option<i64> {
    queue.effective_policy_definition.get(key).and_then(serde_json::Value::as_i64)
}

/// A text that the queue's arguments say, or else its policies.
fn text<'q>(queue: &'q QueueInfo, key: &str) -> Option<&'q str> {
    let by_policy = queue.effective_policy_definition.get(key);
    queue.arguments.get(&format!("x-{key}")).or(by_policy).and_then(serde_json::Value::as_str)
}

fn judge_queue(queue: &QueueInfo, part: Part, options: &RabbitmqOptions) -> Vec<Finding> {
    let name = &queue.name;
    let policies: Vec<_> =
        [&queue.policy, &queue.operator_policy].into_iter().flatten().map(|name| format!("'{name}'")).collect();
    let (policies, remedy) = match policies.is_empty() {
        true => (String::new(), "make the queue anew without that argument, once it is empty".to_owned()),
        false => {
            let names = policies.join(" and ");
            (format!(" (policy {names})"), format!("let the policy {names} leave out this queue, or this setting"))
        }
    };
    let mut findings = Vec::new();
    let mut tell = |severity, found: String| {
        findings.push(Finding::new("policies", severity, format!("'{name}': {found}{policies}"), remedy.clone()));
    };
    let hands_on = text(queue, "dead-letter-exchange").is_some();
    // What is taken out of a queue that hands on ends with the dead letters; from there it goes nowhere.
    let (loses, fate) = match (part, hands_on) {
        (Part::Ready | Part::Partition(_), true) => (Severity::Warning, "go to the dead letters"),
        _ => (Severity::Problem, "are lost"),
    };
    let millis = |millis: i64| show(Duration::from_millis(u64::try_from(millis).unwrap_or(0)));
    match part {
        Part::Waiting(_) => {
            if let Some(ttl) = by_policy(queue, "message-ttl").filter(|ttl| limit(queue, "message-ttl") == Some(*ttl)) {
                tell(Severity::Warning, format!("messages wait no longer than {} and are then sent back", millis(ttl)));
            }
        }
        _ => {
            if let Some(ttl) = limit(queue, "message-ttl") {
                tell(loses, format!("messages that are there for {} {fate}", millis(ttl)));
            }
        }
    }
    if let Some(idle) = limit(queue, "expires") {
        let found = format!("the broker deletes it, with its messages, when nobody reads it for {}", millis(idle));
        tell(Severity::Problem, found);
    }
    for (key, unit) in [("max-length", "messages"), ("max-length-bytes", "bytes")] {
        let Some(most) = limit(queue, key) else { continue };
        match text(queue, "overflow") {
            Some("reject-publish") => tell(Severity::Note, format!("it refuses messages beyond {most} {unit}")),
            _ => tell(loses, format!("beyond {most} {unit} the oldest messages {fate}")),
        }
    }
    if let Some(most) = limit(queue, "delivery-limit").filter(|most| *most < i64::from(BACKSTOP)) {
        let found =
            format!("after {most} returns messages {fate}, without the record of why; a look at them counts too");
        tell(loses, found);
    }
    let ours = i64::try_from(options.consumer_timeout.as_millis()).unwrap_or(i64::MAX);
    if let Some(timeout) = limit(queue, "consumer-timeout").filter(|timeout| *timeout < ours) {
        let ours = show(options.consumer_timeout);
        let found = format!(
            "the broker takes back what is held for {}, and leases may be as long as {ours} allows",
            millis(timeout)
        );
        tell(Severity::Problem, found);
    }
    if !hands_on && part != Part::DeadLetters {
        let found = format!("'{name}' has no dead-letter exchange: what the broker itself takes out of it is lost");
        let fix = "make the queue anew, once it is empty, or set a policy with dead-letter-exchange \"\" and \
                   dead-letter-routing-key";
        let severity = if matches!(part, Part::Waiting(_)) { Severity::Problem } else { Severity::Warning };
        findings.push(Finding::new("policies", severity, found, fix));
    }
    if let Some(kind) = queue.kind.as_deref().filter(|kind| *kind != options.queue_type.as_str()) {
        let said = options.queue_type.as_str();
        let found = format!("'{name}' is a {kind} queue, and queue_type says {said}: it cannot be made, only used");
        let fix =
            format!("set common.messaging.rabbitmq.queue_type = \"{kind}\", or make the queue anew, once it is empty");
        findings.push(Finding::new("queue type", Severity::Warning, found, fix));
    } else if options.queue_type == QueueType::Classic && part == Part::Ready {
        let found =
            format!("'{name}' is a classic queue: it is on one node, and counts no delivery that ends with its worker");
        findings.push(Finding::new("queue type", Severity::Note, found, "use queue_type = \"quorum\" for new queues"));
    }
    findings
}

#[cfg(test)]
mod tests;
