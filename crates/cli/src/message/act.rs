//! `postrider message deliver-now`, `dead-letter` and `delete`

use postrider::{DeadLetterReason, Deadline, MessageId, MessagingError, QueueAdmin, QueueName, waiting};
use serde::Serialize;

use super::choice::{Choice, Skip};
use crate::args::Global;
use crate::confirm::{confirm, should_ask};
use crate::failure::Failure;
use crate::output::note;
use crate::progress;
use crate::queues::must_exist;
use crate::session::Session;
use crate::text::counted;

/// Make delayed messages and messages that wait for a retry due now
///
/// A message with an ordering key still waits for earlier messages of its key.
#[derive(Debug, clap::Args)]
pub(super) struct DeliverNow {
    #[command(flatten)]
    choice: Choice,
}

/// Move waiting messages to the dead letters
///
/// 'postrider dlq redrive' sends them again. Asks for confirmation if no ids are given and stdin is a terminal.
#[derive(Debug, clap::Args)]
pub(super) struct DeadLetter {
    #[command(flatten)]
    choice: Choice,

    /// The reason to record, in one word
    #[arg(long, value_name = "REASON")]
    reason: String,

    /// An error text to record
    #[arg(long, value_name = "TEXT")]
    error: Option<String>,
}

/// Remove waiting messages for good
///
/// They are archived like purged dead letters. Asks for confirmation if stdin is a terminal.
#[derive(Debug, clap::Args)]
pub(super) struct Delete {
    #[command(flatten)]
    choice: Choice,
}

/// The operation on a waiting message.
enum Action {
    DeliverNow,
    DeadLetter { reason: DeadLetterReason, error: Option<String> },
    Delete,
}

impl Action {
    async fn apply(&self, session: &Session, queue: &QueueName, id: MessageId) -> Result<(), MessagingError> {
        let (provider, deadline) = (&session.provider, Deadline::default());
        match self {
            Self::DeliverNow => provider.deliver_now(queue, id, deadline).await,
            Self::DeadLetter { reason, error } => {
                provider.dead_letter_waiting(queue, id, reason.clone(), error.clone(), deadline).await
            }
            Self::Delete => provider.delete_waiting(queue, id, deadline).await,
        }
    }

    /// The outcome in JSON.
    fn outcome(&self, dry_run: bool) -> &'static str {
        match (self, dry_run) {
            (Self::DeliverNow, false) => "due_now",
            (Self::DeliverNow, true) => "would_deliver_now",
            (Self::DeadLetter { .. }, false) => "dead_lettered",
            (Self::DeadLetter { .. }, true) => "would_dead_letter",
            (Self::Delete, false) => "deleted",
            (Self::Delete, true) => "would_delete",
        }
    }

    fn question(&self, messages: &str, queue: &QueueName) -> String {
        match self {
            Self::DeliverNow => format!("Make {messages} of '{queue}' due now?"),
            Self::DeadLetter { .. } => format!("Dead-letter {messages} of '{queue}'?"),
            Self::Delete => format!("Remove {messages} of '{queue}' for good?"),
        }
    }

    fn summary(&self, count: u64, dry_run: bool) -> String {
        let (verb, would) = match self {
            Self::DeliverNow => ("due now", "would be due now"),
            Self::DeadLetter { .. } => ("dead-lettered", "would be dead-lettered"),
            Self::Delete => ("removed", "would be removed"),
        };
        let verb = if dry_run { would } else { verb };
        counted(count, &format!("message {verb}"), &format!("messages {verb}"))
    }
}

/// One line of `--json`.
#[derive(Serialize)]
struct Row<'a> {
    id: MessageId,
    queue: &'a QueueName,
    outcome: &'static str,
}

pub(super) async fn deliver_now(global: &Global, command: DeliverNow) -> Result<(), Failure> {
    run(global, command.choice, Action::DeliverNow).await
}

pub(super) async fn dead_letter(global: &Global, command: DeadLetter) -> Result<(), Failure> {
    let (reason, error) = waiting::check_death(command.reason.into(), command.error)?;
    run(global, command.choice, Action::DeadLetter { reason, error }).await
}

pub(super) async fn delete(global: &Global, command: Delete) -> Result<(), Failure> {
    run(global, command.choice, Action::Delete).await
}

async fn run(global: &Global, choice: Choice, action: Action) -> Result<(), Failure> {
    let is_bulk = choice.is_bulk()?;
    let session = global.connect().await?;
    let (queue, dry_run) = (&choice.queue, choice.dry_run);
    must_exist(&session, queue).await?;
    let selected = choice.select(&session).await?;
    let needs_confirmation = is_bulk || matches!(action, Action::Delete);
    if !dry_run && needs_confirmation && !selected.is_empty() && should_ask(choice.yes) {
        let messages = counted(selected.len() as u64, "waiting message", "waiting messages");
        confirm(&action.question(&messages, queue), choice.yes)?;
    }
    let bar = progress::bar("messages");
    bar.set_length(selected.len() as u64);
    let (mut done, mut skipped) = (0, 0);
    for (id, skip) in selected {
        let skip = match skip {
            None if dry_run => None,
            Some(skip) => Some(skip),
            None => match action.apply(&session, queue, id).await {
                Ok(()) => None,
                Err(MessagingError::MessageLeased { .. }) => Some(Skip::Leased),
                Err(MessagingError::MessageNotFound { .. }) => Some(Skip::NotFound),
                Err(error) => {
                    bar.finish_and_clear();
                    if done > 0 {
                        note(format!("{} before this failed:", action.summary(done, false)));
                    }
                    return Err(error.into());
                }
            },
        };
        let (outcome, why) = match skip {
            None => (action.outcome(dry_run), None),
            Some(Skip::Leased) => ("leased", Some("a worker has leased it")),
            Some(Skip::NotFound) => ("not_found", Some("it is not waiting in the queue")),
        };
        *(if why.is_none() { &mut done } else { &mut skipped }) += 1;
        bar.inc(1);
        bar.suspend(|| {
            if let Some(why) = why {
                note(format!("message {id} was skipped: {why}"));
            }
            match session.out.is_json() {
                true => session.out.row(&Row { id, queue, outcome }, ""),
                false => Ok(()),
            }
        })?;
    }
    bar.finish_and_clear();
    if !session.out.is_json() {
        session.out.text(&format!("{}\n", action.summary(done, dry_run)))?;
    }
    let result = match skipped {
        0 => Ok(()),
        skipped => {
            note(counted(skipped, "message was skipped", "messages were skipped"));
            Err(Failure::Reported)
        }
    };
    session.close().await.and(result)
}
