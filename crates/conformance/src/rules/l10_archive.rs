//! L10: a message is archived after its end, can be found in the archive, and can be sent again.

use std::time::Duration;

use bytes::Bytes;
use postrider_core::archive::SENT_AGAIN_FROM;
use postrider_core::{
    ArchiveCursor, ArchiveFilter, ArchiveQuery, ArchivedMessage, ArchivedState, ContentType, DeadLetterSelection,
    DeadLetters, Feature, Key, Message, MessageId, MessagingError, MessagingService, Nack, QueueAdmin, QueueName,
};

use crate::probe::{Check, Probe, Stop, ensure, ensure_invalid_cursor, ensure_same, soon, violation};

/// Upper bound of pages of a search.
const MOST_PAGES: usize = 100;

/// Every message that a search finds, page by page.
async fn search(
    probe: &Probe<'_>,
    queue: &QueueName,
    filter: ArchiveFilter,
    limit: usize,
) -> Result<Vec<ArchivedMessage>, Stop> {
    let (mut found, mut query) = (Vec::new(), ArchiveQuery { filter, limit, after: None });
    for _ in 0..MOST_PAGES {
        let page = probe.provider.archived(queue, &query, soon()).await?;
        ensure(page.messages.len() <= limit, || format!("a page of {limit} has {} messages", page.messages.len()))?;
        found.extend(page.messages);
        query.after = page.next;
        if query.after.is_none() {
            return Ok(found);
        }
    }
    violation(format!("the search does not end: {found:?}"))
}

async fn find(probe: &Probe<'_>, queue: &QueueName, filter: ArchiveFilter) -> Result<Vec<MessageId>, Stop> {
    let found = search(probe, queue, filter, 10).await?;
    Ok(found.iter().map(|message| message.id).collect())
}

fn by_id(id: MessageId) -> ArchiveFilter {
    ArchiveFilter { id: Some(id), ..ArchiveFilter::default() }
}

/// Sends a message and lets its handler acknowledge it.
async fn handle(probe: &Probe<'_>, queue: &QueueName, message: Message) -> Result<MessageId, Stop> {
    let id = probe.send(queue, message).await?;
    probe.ack(probe.take(queue, &probe.long()).await?).await?;
    Ok(id)
}

pub(super) async fn l10_a_message_is_kept_after_its_end(probe: &Probe<'_>) -> Check {
    let queue = probe.queue("kept").await?;
    let body = Bytes::from_static(b"\x00\xffraw");
    let mut message = Message::new(body.clone()).content_type(ContentType::parse("image/png")?);
    message = message.header("tenant", "acme")?;
    if probe.offers(Feature::OrderByKey) {
        message = message.ordering_key("k")?;
    }
    let sent = message.clone();
    let id = probe.send(&queue, message).await?;
    let first = probe.take(&queue, &probe.long()).await?;
    let accepted = first.envelope.enqueued_at;
    probe.nack(first, Nack::retry_after(Duration::ZERO).with_error("first failure")).await?;
    ensure_same("the archive's entries of a live message", find(probe, &queue, by_id(id)).await?, vec![])?;
    let second = probe.take(&queue, &probe.long()).await?;
    let first_attempt_at = second.envelope.first_attempt_at;
    probe.ack(second).await?;

    let found = search(probe, &queue, ArchiveFilter::default(), 10).await?;
    let [kept] = &found[..] else { return violation(format!("the archive has {found:?}")) };
    ensure_same("the id", kept.id, id)?;
    ensure_same("the queue", &kept.queue, &queue)?;
    ensure_same("the state", kept.state, ArchivedState::Completed)?;
    ensure_same("the body", &kept.body, &body)?;
    ensure_same("the content type", &kept.content_type, &sent.content_type)?;
    ensure_same("the headers", &kept.headers, &sent.headers)?;
    ensure_same("the ordering key", &kept.ordering_key, &sent.ordering_key)?;
    ensure_same("the priority", kept.priority, sent.priority)?;
    ensure_same("the deliveries", kept.deliveries_count, 2)?;
    ensure_same("the failures", kept.attempts_count, 1)?;
    ensure_same("when it was accepted", kept.enqueued_at, accepted)?;
    ensure_same("when it was first delivered", kept.first_attempt_at, Some(first_attempt_at))?;
    ensure_same("the last error", kept.last_error.as_deref(), Some("first failure"))?;
    let last = kept.last_attempt_at.unwrap_or_default();
    ensure(first_attempt_at <= last && last <= kept.archived_at, || format!("the times are out of order: {kept:?}"))?;

    let dead = probe.send(&queue, Message::new("dead")).await?;
    let message = probe.take(&queue, &probe.long()).await?;
    probe.nack(message, Nack::dead_letter("rejected").with_error("no")).await?;
    ensure_same("what is archived of a dead letter", find(probe, &queue, by_id(dead)).await?, vec![])?;
    let purged = probe.provider.purge_dead_letters(&queue, &DeadLetterSelection::All, soon()).await?;
    ensure_same("the purged dead letters", purged, 1)?;
    let found = search(probe, &queue, by_id(dead), 10).await?;
    let [kept] = &found[..] else { return violation(format!("the archive has {found:?} of a purged dead letter")) };
    ensure_same("the state of a purged dead letter", kept.state, ArchivedState::Failed)?;
    ensure_same("its queue", &kept.queue, &queue)?;
    ensure_same("its body", &kept.body[..], &b"dead"[..])?;
    ensure_same("its deliveries", kept.deliveries_count, 1)?;
    ensure_same("its last error", kept.last_error.as_deref(), Some("no"))
}

