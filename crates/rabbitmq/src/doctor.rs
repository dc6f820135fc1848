//! The checks of `postrider doctor` on a broker.

mod queues;

use lapin::options::{
    BasicGetOptions, BasicPublishOptions, ConfirmSelectOptions, QueueDeclareOptions, QueueDeleteOptions,
};
use lapin::types::FieldTable;
use lapin::{BasicProperties, Channel};
use postrider_broker::Broker;
use postrider_core::duration_text::show;
use postrider_core::{BoxFuture, Deadline, Finding, MessagingError, Severity};

use crate::RabbitmqStore;
use crate::broker::RabbitmqBroker;
use crate::error::{ACCESS_REFUSED, code, words};
use crate::options::RabbitmqOptions;

impl RabbitmqStore {
    /// Checks a broker and the queues on it, and returns each finding with its fix. Changes nothing: the queue that it
    /// declares to check the user's permissions is gone when it ends. Fails only for an invalid URL or invalid options.
    pub fn examine(
        url: &str,
        options: RabbitmqOptions,
        deadline: Deadline,
    ) -> BoxFuture<'_, Result<Vec<Finding>, MessagingError>> {
        Box::pin(async move {
            let store = Self::new(url, options)?;
            let connected = RabbitmqBroker::connect(store.uri.clone(), store.options.clone());
            let broker = match deadline.limit(connected).await {
                Some(Ok(broker)) => broker,
                Some(Err(error @ MessagingError::InvalidInput { .. })) => return Err(error),
                Some(Err(error)) => return Ok(vec![Finding::failed("connection", &error)]),
                None => return Ok(vec![Finding::failed("connection", &crate::error::no_answer("connect"))]),
            };
            let (authority, vhost) = (&store.uri.authority, &store.uri.vhost);
            let address = format!("{}:{}, virtual host '{vhost}'", authority.host, authority.port);
            let mut findings = vec![Finding::fine("connection", address)];
            findings.push(match deadline.limit(rights(&broker, &store, deadline)).await {
                Some(found) => found,
                None => Finding::failed("rights", &crate::error::no_answer("examine")),
            });
            findings.extend(management_checks(&broker, deadline).await);
            findings.push(consumer_timeout(&store.options));
            // The findings stand even if the close fails.
            let _ = broker.close(deadline).await;
            Ok(findings)
        })
    }
}

/// The checks that need the management interface.
async fn management_checks(broker: &RabbitmqBroker, deadline: Deadline) -> Vec<Finding> {
    let management = broker.management();
    let overview = match management.overview(deadline).await {
        Ok(overview) => overview,
        Err(error) => {
            let costs = "Without it queues cannot be listed, messages in flight are not counted, and the queues' \
                         arguments and policies were not checked";
            let fix = "enable the plugin rabbitmq_management, give the user the tag 'monitoring', and set its URL in \
                       common.messaging.rabbitmq.management_url";
            return vec![Finding::new("management", Severity::Warning, format!("{error}. {costs}"), fix)];
        }
    };
    let versions = format!("RabbitMQ {} on Erlang {}", overview.rabbitmq_version, overview.erlang_version);
    let mut findings = vec![Finding::fine("version", versions), Finding::fine("management", "it answers")];
    findings.push(match management.alarms(deadline).await {
        Ok(alarms) if alarms.is_empty() => Finding::fine("alarms", "memory and disk suffice"),
        Ok(alarms) => Finding::new(
            "alarms",
            Severity::Problem,
            format!("the broker accepts no messages: {}", alarms.join(", ")),
            "free memory or disk on that node, or change the broker's vm_memory_high_watermark or disk_free_limit",
        ),
        Err(error) => Finding::unseen("alarms", error),
    });
    findings.extend(match queues::look(management, broker.options(), deadline).await {
        Ok(found) => found,
        Err(error) => vec![Finding::unseen("policies", error)],
    });
    findings
}

/// Checks the user's permissions by using each on a queue that is deleted with this connection.
async fn rights(broker: &RabbitmqBroker, store: &RabbitmqStore, deadline: Deadline) -> Finding {
    let tried = async {
        let live = broker.connection().live(deadline).await?;
        live.channel("examine").await
    };
    let channel = match tried.await {
        Ok(channel) => channel,
        Err(error) => return Finding::failed("rights", &error),
    };
    match try_rights(&channel).await {
        Ok(()) => Finding::fine("rights", "the user may declare queues, write and read"),
        Err((what, error)) if code(&error) == Some(ACCESS_REFUSED) => {
            let needs_less = what == Right::Configure && !store.options.create_queues;
            let severity = if needs_less { Severity::Warning } else { Severity::Problem };
            let (vhost, user) = (&store.uri.vhost, &store.uri.authority.userinfo.username);
            let fix = format!(
                "`rabbitmqctl set_permissions -p '{vhost}' '{user}' '.*' '.*' '.*'`, or with patterns that fit the names \
                 of your queues, 'amq.default' and 'postrider:.*'"
            );
            Finding::new("rights", severity, format!("the user lacks the right to {what}: {}", words(&error)), fix)
        }
        Err((what, error)) => {
            let found = format!("the user's right to {what} is unknown: {}", words(&error));
            Finding::new("rights", Severity::Note, found, "read the broker's log")
        }
    }
}

/// A permission of a user.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Right {
    Configure,
    Write,
    Read,
}

impl std::fmt::Display for Right {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Configure => "declare queues (configure)",
            Self::Write => "write",
            Self::Read => "read",
        })
    }
}

async fn try_rights(channel: &Channel) -> Result<(), (Right, lapin::Error)> {
    // With a colon, as in every name of Postrider's that is not a user's queue.
    let name = format!("postrider:doctor:{:016x}", rand::random::<u64>());
    let name = || name.clone().into();
    let passing = QueueDeclareOptions { exclusive: true, auto_delete: true, ..QueueDeclareOptions::default() };
    let configure = |error| (Right::Configure, error);
    channel.queue_declare(name(), passing, FieldTable::default()).await.map_err(configure)?;
    let write = |error| (Right::Write, error);
    channel.confirm_select(ConfirmSelectOptions::default()).await.map_err(write)?;
    let options = BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() };
    let sent = channel.basic_publish("".into(), name(), options, b"", BasicProperties::default()).await;
    sent.map_err(write)?.await.map_err(write)?;
    channel.basic_get(name(), BasicGetOptions { no_ack: true }).await.map_err(|error| (Right::Read, error))?;
    channel.queue_delete(name(), QueueDeleteOptions::default()).await.map_err(configure)?;
    Ok(())
}

/// A note on `consumer_timeout`: the broker reports its value neither by AMQP nor by the management interface.
fn consumer_timeout(options: &RabbitmqOptions) -> Finding {
    let (timeout, longest) = (show(options.consumer_timeout), show(options.longest_hold()));
    Finding::new(
        "leases",
        Severity::Note,
        format!(
            "a lease can last {longest} if the broker's consumer_timeout is {timeout}; the broker does not report its value, \
             and a shorter one requeues messages that workers still hold"
        ),
        "compare with `rabbitmqctl eval 'application:get_env(rabbit, consumer_timeout).'` (milliseconds), and set \
         common.messaging.rabbitmq.consumer_timeout_seconds to that value",
    )
}
