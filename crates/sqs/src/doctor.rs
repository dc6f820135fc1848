//! What can be wrong with queues of SQS.

use postrider_core::{BoxFuture, Deadline, Finding, MessagingError, QueueName, Severity};

use crate::attributes::judge;
use crate::error::Failure;
use crate::names::{Side, WireName};
use crate::options::SqsOptions;
use crate::rights::{Lacking, Right};
use crate::store::{Shared, SqsStore};
use crate::url::SqsUrl;

/// So many queues are looked at one by one.
const MOST_QUEUES: usize = 200;

impl SqsStore {
    /// Looks at the queues that a URL leads to, and says what is wrong and what to do about it. Changes nothing. Fails
    /// only where there is nothing to look at: for a URL or options that nobody could use.
    pub fn examine(
        url: &str,
        options: SqsOptions,
        deadline: Deadline,
    ) -> BoxFuture<'_, Result<Vec<Finding>, MessagingError>> {
        Box::pin(async move {
            let place = SqsUrl::parse(url)?.place();
            let creates = options.create_queues;
            let shared = Self::prepare(url, options).await?.shared;
            let mut findings = vec![shared.who_asks().await];
            if let Err(error) = shared.look(deadline).await {
                findings.insert(0, Finding::failed("connection", &error));
                return Ok(findings);
            }
            findings.insert(0, shared.connection(&place));
            let mut lacking = Lacking::default();
            match shared.list().await {
                Ok(queues) => {
                    let queues: Vec<_> = queues.into_iter().collect();
                    findings.extend(shared.examine_queues(&queues, creates, &mut lacking, deadline).await);
                }
                Err(error) => lacking.add(Right::ListQueues, None, error),
            }
            findings.extend(lacking.into_findings());
            Ok(findings)
        })
    }
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

    async fn examine_queues(
        &self,
        queues: &[QueueName],
        creates: bool,
        lacking: &mut Lacking,
        deadline: Deadline,
    ) -> Vec<Finding> {
        let mut findings = Vec::new();
        for queue in queues.iter().take(MOST_QUEUES) {
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
                        findings.extend(self.examine_queue(queue, side, &name, &url, lacking).await);
                        if creates && let Some(failure) = self.denied_to_create(&name, side).await {
                            lacking.add(Right::CreateQueue, name.to_string(), failure.into_harmless("create it", None));
                        }
                    }
                    Ok(None) if queue.holds_dead_letters() => findings.push(no_dead_letters(queue, creates)),
                    Ok(None) => {}
                    Err(error) => lacking.add(Right::GetQueueUrl, name.to_string(), error),
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
        lacking: &mut Lacking,
    ) -> Vec<Finding> {
        let mut findings = Vec::new();
        match self.attributes(queue, url).await {
            Ok(attributes) => {
                let dead = self.names.wire(&queue.dead_letters(), Side::Standard).ok();
                let dead = dead.filter(|_| !queue.holds_dead_letters());
                findings.extend(judge(name.as_str(), side, dead.as_ref().map(WireName::as_str), &attributes));
            }
            Err(error) => lacking.add(Right::GetQueueAttributes, name.to_string(), error),
        }
        for (right, failure) in self.denied_on_messages(url).await {
            lacking.add(right, name.to_string(), failure.into_harmless("ask for the right", Some(queue)));
        }
        if side == Side::Standard && !queue.holds_dead_letters() {
            match self.calls.call(|| self.calls.client.list_queue_tags().queue_url(url).send()).await {
                Err(failure) if failure.is_denied() => {
                    let error = failure.into_harmless("read the tags", Some(queue));
                    lacking.add(Right::ListQueueTags, name.to_string(), error);
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