pub(super) async fn l10_the_archive_is_searched(probe: &Probe<'_>) -> Check {
    let (queue, other) = (probe.queue("search").await?, probe.queue("other").await?);
    let has_keys = probe.offers(Feature::OrderByKey);
    let mut ids = Vec::new();
    for (key, tenant) in [("a", "acme"), ("b", "acme"), ("a", "zoo's \"first\"")] {
        let mut message = Message::new("x").header("x.tenant-1", tenant)?;
        if has_keys {
            message = message.ordering_key(key)?;
        }
        ids.push(handle(probe, &queue, message).await?);
    }
    let elsewhere = handle(probe, &other, Message::new("x").header("x.tenant-1", "acme")?).await?;
    let dead = probe.send(&queue, Message::new("dead").header("tenant", "acme")?).await?;
    probe.nack(probe.take(&queue, &probe.long()).await?, Nack::dead_letter("rejected")).await?;
    probe.provider.purge_dead_letters(&queue, &DeadLetterSelection::All, soon()).await?;

    let all = ArchiveFilter::default;
    let newest_first = [dead, ids[2], ids[1], ids[0]].to_vec();
    let listed = search(probe, &queue, all(), 10).await?;
    let listed_ids: Vec<_> = listed.iter().map(|message| message.id).collect();
    ensure_same("what the archive has", listed_ids, newest_first.clone())?;
    ensure_same("what is archived of another queue", find(probe, &other, all()).await?, vec![elsewhere])?;
    for id in &newest_first {
        ensure_same("what has an id", find(probe, &queue, by_id(*id)).await?, vec![*id])?;
    }
    ensure_same("what has the id of another queue", find(probe, &queue, by_id(elsewhere)).await?, vec![])?;
    let header = |name: &str, value: &str| ArchiveFilter { header: Some((name.into(), value.into())), ..all() };
    ensure_same("what has a header", find(probe, &queue, header("x.tenant-1", "acme")).await?, vec![ids[1], ids[0]])?;
    let quoted = find(probe, &queue, header("x.tenant-1", "zoo's \"first\"")).await?;
    ensure_same("what has a header with quotes", quoted, vec![ids[2]])?;
    ensure_same("what has half a value", find(probe, &queue, header("x.tenant-1", "acm")).await?, vec![])?;
    ensure_same("what has a value in capitals", find(probe, &queue, header("x.tenant-1", "ACME")).await?, vec![])?;
    ensure_same("what has another header", find(probe, &queue, header("x", "acme")).await?, vec![])?;
    if has_keys {
        let key =
            |key: &str| Key::new("ordering key", key).map(|key| ArchiveFilter { ordering_key: Some(key), ..all() });
        ensure_same("what has a key", find(probe, &queue, key("a")?).await?, vec![ids[2], ids[0]])?;
        ensure_same("what has a key in capitals", find(probe, &queue, key("A")?).await?, vec![])?;
        let both = ArchiveFilter { header: Some(("x.tenant-1".into(), "acme".into())), ..key("a")? };
        ensure_same("what has a key and a header", find(probe, &queue, both).await?, vec![ids[0]])?;
    }
    let state = |state| ArchiveFilter { state: Some(state), ..all() };
    ensure_same(
        "what was handled",
        find(probe, &queue, state(ArchivedState::Completed)).await?,
        newest_first[1..].to_vec(),
    )?;
    ensure_same("what was purged", find(probe, &queue, state(ArchivedState::Failed)).await?, vec![dead])?;
    for at in listed.iter().map(|message| message.archived_at) {
        let of = |holds: &dyn Fn(&ArchivedMessage) -> bool| {
            listed.iter().filter(|message| holds(message)).map(|message| message.id).collect::<Vec<_>>()
        };
        let since = find(probe, &queue, ArchiveFilter { since: Some(at), ..all() }).await?;
        ensure_same("what ended since then", since, of(&|message| message.archived_at >= at))?;
        let until = find(probe, &queue, ArchiveFilter { until: Some(at), ..all() }).await?;
        ensure_same("what ended before", until, of(&|message| message.archived_at < at))?;
    }
    Ok(())
}

