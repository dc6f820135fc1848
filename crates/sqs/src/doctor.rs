//! What can be wrong with queues of SQS.

use std::collections::HashMap;

use aws_sdk_sqs::types::QueueAttributeName;
use postrider_core::duration_text::show;
use postrider_core::{Deadline, Finding, MessagingError, QueueName, Severity};

use crate::error::Failure;
use crate::names::Side;
use crate::options::SqsOptions;
use crate::store::{Shared, SqsStore};
use crate::url::SqsUrl;
use crate::waiting::RETENTION;

/// So many queues are looked at one by one.
const MOST_QUEUES: usize = 200;

impl SqsStore {
    /// Looks at the queues that a URL leads to, and says what is wrong and what to do about it. Changes nothing. Fails
    /// only where there is nothing to look at: for a URL or options that nobody could use.
    pub async fn examine(url: &str, options: SqsOptions, deadline: Deadline) -> Result<Vec<Finding>, MessagingError> {
        let place = SqsUrl::parse(url)?.place();
        let creates = options.create_queues;
        let shared = Self::prepare(url, options).await?.shared;
        let mut findings = vec![shared.who_asks().await];
        if let Err(error) = shared.look(deadline).await {
            findings.insert(0, Finding::failed("connection", &error));
            return Ok(findings);
        }
        findings.insert(0, shared.connection(&place));
        findings.extend(match shared.list().await {
            Ok(queues) => shared.examine_queues(&queues.into_iter().collect::<Vec<_>>(), creates, deadline).await,
            Err(error) => vec![lacks("sqs:ListQueues", &error)],
        });
        Ok(findings)
    }
}

/// A right that is missing.
fn lacks(action: &'static str, error: &MessagingError) -> Finding {
    let fix = format!("allow {action} for this identity, or leave out what needs it");
    Finding::new("permissions", Severity::Warning, format!("{action} is not possible: {error}"), fix)
}

impl Shared {
    fn connection(&self, place: &str) -> Finding {
        let region = self.calls.client.config().region().map_or("no region", |region| region.as_ref()).to_owned();
        let prefix = match self.names.prefix() {
            "" => "queues of any name".to_owned(),
            prefix => format!("queues whose names begin with '{prefix}'"),
        };
        if place.starts_with("http") {
            let found =
                format!("{place} answers, in {region}, for {prefix}; it is an endpoint of its own, as emulators are");
            let fix = "emulators keep messages in memory and accept late receipts; use sqs://region for the service";
            return Finding::new("connection", Severity::Note, found, fix);
        }
        Finding::fine("connection", format!("{place} answers, in {region}, for {prefix}"))
    }

    /// Whose credentials are used, as far as they tell.
    async fn who_asks(&self) -> Finding {
        match self.credentials().await {
            Ok(key) => Finding::fine("credentials", format!("access key {key}")),
            Err(why) => Finding::new(
                "credentials",
                Severity::Problem,
                format!("there are none that can be used: {why}"),
                "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, name a profile with AWS_PROFILE, or run under a role",
            ),
        }
    }

    async fn examine_queues(&self, queues: &[QueueName], creates: bool, deadline: Deadline) -> Vec<Finding> {
        let mut findings = Vec::new();
        for queue in queues.iter().take(MOST_QUEUES) {
            if deadline.has_passed() {
                break;
            }
            let dead = queue.dead_letters();
            for (queue, side) in [(queue, Side::Standard), (queue, Side::Fifo), (&dead, Side::Standard)] {
                match self.find(queue, side).await {
                    Ok(Some(url)) => findings.extend(self.examine_queue(queue, side, &url).await),
                    Ok(None) if queue.holds_dead_letters() => findings.push(no_dead_letters(queue, creates)),
                    Ok(None) => {}
                    Err(error) => findings.push(lacks("sqs:GetQueueUrl", &error)),
                }
            }
        }
        findings
    }

    async fn examine_queue(&self, queue: &QueueName, side: Side, url: &str) -> Vec<Finding> {
        let name = match self.names.wire(queue, side) {
            Ok(name) => name.to_string(),
            Err(error) => return vec![Finding::failed("queue", &error)],
        };
        let attributes = match self.attributes(queue, url).await {
            Ok(attributes) => attributes,
            Err(error) => return vec![lacks("sqs:GetQueueAttributes", &error)],
        };
        let mut findings = judge(&name, side, queue.holds_dead_letters(), &attributes);
        if side == Side::Standard && !queue.holds_dead_letters() {
            match self.calls.call(|| self.calls.client.list_queue_tags().queue_url(url).send()).await {
                Err(failure) if failure.is_denied() => {
                    let error = failure.into_harmless("read the tags", Some(queue));
                    findings.push(lacks("sqs:ListQueueTags", &error));
                }
                Ok(_) | Err(Failure::Missing) => {}
                Err(failure) => {
                    findings.push(Finding::unseen("queue", failure.into_harmless("read the tags", Some(queue))))
                }
            }
        }
        findings
    }
}

