//! Checks the attributes of a queue.

use std::collections::HashMap;
use std::time::Duration;

use aws_sdk_sqs::types::QueueAttributeName;
use postrider_core::duration_text::show;
use postrider_core::{Finding, ReceiveOptions, Severity};
use serde_json::Value;

use crate::calls::MAX_BYTES;
use crate::delay::RETENTION;
use crate::names::Side;
use crate::queues::REDRIVE_LIMIT;

/// A `maxReceiveCount` below this one is reported: subscribers may allow more attempts.
const LOW: u64 = 100;

/// Finds attributes that would drop, move or delay messages. `dead` is the SQS name of the queue's dead letters; `None` for
/// the queue of dead letters itself.
pub(crate) fn check_attributes(
    name: &str,
    side: Side,
    dead: Option<&str>,
    attributes: &HashMap<QueueAttributeName, String>,
) -> Vec<Finding> {
    let number = |name: QueueAttributeName| attributes.get(&name).and_then(|text| text.parse::<u64>().ok());
    let mut findings = Vec::new();
    if let Some(retention) = number(QueueAttributeName::MessageRetentionPeriod)
        && retention < RETENTION.as_secs()
    {
        let kept = show(Duration::from_secs(retention));
        let found = format!("'{name}' keeps messages for {kept}; older ones are dropped without a record");
        findings.push(warn("retention", found, "set MessageRetentionPeriod to 1209600; `ensure_queue` does so"));
    }
    if let Some(delay) = number(QueueAttributeName::DelaySeconds).filter(|delay| *delay > 0) {
        let found =
            format!("'{name}' delays every message by {delay} s, also those of other senders and of its FIFO queue");
        findings.push(warn("delay", found, "set DelaySeconds to 0; messages have delays of their own"));
    }
    if let Some(visibility) = number(QueueAttributeName::VisibilityTimeout).filter(|seconds| *seconds == 0) {
        let found = format!(
            "'{name}' hides a received message for {visibility} s: all other clients receive it at the same time"
        );
        let fix = "set VisibilityTimeout to 30; Postrider sets its own with each receive";
        findings.push(warn("visibility", found, fix));
    }
    if let Some(most) = number(QueueAttributeName::MaximumMessageSize).filter(|most| *most < MAX_BYTES as u64) {
        findings.push(small(name, dead.is_none(), most));
    }
    if attributes.get(&QueueAttributeName::DeduplicationScope).is_some_and(|scope| scope == "messageGroup") {
        let found = format!("'{name}' compares dedup keys among messages of the same ordering key only");
        let fix = "set DeduplicationScope to queue; until then messages without an ordering key are not deduplicated";
        findings.push(warn("dedup", found, fix));
    }
    match (attributes.get(&QueueAttributeName::RedrivePolicy), dead) {
        (None, Some(dead)) if side == Side::Standard => {
            let found = format!(
                "'{name}' has no redrive policy: a message that kills other clients' receivers returns until it is dropped"
            );
            findings.push(warn("dead letters", found, redrive_to(dead)));
        }
        (Some(policy), _) => findings.extend(check_redrive_policy(name, side, dead, policy)),
        _ => {}
    }
    findings
}

fn warn(check: &'static str, found: String, fix: impl Into<String>) -> Finding {
    Finding::new(check, Severity::Warning, found, fix)
}

fn redrive_to(dead: &str) -> String {
    format!("set a RedrivePolicy to '{dead}' with maxReceiveCount {REDRIVE_LIMIT}")
}

/// The finding for a queue with a smaller maximum message size than SQS allows.
fn small(name: &str, is_dead: bool, most: u64) -> Finding {
    let (severity, what) = match is_dead {
        true => (Severity::Warning, "a dead letter that is larger with its record stays in its queue"),
        false => (Severity::Note, "sends of larger ones are refused"),
    };
    let found = format!("'{name}' accepts messages of at most {most} bytes: {what}");
    Finding::new("size", severity, found, format!("set MaximumMessageSize to {MAX_BYTES}"))
}