pub(super) async fn l10_the_archive_is_listed_by_pages(probe: &Probe<'_>) -> Check {
    let queue = probe.queue("pages").await?;
    let missing = probe.unmade_queue("missing")?;
    // Messages that ended at one moment, and at several.
    let sent = probe.send_bodies(&queue, &["a", "b", "c", "d", "e"]).await?;
    let taken = probe.take_all(&queue, sent.len(), &probe.long()).await?;
    let receipts = taken.into_iter().map(Into::into).collect();
    for row in probe.provider.ack_messages(&queue, receipts, soon()).await? {
        row?;
    }
    let mut newest_first = Vec::new();
    for n in 0..4 {
        newest_first.insert(0, handle(probe, &queue, Message::new(n.to_string())).await?);
    }
    let mut expected = [sent, newest_first.clone()].concat();
    expected.sort_unstable();
    for limit in [1, 2, 3, 9, 100] {
        let found = search(probe, &queue, ArchiveFilter::default(), limit).await?;
        ensure(found.is_sorted_by(|one, next| one.archived_at >= next.archived_at), || {
            format!("the newest end is not first: {found:?}")
        })?;
        let mut ids: Vec<_> = found.iter().map(|message| message.id).collect();
        ensure_same("what pages list first", ids.get(..4), Some(&newest_first[..]))?;
        ids.sort_unstable();
        ensure_same("what pages list", ids, expected.clone())?;
    }
    // A message that ends meanwhile does not shift the pages.
    let query = ArchiveQuery { limit: 4, ..ArchiveQuery::default() };
    let first = probe.provider.archived(&queue, &query, soon()).await?;
    handle(probe, &queue, Message::new("late")).await?;
    let mut ids: Vec<_> = first.messages.iter().map(|message| message.id).collect();
    let query = ArchiveQuery { after: first.next, ..ArchiveQuery::default() };
    let rest = probe.provider.archived(&queue, &query, soon()).await?;
    ids.extend(rest.messages.iter().map(|message| message.id));
    ids.sort_unstable();
    ensure_same("what pages list while a message ends", ids, expected)?;

    ensure_same("what is archived of no queue", find(probe, &missing, ArchiveFilter::default()).await?, vec![])?;
    let empty = probe.provider.archived(&queue, &ArchiveQuery { limit: 0, ..ArchiveQuery::default() }, soon()).await;
    ensure(matches!(empty, Err(MessagingError::InvalidInput { .. })), || format!("a limit of 0 answered {empty:?}"))?;
    let query = ArchiveQuery { after: Some(ArchiveCursor("nonsense".into())), ..ArchiveQuery::default() };
    ensure_invalid_cursor(probe.provider.archived(&queue, &query, soon()).await.map(drop))
}

pub(super) async fn l10_an_archived_message_is_sent_again(probe: &Probe<'_>) -> Check {
    let queue = probe.queue("again").await?;
    let mut message = Message::new("\u{1f40e} again").content_type(ContentType::parse("text/plain; charset=utf-8")?);
    message = message.header("tenant", "acme")?;
    if probe.offers(Feature::OrderByKey) {
        message = message.ordering_key("k")?;
    }
    let sent = message.clone();
    let id = probe.send(&queue, message).await?;
    let living = probe.provider.send_again(&queue, id, soon()).await;
    ensure(matches!(living, Err(MessagingError::MessageNotFound { .. })), || {
        format!("a live message was sent again: {living:?}")
    })?;
    probe.nack(probe.take(&queue, &probe.long()).await?, Nack::retry_after(Duration::ZERO)).await?;
    probe.ack(probe.take(&queue, &probe.long()).await?).await?;

    let again = probe.provider.send_again(&queue, id, soon()).await?;
    ensure(again != id, || format!("the new message has the id of the archived one, {id}"))?;
    let message = probe.take(&queue, &probe.long()).await?;
    ensure_same("the id", message.id(), again)?;
    ensure_same("the body", &message.message, &sent.body)?;
    ensure_same("the content type", &message.envelope.content_type, &sent.content_type)?;
    ensure_same("the ordering key", &message.envelope.ordering_key, &sent.ordering_key)?;
    ensure_same("the deliveries", message.receive_count(), 1)?;
    ensure_same("the failures", message.envelope.attempts_count, 0)?;
    let mut headers = message.envelope.headers.clone();
    let named = headers.remove(SENT_AGAIN_FROM);
    ensure_same("what it is named to be sent from", named, Some(id.to_string()))?;
    ensure_same("the other headers", &headers, &sent.headers)?;
    probe.ack(message).await?;
    probe.nothing(&queue, "it was sent again once").await?;
    let mut found = find(probe, &queue, ArchiveFilter::default()).await?;
    found.sort_unstable();
    let mut expected = vec![id, again];
    expected.sort_unstable();
    ensure_same("what the archive has", found, expected)?;
    let unknown = probe.provider.send_again(&queue, MessageId::generate(), soon()).await;
    ensure(matches!(unknown, Err(MessagingError::MessageNotFound { .. })), || {
        format!("a message that is not archived was sent again: {unknown:?}")
    })
}
