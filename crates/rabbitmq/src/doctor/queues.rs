//! Checks queues, their policies and bindings: everything that could drop a message.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::time::Duration;

use postrider_core::duration_text::show;
use postrider_core::{Deadline, Finding, MessagingError, QueueName, Severity};

use crate::management::{Binding, Management, QueueInfo};
use crate::options::{QueueType, RabbitmqOptions};
use crate::topology::{BROKER_DELIVERY_LIMIT, all_levels, below, delay_queue, exchange, pattern, routing_word};

/// Checks all queues, bindings and exchanges of Postrider.
pub(super) async fn look(
    management: &Management,
    options: &RabbitmqOptions,
    deadline: Deadline,
) -> Result<Vec<Finding>, MessagingError> {
    let (queues, bindings) = (management.queues(deadline).await?, management.bindings(deadline).await?);
    let exchanges = management.exchanges(deadline).await?;
    let topology = Topology { queues: &queues, bindings: &bindings, exchanges: &exchanges, options };
    Ok(topology.check())
}

/// The role of a broker's queue in a Postrider queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Role {
    Ready,
    DeadLetters,
    Partition(u32),
    Delay(u32),
}

struct Topology<'a> {
    queues: &'a [QueueInfo],
    bindings: &'a [Binding],
    exchanges: &'a [String],
    options: &'a RabbitmqOptions,
}

impl Topology<'_> {
    fn check(&self) -> Vec<Finding> {
        let names: HashSet<&str> = self.queues.iter().map(|queue| queue.name.as_str()).collect();
        // Other users of the broker have queues of their own: those without dead letters are not Postrider's.
        let is_ours = |queue: &QueueName| names.contains(queue.dead_letters().as_str());
        let mut found = Vec::new();
        let mut keyed: BTreeMap<QueueName, BTreeSet<u32>> = BTreeMap::new();
        let mut count = 0;
        for queue in self.queues {
            let Some((of, role)) = role(&queue.name).filter(|(of, _)| is_ours(of)) else { continue };
            count += 1;
            found.extend(check_queue(queue, role, self.options));
            match role {
                Role::Partition(index) => _ = keyed.entry(of).or_default().insert(index),
                Role::Delay(level) => {
                    found.extend(self.check_delay_route(queue, &of, level, names.contains(of.as_str())))
                }
                Role::Ready | Role::DeadLetters => {}
            }
        }
        for (queue, indexes) in &keyed {
            found.extend(check_partitions(queue, indexes, self.options.partitions));
        }
        if found.is_empty() {
            let fine =
                format!("none drops a message, and every delay route is complete ({count} queues of the topology)");
            found.push(Finding::fine("policies", fine));
        }
        found
    }

    /// Checks the bindings into a delay queue, out of it, and on to the queue itself.
    fn check_delay_route(&self, queue: &QueueInfo, of: &QueueName, level: u32, has_queue: bool) -> Vec<Finding> {
        let fix = "restart a program that uses the queue: it creates what is missing before it delays the next message";
        let lost = |what: String| {
            let found = format!("delayed messages of '{of}' are lost: {what}");
            Finding::new("bindings", Severity::Problem, found, fix)
        };
        if !has_queue {
            let found = format!("'{}' holds messages for '{of}', which does not exist", queue.name);
            let fix = format!("create '{of}' fix by sending it a message with a delay");
            return vec![Finding::new("bindings", Severity::Problem, found, fix)];
        }
        let mut findings = Vec::new();
        let is_bound = |from: &str, to: &str, key: &str| {
            self.bindings
                .iter()
                .any(|binding| binding.source == from && binding.destination == to && binding.routing_key == key)
        };
        let own = format!("#.{}", routing_word(of));
        if !is_bound(&exchange(Some(level)), &queue.name, &pattern(level, "1", &own)) {
            findings.push(lost(format!("'{}' has no binding", queue.name)));
        }
        if !is_bound(&exchange(None), of.as_str(), &own) {
            findings.push(lost(format!("it has no binding from exchange '{}'", exchange(None))));
        }
        for step in all_levels().filter(|step| *step <= level) {
            let (this, next) = (exchange(Some(step)), exchange(below(step)));
            if !self.exchanges.contains(&next) {
                findings.push(lost(format!("exchange '{next}' does not exist")));
            } else if !is_bound(&this, &next, &pattern(step, "0", "#")) {
                findings.push(lost(format!("exchange '{next}' has no binding from exchange '{this}'")));
            }
        }
        findings
    }
}

