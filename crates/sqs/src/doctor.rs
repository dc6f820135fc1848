//! The checks of `postrider doctor` on SQS.

use postrider_core::{BoxFuture, Deadline, Finding, MessagingError, QueueName, Severity};

use crate::attributes::check_attributes;
use crate::error::Failure;
use crate::names::{Side, WireName};
use crate::options::SqsOptions;
use crate::rights::{MissingRights, Right};
use crate::store::{Shared, SqsStore};
use crate::url::SqsUrl;

/// Maximum number of queues that are checked.
const MAX_QUEUES: usize = 200;

impl SqsStore {
    /// Checks the queues of a URL, and returns each finding with its fix. Changes nothing. Fails only for an invalid URL or
    /// invalid options.
    pub fn examine(
        url: &str,
        options: SqsOptions,
        deadline: Deadline,
    ) -> BoxFuture<'_, Result<Vec<Finding>, MessagingError>> {
        Box::pin(async move {
            let endpoint = SqsUrl::parse(url)?.endpoint_text();
            let creates = options.create_queues;
            let shared = Self::prepare(url, options).await?.shared;
            let mut findings = vec![shared.check_credentials().await];
            if let Err(error) = shared.check_answers(deadline).await {
                findings.insert(0, Finding::failed("connection", &error));
                return Ok(findings);
            }
            findings.insert(0, shared.connection(&endpoint));
            let mut missing = MissingRights::default();
            match shared.list().await {
                Ok(queues) => {
                    let queues: Vec<_> = queues.into_iter().collect();
                    findings.extend(shared.examine_queues(&queues, creates, &mut missing, deadline).await);
                }
                Err(error) => missing.add(Right::ListQueues, None, error),
            }
            findings.extend(missing.into_findings());
            Ok(findings)
        })
    }
}

impl Shared {
    fn connection(&self, endpoint: &str) -> Finding {
        let region = self.calls.client.config().region().map_or("no region", |region| region.as_ref()).to_owned();
        let prefix = match self.names.prefix() {
            "" => "queues of any name".to_owned(),
            prefix => format!("queues whose names begin with '{prefix}'"),
        };
        if endpoint.starts_with("http") {
            let found =
                format!("{endpoint} answers, in {region}, for {prefix}; it is a custom endpoint, as emulators are");
            let fix = "emulators keep messages in memory and accept late receipts; use sqs://region for the service";
            return Finding::new("connection", Severity::Note, found, fix);
        }
        Finding::fine("connection", format!("{endpoint} answers, in {region}, for {prefix}"))
    }

    /// Checks the credentials, and names their access key.
    async fn check_credentials(&self) -> Finding {
        match self.credentials().await {
            Ok(key) => Finding::fine("credentials", format!("access key {key}")),
            Err(why) => Finding::new(
                "credentials",
                Severity::Problem,
                format!("no usable credentials: {why}"),
                "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, name a profile with AWS_PROFILE, or run under a role",
            ),
        }
    }

    async fn examine_queues(
        &self,
        queues: &[QueueName],
        creates: bool,
        missing: &mut MissingRights,
        deadline: Deadline,
    ) -> Vec<Finding> {
        let mut findings = Vec::new();
        for queue in queues.iter().take(MAX_QUEUES) {
            if deadline.has_passed() {
                break;
            }
            let dead = queue.dead_letters();
            for (queue, side) in [(queue, Side::Standard), (queue, Side::Fifo), (&dead, Side::Standard)] {
                let name = match self.names.wire(queue, side) {
                    Ok(name) => name,
                    Err(error) => {
                        findings.push(Finding::failed("queue", &error));
                        continue;
                    }
                };
                match self.find(queue, side).await {
                    Ok(Some(url)) => {
                        findings.extend(self.examine_queue(queue, side, &name, &url, missing).await);
                        if creates && let Some(failure) = self.denied_to_create(&name, side).await {
                            missing.add(Right::CreateQueue, name.to_string(), failure.into_harmless("create it", None));
                        }
                    }
                    Ok(None) if queue.holds_dead_letters() => findings.push(no_dead_letters(queue, creates)),
                    Ok(None) => {}
                    Err(error) => missing.add(Right::GetQueueUrl, name.to_string(), error),
                }
            }
        }
        findings
    }

    async fn examine_queue(
        &self,
        queue: &QueueName,
        side: Side,
        name: &WireName,
        url: &str,
        missing: &mut MissingRights,
    ) -> Vec<Finding> {
        let mut findings = Vec::new();
        match self.attributes(queue, url).await {
            Ok(attributes) => {
                let dead = self.names.wire(&queue.dead_letters(), Side::Standard).ok();
                let dead = dead.filter(|_| !queue.holds_dead_letters());
                findings.extend(check_attributes(
                    name.as_str(),
                    side,
                    dead.as_ref().map(WireName::as_str),
                    &attributes,
                ));
            }
            Err(error) => missing.add(Right::GetQueueAttributes, name.to_string(), error),
        }
        for (right, failure) in self.denied_on_messages(url).await {
            missing.add(right, name.to_string(), failure.into_harmless("check the right", Some(queue)));
        }
        if side == Side::Standard && !queue.holds_dead_letters() {
            match self.calls.call(|| self.calls.client.list_queue_tags().queue_url(url).send()).await {
                Err(failure) if failure.is_denied() => {
                    let error = failure.into_harmless("read the tags", Some(queue));
                    missing.add(Right::ListQueueTags, name.to_string(), error);
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
    let (found, fix) = (format!("'{dead}' does not exist"), format!("`ensure_queue('{}')` creates it", dead.origin()));
    if creates {
        return Finding::new("dead letters", Severity::Note, format!("{found}; the first dead letter creates it"), fix);
    }
    let found = format!("{found}, and may not be created: a dead letter stays in its queue and is delivered again");
    Finding::new("dead letters", Severity::Problem, found, "create it beside its queue, as a standard queue")
}
