//! Dead letters on a broker: held for a moment, looked at, moved or removed, and put back.

use std::collections::HashSet;

use postrider_core::{
    DeadLetter, DeadLetterCursor, DeadLetterEdit, DeadLetterPage, DeadLetterQuery, DeadLetterSelection, DeadLetters,
    Deadline, Limits, MessageId, MessagingError, MessagingService, QueueName, Redrive, RedriveReport, RedriveSkip,
    Timestamp,
};

use crate::broker::{Broker, Held, Hold, ids};
use crate::provider::BrokerProvider;
use crate::stored::Stored;

/// So many dead letters are taken from the broker at a time.
const CHUNK: usize = 500;

impl<B: Broker> DeadLetters for BrokerProvider<B> {
    async fn list_dead_letters(
        &self,
        queue: &QueueName,
        query: &DeadLetterQuery,
        deadline: Deadline,
    ) -> Result<DeadLetterPage, MessagingError> {
        query.check()?;
        let (queue, query) = (queue.dead_letters(), query.clone());
        let list = move |broker: B| {
            let (queue, query) = (queue.clone(), query.clone());
            async move { list(&broker, &queue, &query, deadline).await }
        };
        self.repeat("list dead letters", deadline, list).await
    }

    async fn get_dead_letter(
        &self,
        queue: &QueueName,
        id: MessageId,
        deadline: Deadline,
    ) -> Result<DeadLetter, MessagingError> {
        let selection = DeadLetterSelection::Ids(vec![id]);
        let query = DeadLetterQuery { selection, limit: 1, ..DeadLetterQuery::default() };
        let found = self.list_dead_letters(queue, &query, deadline).await?.letters.pop();
        found.ok_or_else(|| MessagingError::MessageNotFound { queue: queue.dead_letters(), id })
    }

    async fn edit_dead_letter(
        &self,
        queue: &QueueName,
        id: MessageId,
        edit: DeadLetterEdit,
        deadline: Deadline,
    ) -> Result<DeadLetter, MessagingError> {
        let (broker, queue) = (self.broker().clone(), queue.dead_letters());
        let limits = self.capabilities().limits.clone();
        let edit = async move { replace(&broker, &queue, id, edit, &limits, deadline).await };
        self.carry_out("edit dead letter", vec![id], deadline, edit).await
    }

    async fn redrive_dead_letters(
        &self,
        queue: &QueueName,
        redrive: &Redrive,
        deadline: Deadline,
    ) -> Result<RedriveReport, MessagingError> {
        let target = redrive.target(queue)?;
        let (broker, queue, redrive) = (self.broker().clone(), queue.dead_letters(), redrive.clone());
        let revive = async move {
            if broker.is_usable(&target, deadline).await?.is_none() {
                if !broker.creates_queues() {
                    return Err(MessagingError::QueueNotFound { queue: target });
                }
                if !redrive.dry_run {
                    broker.ensure_queue(&target, deadline).await?;
                }
            }
            revive(&broker, &queue, &target, &redrive, deadline).await
        };
        self.carry_out("redrive", Vec::new(), deadline, revive).await
    }

    async fn purge_dead_letters(
        &self,
        queue: &QueueName,
        selection: &DeadLetterSelection,
        deadline: Deadline,
    ) -> Result<u64, MessagingError> {
        let (broker, queue, selection) = (self.broker().clone(), queue.dead_letters(), selection.clone());
        let purge = async move {
            let mut hold = broker.hold(&queue, deadline).await?;
            let purged = purge(&mut hold, &selection).await;
            // Whatever went wrong, the others are let go.
            let back = hold.put_back().await;
            purged.and_then(|purged| back.map(|()| purged))
        };
        self.carry_out("purge dead letters", Vec::new(), deadline, purge).await
    }
}

/// A page: what this connection has leased of them first, because the broker shows it to nobody, then those that lie
/// there, in their order. Where a page ended is told by how many were passed.
async fn list<B: Broker>(
    broker: &B,
    queue: &QueueName,
    query: &DeadLetterQuery,
    deadline: Deadline,
) -> Result<DeadLetterPage, MessagingError> {
    let passed = match &query.after {
        None => 0,
        Some(cursor) => cursor
            .0
            .parse::<usize>()
            .map_err(|_| MessagingError::invalid("cursor", format!("'{}' ends no page", cursor.0)))?,
    };
    let mut hold = broker.hold(queue, deadline).await?;
    let page = page(&mut hold, broker.leased(queue), queue, query, passed).await;
    let back = hold.put_back().await;
    page.and_then(|page| back.map(|()| page))
}