fn no_dead_letters(dead: &QueueName, creates: bool) -> Finding {
    let (found, fix) = (format!("'{dead}' is not there"), format!("`ensure_queue('{}')` makes it", dead.origin()));
    if creates {
        return Finding::new("dead letters", Severity::Note, format!("{found}; the first dead letter makes it"), fix);
    }
    let found =
        format!("{found}, and may not be created: a message that dies stays where it is and is delivered again");
    Finding::new("dead letters", Severity::Problem, found, "create it beside its queue, as a standard queue")
}

/// What the attributes of a queue say.
fn judge(name: &str, side: Side, is_dead: bool, attributes: &HashMap<QueueAttributeName, String>) -> Vec<Finding> {
    let number = |name: QueueAttributeName| attributes.get(&name).and_then(|text| text.parse::<u64>().ok());
    let mut findings = Vec::new();
    let warn = |check, found: String, fix: &str| Finding::new(check, Severity::Warning, found, fix);
    if let Some(retention) = number(QueueAttributeName::MessageRetentionPeriod)
        && retention < RETENTION.as_secs()
    {
        let kept = show(std::time::Duration::from_secs(retention));
        let found = format!("'{name}' keeps messages for {kept}; what waits longer is dropped without a record");
        findings.push(warn("retention", found, "set MessageRetentionPeriod to 1209600; `ensure_queue` does so"));
    }
    if let Some(delay) = number(QueueAttributeName::DelaySeconds).filter(|delay| *delay > 0) {
        let found =
            format!("'{name}' delays every message by {delay} s, those of other senders and of its FIFO side too");
        findings.push(warn("delay", found, "set DelaySeconds to 0; messages have delays of their own"));
    }
    if let Some(visibility) = number(QueueAttributeName::VisibilityTimeout).filter(|seconds| *seconds == 0) {
        let found = format!("'{name}' hides a received message for {visibility} s: other clients all get it at once");
        findings.push(warn(
            "visibility",
            found,
            "set VisibilityTimeout to 30; Postrider sets its own with each receive",
        ));
    }
    let policy = attributes.get(&QueueAttributeName::RedrivePolicy);
    match (side, policy) {
        (Side::Standard, None) if !is_dead => {
            let found = format!(
                "'{name}' has no redrive policy: what kills every receiver but ours circles until it is dropped"
            );
            findings.push(warn(
                "dead letters",
                found,
                "set a RedrivePolicy to its _dlq queue with maxReceiveCount 1000",
            ));
        }
        (_, Some(policy)) => findings.extend(judge_policy(name, policy)),
        _ => {}
    }
    findings
}

/// A limit of SQS's own that strikes before ours writes down why.
fn judge_policy(name: &str, policy: &str) -> Option<Finding> {
    let limit = serde_json::from_str::<serde_json::Value>(policy).ok()?;
    let limit = &limit["maxReceiveCount"];
    let limit = limit.as_u64().or_else(|| limit.as_str()?.parse().ok())?;
    (limit < 100).then(|| {
        let found =
            format!("'{name}' moves a message to the dead letters after {limit} receives, whatever a worker allows");
        Finding::new("dead letters", Severity::Note, found, "set maxReceiveCount to 1000; Postrider has its own limit")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checks(side: Side, is_dead: bool, attributes: &[(QueueAttributeName, &str)]) -> Vec<&'static str> {
        let attributes = attributes.iter().map(|(name, value)| (name.clone(), (*value).to_owned())).collect();
        judge("q", side, is_dead, &attributes).iter().map(|finding| finding.check).collect()
    }

    #[test]
    fn what_would_drop_or_hold_up_messages_is_found() {
        let long = (QueueAttributeName::MessageRetentionPeriod, "1209600");
        let policy = (QueueAttributeName::RedrivePolicy, r#"{"deadLetterTargetArn":"a","maxReceiveCount":1000}"#);
        assert_eq!(checks(Side::Standard, false, &[long.clone(), policy.clone()]), [""; 0]);
        assert_eq!(checks(Side::Standard, true, std::slice::from_ref(&long)), [""; 0]);
        assert_eq!(checks(Side::Fifo, false, std::slice::from_ref(&long)), [""; 0]);
        assert_eq!(checks(Side::Standard, false, std::slice::from_ref(&long)), ["dead letters"]);
        let short = (QueueAttributeName::MessageRetentionPeriod, "345600");
        let delayed = (QueueAttributeName::DelaySeconds, "5");
        let bare = (QueueAttributeName::VisibilityTimeout, "0");
        assert_eq!(checks(Side::Fifo, false, &[short, delayed, bare]), ["retention", "delay", "visibility"]);
        let early = (QueueAttributeName::RedrivePolicy, r#"{"deadLetterTargetArn":"a","maxReceiveCount":"3"}"#);
        assert_eq!(checks(Side::Standard, false, &[long, early]), ["dead letters"]);
    }
}