/// Checks the redrive policy: its target, and whether it moves messages before Postrider's own limit records the reason.
fn check_redrive_policy(name: &str, side: Side, dead: Option<&str>, policy: &str) -> Option<Finding> {
    let policy: Value = serde_json::from_str(policy).ok()?;
    let limit = &policy["maxReceiveCount"];
    let limit = limit.as_u64().or_else(|| limit.as_str()?.parse().ok())?;
    let target = policy["deadLetterTargetArn"].as_str()?.rsplit(':').next()?;
    let moves = format!("'{name}' moves a message to '{target}' after {limit} receives");
    let Some(dead) = dead else {
        let found = format!("{moves}, and each listing of dead letters is a receive");
        return Some(warn("dead letters", found, "remove its RedrivePolicy: Postrider reads no dead letters there"));
    };
    let fix = match side {
        Side::Standard => redrive_to(dead),
        Side::Fifo => format!("remove its RedrivePolicy: Postrider's own limit moves messages to '{dead}'"),
    };
    if target.ends_with(".fifo") != (side == Side::Fifo) {
        let found = format!("{moves}, and SQS cannot do so: one of them is a FIFO queue and the other is not");
        return Some(Finding::new("dead letters", Severity::Problem, found, fix));
    }
    if target != dead {
        let found = format!("{moves}, where Postrider reads no dead letters");
        return Some(warn("dead letters", found, fix));
    }
    let own = u64::from(ReceiveOptions::default().max_receive_count);
    if limit <= own {
        let found =
            format!("{moves}, without a record of the reason: Postrider's own limit, {own} by default, is later");
        return Some(warn("dead letters", found, fix));
    }
    (limit < LOW).then(|| {
        let found = format!("{moves}, even if a worker allows more");
        Finding::new("dead letters", Severity::Note, found, fix)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: (QueueAttributeName, &str) = (QueueAttributeName::MessageRetentionPeriod, "1209600");
    const DEAD: Option<&str> = Some("q_dlq");

    fn found(
        side: Side,
        dead: Option<&str>,
        attributes: &[(QueueAttributeName, &str)],
    ) -> Vec<(&'static str, Severity)> {
        let attributes = attributes.iter().map(|(name, value)| (name.clone(), (*value).to_owned())).collect();
        let findings = check_attributes("q", side, dead, &attributes);
        findings.iter().map(|finding| (finding.check, finding.severity)).collect()
    }

    fn with_policy(side: Side, dead: Option<&str>, target: &str, limit: &str) -> Vec<(&'static str, Severity)> {
        let policy = format!(r#"{{"deadLetterTargetArn":"arn:aws:sqs:eu:1:{target}","maxReceiveCount":{limit}}}"#);
        found(side, dead, &[LONG, (QueueAttributeName::RedrivePolicy, &policy)])
    }

    #[test]
    fn attributes_that_would_drop_or_delay_messages_are_found() {
        assert_eq!(found(Side::Standard, None, &[LONG]), []);
        assert_eq!(found(Side::Fifo, DEAD, &[LONG]), []);
        let warned = |check| [(check, Severity::Warning)];
        assert_eq!(found(Side::Standard, DEAD, &[LONG]), warned("dead letters"));
        let one = |name, value| found(Side::Fifo, DEAD, &[(name, value)]);
        assert_eq!(one(QueueAttributeName::MessageRetentionPeriod, "345600"), warned("retention"));
        assert_eq!(one(QueueAttributeName::DelaySeconds, "5"), warned("delay"));
        assert_eq!(one(QueueAttributeName::VisibilityTimeout, "0"), warned("visibility"));
        assert_eq!(one(QueueAttributeName::DeduplicationScope, "messageGroup"), warned("dedup"));
        assert_eq!(one(QueueAttributeName::DeduplicationScope, "queue"), []);
        let small = (QueueAttributeName::MaximumMessageSize, "262144");
        assert_eq!(found(Side::Fifo, DEAD, std::slice::from_ref(&small)), [("size", Severity::Note)]);
        assert_eq!(found(Side::Standard, None, &[small]), warned("size"));
        assert_eq!(one(QueueAttributeName::MaximumMessageSize, "1048576"), []);
    }

    #[test]
    fn a_redrive_policy_is_checked_by_its_target_and_its_limit() {
        let dead_letters = |severity| [("dead letters", severity)];
        assert_eq!(with_policy(Side::Standard, DEAD, "q_dlq", "1000"), []);
        assert_eq!(with_policy(Side::Standard, DEAD, "q_dlq", "50"), dead_letters(Severity::Note));
        assert_eq!(with_policy(Side::Standard, DEAD, "q_dlq", "4"), dead_letters(Severity::Note));
        assert_eq!(with_policy(Side::Standard, DEAD, "q_dlq", "\"3\""), dead_letters(Severity::Warning));
        assert_eq!(with_policy(Side::Standard, DEAD, "elsewhere", "1000"), dead_letters(Severity::Warning));
        assert_eq!(with_policy(Side::Standard, DEAD, "q_dlq.fifo", "1000"), dead_letters(Severity::Problem));
        assert_eq!(with_policy(Side::Fifo, DEAD, "q_dlq", "1000"), dead_letters(Severity::Problem));
        assert_eq!(with_policy(Side::Fifo, DEAD, "q_dlq.fifo", "1000"), dead_letters(Severity::Warning));
        assert_eq!(with_policy(Side::Standard, None, "further", "1000"), dead_letters(Severity::Warning));
    }
}