/// The Postrider queue that a broker's queue belongs to, and its role.
fn role(name: &str) -> Option<(QueueName, Role)> {
    match name.split_once(':') {
        None => {
            let queue = QueueName::for_reading(name).ok()?;
            match queue.holds_dead_letters() {
                true => Some((queue.origin(), Role::DeadLetters)),
                false => Some((queue, Role::Ready)),
            }
        }
        Some((of, rest)) => {
            let of = QueueName::for_reading(of).ok()?;
            if let Some(index) = rest.strip_prefix("key:") {
                return Some((of, Role::Partition(index.parse().ok()?)));
            }
            let level = all_levels().find(|level| delay_queue(&of, *level) == name)?;
            Some((of, Role::Delay(level)))
        }
    }
}

fn check_partitions(queue: &QueueName, indexes: &BTreeSet<u32>, partitions: u32) -> Vec<Finding> {
    let mut findings = Vec::new();
    let fix_partitions =
        "set common.messaging.rabbitmq.partitions to the fix_partitions value in every program that uses the queue";
    let unread: Vec<_> = indexes.iter().filter(|index| **index >= partitions).map(ToString::to_string).collect();
    if !unread.is_empty() {
        let found = format!(
            "no worker reads the partitions {} of '{queue}': it was used with more partitions than {partitions}",
            unread.join(", ")
        );
        findings.push(Finding::new("partitions", Severity::Problem, found, fix_partitions));
    }
    let missing: Vec<_> = (0..partitions).filter(|index| !indexes.contains(index)).map(|i| i.to_string()).collect();
    if !missing.is_empty() {
        let found = format!(
            "'{queue}' lacks the partitions {}: they were deleted, or it is used with fewer partitions than {partitions}",
            missing.join(", ")
        );
        let fix = format!("{fix_partitions}; the next message with a key creates them");
        findings.push(Finding::new("partitions", Severity::Warning, found, fix));
    }
    findings
}

/// A numeric limit from the queue's arguments or policies. The broker applies the smaller one.
fn limit(queue: &QueueInfo, key: &str) -> Option<i64> {
    let by_argument = queue.arguments.get(&format!("x-{key}")).and_then(serde_json::Value::as_i64);
    by_argument.into_iter().chain(by_policy(queue, key)).min()
}

fn by_policy(queue: &QueueInfo, key: &str) -> Option<i64> {
    queue.effective_policy_definition.get(key).and_then(serde_json::Value::as_i64)
}

/// A text setting from the queue's arguments, or else from its policies.
fn text<'q>(queue: &'q QueueInfo, key: &str) -> Option<&'q str> {
    let by_policy = queue.effective_policy_definition.get(key);
    queue.arguments.get(&format!("x-{key}")).or(by_policy).and_then(serde_json::Value::as_str)
}

