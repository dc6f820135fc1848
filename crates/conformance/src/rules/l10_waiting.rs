//! L10: an operator can dead-letter or delete one waiting message, with a record.

use std::time::Duration;

use postrider_core::{
    ArchiveFilter, ArchiveQuery, ArchivedState, DeadLetters, Feature, LiveState, Message, MessageId, MessagingError,
    Nack, PeekCursor, PeekPage, PeekQuery, QueueAdmin, QueueName,
};

use tokio::time::Instant;

use crate::probe::{Check, LONG, Probe, ensure, ensure_invalid_cursor, ensure_same, soon};

async fn dead_letter(probe: &Probe<'_>, queue: &QueueName, id: MessageId) -> Result<(), MessagingError> {
    probe.provider.dead_letter_waiting(queue, id, "by hand".into(), Some("it is wrong".into()), soon()).await
}

fn ensure_missing(what: &str, answer: Result<(), MessagingError>) -> Check {
    ensure(matches!(answer, Err(MessagingError::MessageNotFound { .. })), || format!("{what} answered {answer:?}"))
}

async fn page(
    probe: &Probe<'_>,
    queue: &QueueName,
    limit: usize,
    after: Option<PeekCursor>,
) -> Result<PeekPage, MessagingError> {
    let page = probe.provider.peek_page(queue, &PeekQuery { limit, after }, soon()).await?;
    match page.messages.len() <= limit {
        true => Ok(page),
        false => Err(MessagingError::invalid("page", format!("{} messages of {limit}", page.messages.len()))),
    }
}

fn ids(page: &PeekPage) -> Vec<MessageId> {
    page.messages.iter().map(|message| message.id).collect()
}

pub(super) async fn l10_waiting_messages_are_listed_by_pages(probe: &Probe<'_>) -> Check {
    let (queue, other) = (probe.queue("paged").await?, probe.queue("paged-beside").await?);
    let mut sent = Vec::new();
    for number in 0..6 {
        let message = Message::new(format!("{number}")).header("number", number.to_string())?;
        let is_late = number == 4 && probe.offers(Feature::Delay);
        sent.push(probe.send(&queue, if is_late { message.delay(LONG) } else { message }).await?);
        probe.send(&other, Message::new("beside")).await?;
    }
    // Leased and delayed messages are listed in place.
    let leased = probe.take(&queue, &probe.long()).await?;
    ensure_same("the leased message", leased.id(), sent[0])?;
    for limit in [1, 2, 3, 6, 100] {
        let (mut listed, mut after) = (Vec::new(), None);
        loop {
            let page = page(probe, &queue, limit, after).await?;
            listed.extend(ids(&page));
            after = page.next;
            if after.is_none() || listed.len() > sent.len() {
                break;
            }
        }
        ensure_same("what pages list", listed, sent.clone())?;
    }
    let first = page(probe, &queue, 2, None).await?;
    let (head, second) = (&first.messages[0], &first.messages[1]);
    ensure_same("the state of the leased message", head.state, LiveState::Processing)?;
    ensure_same("the state of a waiting message", second.state, LiveState::Pending)?;
    ensure_same("a header", second.headers.get("number"), Some("1"))?;
    // Messages that come and go between two pages do not shift the others.
    probe.ack(leased).await?;
    let last = probe.send(&queue, Message::new("last")).await?;
    let rest = page(probe, &queue, 100, first.next).await?;
    ensure_same("the rest after a change", ids(&rest), [&sent[2..], &[last]].concat())?;
    let empty = probe.provider.peek_page(&queue, &PeekQuery { limit: 0, after: None }, soon()).await;
    ensure(matches!(empty, Err(MessagingError::InvalidInput { .. })), || format!("a limit of 0 answered {empty:?}"))?;
    let query = PeekQuery { after: Some(PeekCursor("nonsense".into())), ..PeekQuery::default() };
    ensure_invalid_cursor(probe.provider.peek_page(&queue, &query, soon()).await.map(drop))?;
    let missing = probe.unmade_queue("missing")?;
    ensure_same("the messages of no queue", ids(&page(probe, &missing, 9, None).await?), vec![])
}