async fn page<H: Hold>(
    hold: &mut H,
    leased: Vec<Stored>,
    queue: &QueueName,
    query: &DeadLetterQuery,
    passed: usize,
) -> Result<DeadLetterPage, MessagingError> {
    let mut page = DeadLetterPage { letters: Vec::new(), next: None };
    let mut known = HashSet::new();
    let mut position = 0;
    let mut waiting = leased;
    loop {
        for stored in waiting.drain(..) {
            // A copy that was made before a crash and whose original is still there is the same dead letter.
            let is_new = known.insert(stored.id);
            let is_wanted = is_new && position >= passed && query.selection.includes(stored.id, &stored.reason());
            if is_wanted && page.letters.len() == query.limit {
                page.next = Some(DeadLetterCursor(position.to_string()));
                return Ok(page);
            }
            if is_wanted {
                page.letters.push(stored.into_dead_letter(queue));
            }
            position += 1;
        }
        let all_found = matches!(&query.selection, DeadLetterSelection::Ids(ids) if page.letters.len() == ids.len());
        let more = if all_found { Vec::new() } else { hold.take(CHUNK.min(query.limit.saturating_add(1))).await? };
        if more.is_empty() {
            return Ok(page);
        }
        waiting.extend(more.into_iter().map(|held| held.stored));
    }
}

async fn replace<B: Broker>(
    broker: &B,
    queue: &QueueName,
    id: MessageId,
    edit: DeadLetterEdit,
    limits: &Limits,
    deadline: Deadline,
) -> Result<DeadLetter, MessagingError> {
    if ids(&broker.leased(queue)).contains(&id) {
        return Err(MessagingError::MessageLeased { queue: queue.clone(), id });
    }
    let mut hold = broker.hold(queue, deadline).await?;
    let edited = async {
        let found = find(&mut hold, id).await?;
        let Held { stored, place } = found.ok_or(MessagingError::MessageNotFound { queue: queue.clone(), id })?;
        let edited = stored.edited(edit, limits)?;
        for row in hold.move_to(queue, vec![(place, edited.clone())]).await? {
            row?;
        }
        Ok(edited.into_dead_letter(queue))
    }
    .await;
    let back = hold.put_back().await;
    edited.and_then(|edited| back.map(|()| edited))
}

async fn find<H: Hold>(hold: &mut H, id: MessageId) -> Result<Option<Held>, MessagingError> {
    loop {
        let more = hold.take(CHUNK).await?;
        if more.is_empty() {
            return Ok(None);
        }
        if let Some(found) = more.into_iter().find(|held| held.stored.id == id) {
            return Ok(Some(found));
        }
    }
}

async fn revive<B: Broker>(
    broker: &B,
    queue: &QueueName,
    target: &QueueName,
    redrive: &Redrive,
    deadline: Deadline,
) -> Result<RedriveReport, MessagingError> {
    let mut report = RedriveReport::default();
    for leased in broker.leased(queue) {
        if redrive.selection.includes(leased.id, &leased.reason()) {
            report.skipped.push((leased.id, RedriveSkip::Leased));
        }
    }
    let mut hold = broker.hold(queue, deadline).await?;
    let revived = revive_held(&mut hold, target, redrive, &mut report).await;
    let back = hold.put_back().await;
    revived?;
    back?;
    report.add_missing(&redrive.selection);
    Ok(report)
}

async fn revive_held<H: Hold>(
    hold: &mut H,
    target: &QueueName,
    redrive: &Redrive,
    report: &mut RedriveReport,
) -> Result<(), MessagingError> {
    let mut known: HashSet<_> = report.skipped.iter().map(|(id, _)| *id).collect();
    loop {
        let more = hold.take(CHUNK).await?;
        if more.is_empty() {
            return Ok(());
        }
        let (mut moved, mut doubled, now) = (Vec::new(), Vec::new(), Timestamp::now());
        for Held { stored, place } in more {
            if !redrive.selection.includes(stored.id, &stored.reason()) {
                continue;
            }
            match known.insert(stored.id) {
                true => moved.push((place, stored.revived(now))),
                // The copy of one that goes back to life already.
                false => doubled.push(place),
            }
        }
        let revived: Vec<_> = moved.iter().map(|(_, stored)| stored.id).collect();
        if !redrive.dry_run {
            for row in hold.move_to(target, moved).await? {
                row?;
            }
            hold.remove(&doubled).await?;
        }
        report.redriven.extend(revived);
    }
}

async fn purge<H: Hold>(hold: &mut H, selection: &DeadLetterSelection) -> Result<u64, MessagingError> {
    let mut purged = HashSet::new();
    loop {
        let more = hold.take(CHUNK).await?;
        if more.is_empty() {
            return Ok(purged.len() as u64);
        }
        let chosen = more.into_iter().filter(|held| selection.includes(held.stored.id, &held.stored.reason()));
        let (places, gone): (Vec<_>, Vec<_>) = chosen.map(|held| (held.place, held.stored.id)).unzip();
        hold.remove(&places).await?;
        // A letter that lay there twice was one.
        purged.extend(gone);
    }
}