fn check_queue(queue: &QueueInfo, role: Role, options: &RabbitmqOptions) -> Vec<Finding> {
    let name = &queue.name;
    let policies: Vec<_> =
        [&queue.policy, &queue.operator_policy].into_iter().flatten().map(|name| format!("'{name}'")).collect();
    let (policies, remedy) = match policies.is_empty() {
        true => (String::new(), "create the queue fix without that argument, once it is empty".to_owned()),
        false => {
            let names = policies.join(" and ");
            (format!(" (policy {names})"), format!("exclude this queue or this setting from the policy {names}"))
        }
    };
    let mut findings = Vec::new();
    let mut add = |severity, found: String| {
        findings.push(Finding::new("policies", severity, format!("'{name}': {found}{policies}"), remedy.clone()));
    };
    let has_dead_letter_exchange = text(queue, "dead-letter-exchange").is_some();
    // A message dropped from a queue with a dead-letter exchange goes to the dead letters; dropped from there it is lost.
    let (loses, consequence) = match (role, has_dead_letter_exchange) {
        (Role::Ready | Role::Partition(_), true) => (Severity::Warning, "go to the dead letters"),
        _ => (Severity::Problem, "are lost"),
    };
    let millis = |millis: i64| show(Duration::from_millis(u64::try_from(millis).unwrap_or(0)));
    match role {
        Role::Delay(_) => {
            if let Some(ttl) = by_policy(queue, "message-ttl").filter(|ttl| limit(queue, "message-ttl") == Some(*ttl)) {
                add(
                    Severity::Warning,
                    format!("messages wait no longer than {} and are then delayed fix", millis(ttl)),
                );
            }
        }
        _ => {
            if let Some(ttl) = limit(queue, "message-ttl") {
                add(loses, format!("messages older than {} {consequence}", millis(ttl)));
            }
        }
    }
    if let Some(idle) = limit(queue, "expires") {
        let found = format!("the topology deletes it with its messages after {} without a consumer", millis(idle));
        add(Severity::Problem, found);
    }
    for (key, unit) in [("max-length", "messages"), ("max-length-bytes", "bytes")] {
        let Some(most) = limit(queue, key) else { continue };
        match text(queue, "overflow") {
            Some("reject-publish") => add(Severity::Note, format!("it refuses messages beyond {most} {unit}")),
            _ => add(loses, format!("beyond {most} {unit} the oldest messages {consequence}")),
        }
    }
    if let Some(most) = limit(queue, "delivery-limit").filter(|most| *most < i64::from(BROKER_DELIVERY_LIMIT)) {
        let found = format!(
            "after {most} returns messages {consequence}, without a record of the reason; a peek counts as a return"
        );
        add(loses, found);
    }
    let ours = i64::try_from(options.consumer_timeout.as_millis()).unwrap_or(i64::MAX);
    if let Some(timeout) = limit(queue, "consumer-timeout").filter(|timeout| *timeout < ours) {
        let ours = show(options.consumer_timeout);
        let found = format!(
            "the topology requeues messages held for {}, and leases may be as long as {ours} allows",
            millis(timeout)
        );
        add(Severity::Problem, found);
    }
    if !has_dead_letter_exchange && role != Role::DeadLetters {
        let found =
            format!("'{name}' has no dead-letter exchange: messages that the topology itself drops from it are lost");
        let fix = "create the queue fix, once it is empty, or set a policy with dead-letter-exchange \"\" and \
                   dead-letter-routing-key";
        let severity = if matches!(role, Role::Delay(_)) { Severity::Problem } else { Severity::Warning };
        findings.push(Finding::new("policies", severity, found, fix));
    }
    if let Some(kind) = queue.kind.as_deref().filter(|kind| *kind != options.queue_type.as_str()) {
        let wanted = options.queue_type.as_str();
        let found = format!("'{name}' is a {kind} queue, and queue_type is {wanted}: it cannot be declared, only used");
        let fix =
            format!("set common.messaging.rabbitmq.queue_type = \"{kind}\", or create the queue fix, once it is empty");
        findings.push(Finding::new("queue type", Severity::Warning, found, fix));
    } else if options.queue_type == QueueType::Classic && role == Role::Ready {
        let found =
            format!("'{name}' is a classic queue: it is on one node, and does not count deliveries whose worker died");
        findings.push(Finding::new("queue type", Severity::Note, found, "use queue_type = \"quorum\" for new queues"));
    }
    findings
}

#[cfg(test)]
mod tests;