pub(super) async fn l10_a_waiting_message_is_dead_lettered_by_hand(probe: &Probe<'_>) -> Check {
    let queue = probe.queue("byhand").await?;
    let keyed = |message: Message| match probe.offers(Feature::OrderByKey) {
        true => message.ordering_key("k"),
        false => Ok(message),
    };
    let id = probe.send(&queue, keyed(Message::new("one").header("tenant", "acme")?)?).await?;
    let next = probe.send(&queue, keyed(Message::new("two"))?).await?;
    let first = probe.take(&queue, &probe.long()).await?;
    ensure_same("the first message", first.id(), id)?;
    probe.nack(first, Nack::retry_after(LONG).with_error("first failure")).await?;
    dead_letter(probe, &queue, id).await?;
    let letter = probe.provider.get_dead_letter(&queue, id, soon()).await?;
    ensure_same("the listed letters", probe.dead_letters(&queue).await?, vec![letter.clone()])?;
    ensure_same("the body", &letter.body[..], &b"one"[..])?;
    ensure_same("a header", letter.headers.get("tenant"), Some("acme"))?;
    ensure_same("the reason", letter.reason.as_str(), "by hand")?;
    ensure_same("the error", letter.error.as_deref(), Some("it is wrong"))?;
    ensure_same("the deliveries", letter.deliveries_count, 1)?;
    ensure_same("the failures", letter.attempts_count, 1)?;
    let message = probe.take(&queue, &probe.long()).await?;
    ensure_same("the next message of its key", message.id(), next)?;
    probe.ack(message).await?;
    probe.nothing(&queue, "it was dead-lettered").await?;
    ensure_missing("to dead-letter it again", dead_letter(probe, &queue, id).await)?;
    ensure_missing("to deliver it now", probe.provider.deliver_now(&queue, id, soon()).await)?;
    let unnamed = probe.send(&queue, Message::new("three")).await?;
    let refused = probe.provider.dead_letter_waiting(&queue, unnamed, "".into(), None, soon()).await;
    ensure(matches!(refused, Err(MessagingError::InvalidInput { .. })), || {
        format!("a dead-lettering without a reason answered {refused:?}")
    })?;
    ensure_same("the message that stays", probe.take(&queue, &probe.long()).await?.id(), unnamed)
}

pub(super) async fn l10_a_leased_message_is_not_taken_from_its_worker(probe: &Probe<'_>) -> Check {
    let queue = probe.queue("leased").await?;
    let id = probe.send(&queue, Message::new("one")).await?;
    let message = probe.take(&queue, &probe.long()).await?;
    let provider = &probe.provider;
    for (what, answer) in [
        ("to deliver it now", provider.deliver_now(&queue, id, soon()).await),
        ("to dead-letter it", dead_letter(probe, &queue, id).await),
        ("to delete it", provider.delete_waiting(&queue, id, soon()).await),
    ] {
        ensure(matches!(answer, Err(MessagingError::MessageLeased { .. })), || {
            format!("{what} while a worker has it answered {answer:?}")
        })?;
    }
    ensure_same("the dead letters", probe.dead_letters(&queue).await?, vec![])?;
    probe.ack(message).await?;
    // An expired lease does not protect the message.
    let id = probe.send(&queue, Message::new("two")).await?;
    let late = probe.take(&queue, &probe.short()).await?;
    let receipt = late.into_receipt();
    let end = Instant::now() + probe.time_limit();
    loop {
        match dead_letter(probe, &queue, id).await {
            Err(MessagingError::MessageLeased { .. }) if Instant::now() < end => {
                tokio::time::sleep(probe.unit / 4).await;
            }
            answer => break answer?,
        }
    }
    let settled = probe.ack(receipt).await;
    ensure(matches!(settled, Err(MessagingError::VisibilityExpired { .. })), || {
        format!("the late worker's ack answered {settled:?}")
    })?;
    let dead: Vec<_> = probe.dead_letters(&queue).await?.iter().map(|letter| letter.id).collect();
    ensure_same("the dead letters", dead, vec![id])
}

pub(super) async fn l10_a_deleted_message_leaves_a_record(probe: &Probe<'_>) -> Check {
    let queue = probe.queue("deleted").await?;
    let id = probe.send(&queue, Message::new("one")).await?;
    let stays = probe.send(&queue, Message::new("two")).await?;
    probe.provider.delete_waiting(&queue, id, soon()).await?;
    let message = probe.take(&queue, &probe.long()).await?;
    ensure_same("the message that stays", message.id(), stays)?;
    probe.ack(message).await?;
    probe.nothing_within(&queue, Duration::ZERO, "it was deleted").await?;
    ensure_same("the dead letters", probe.dead_letters(&queue).await?, vec![])?;
    let filter = ArchiveFilter { id: Some(id), ..ArchiveFilter::default() };
    let query = ArchiveQuery { filter, ..ArchiveQuery::default() };
    let found = probe.provider.archived(&queue, &query, soon()).await?;
    let found: Vec<_> = found.messages.iter().map(|message| (message.id, message.state)).collect();
    ensure_same("what is kept of it", found, vec![(id, ArchivedState::Failed)])?;
    ensure_missing("to delete it again", probe.provider.delete_waiting(&queue, id, soon()).await)
}
