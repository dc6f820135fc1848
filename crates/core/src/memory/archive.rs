//! The archive of a store in memory, bounded in age and size.

use std::collections::VecDeque;
use std::time::Duration;

use super::lifecycle::Record;
use crate::archive::{ArchivePage, ArchivePosition, ArchiveQuery, ArchiveWalk, ArchivedMessage, ArchivedState};
use crate::archive_policy::ArchivePolicy;
use crate::clock::Timestamp;
use crate::error::MessagingError;
use crate::message::Message;
use crate::queue_name::QueueName;

use super::store::State;

/// Retention of an archived message.
const RETENTION: Duration = Duration::from_secs(7 * 24 * 3600);

/// Upper bounds of the archive: rows, and bytes of bodies and headers.
const MAX_ROWS: usize = 10_000;
const MAX_BYTES: usize = 64 * 1024 * 1024;

/// Archived messages, oldest end first.
#[derive(Debug)]
pub(super) struct Archive {
    policy: ArchivePolicy,
    rows: VecDeque<(ArchivePosition, ArchivedMessage)>,
    bytes: usize,
    last_row: i64,
}

fn size(message: &ArchivedMessage) -> usize {
    message.body.len() + message.headers.byte_len()
}

impl Archive {
    pub(super) fn new(policy: ArchivePolicy) -> Self {
        Self { policy, rows: VecDeque::new(), bytes: 0, last_row: 0 }
    }

    fn keeps(&self, state: ArchivedState) -> bool {
        match (self.policy, state) {
            (ArchivePolicy::All, _) | (ArchivePolicy::Failed, ArchivedState::Failed) => true,
            (ArchivePolicy::Failed, ArchivedState::Completed) | (ArchivePolicy::None, _) => false,
        }
    }

    fn add(&mut self, message: ArchivedMessage) {
        self.last_row += 1;
        let position = ArchivePosition { archived_at: message.archived_at, row: self.last_row };
        self.bytes += size(&message);
        self.rows.push_back((position, message));
        self.sweep(position.archived_at);
    }

    /// Removes rows beyond the bounds.
    fn sweep(&mut self, now: Timestamp) {
        let until = now.saturating_sub(RETENTION);
        while let Some((position, _)) = self.rows.front()
            && (position.archived_at <= until || self.rows.len() > MAX_ROWS || self.bytes > MAX_BYTES)
            && let Some((_, message)) = self.rows.pop_front()
        {
            self.bytes -= size(&message);
        }
    }
}

impl State {
    /// Archives a message that has ended, if the policy includes it.
    pub(super) fn keep(
        &mut self,
        queue: &QueueName,
        message: Message,
        record: &Record,
        state: ArchivedState,
        now: Timestamp,
    ) {
        if !self.archive.keeps(state) {
            return;
        }
        self.archive.add(ArchivedMessage {
            id: message.id,
            queue: queue.origin(),
            state,
            body: message.body,
            content_type: message.content_type,
            headers: message.headers,
            ordering_key: message.ordering_key,
            priority: message.priority,
            deliveries_count: record.deliveries_count,
            attempts_count: record.attempts_count,
            enqueued_at: record.created_at,
            first_attempt_at: record.first_attempt_at,
            last_attempt_at: record.last_attempt_at,
            archived_at: now,
            last_error: record.last_error.clone(),
        });
    }

    pub(super) fn archived(
        &mut self,
        queue: &QueueName,
        query: &ArchiveQuery,
        now: Timestamp,
    ) -> Result<ArchivePage, MessagingError> {
        self.archive.sweep(now);
        let origin = queue.origin();
        let mut walk = ArchiveWalk::new(query)?;
        loop {
            let step = walk.step();
            let end = self.archive.rows.partition_point(|(position, _)| *position < step.before);
            // The bound of the walk counts rows of this queue only, so that it does not reveal other queues.
            let own = self.archive.rows.range(..end).rev().filter(|(_, message)| message.queue == origin);
            let matched = own.take(step.limit).map(|(position, message)| (*position, query.filter.includes(message)));
            let rows: Vec<_> = matched.collect();
            if !walk.take(&rows) {
                break;
            }
        }
        let (found, next) = walk.finish();
        let messages = found.into_iter().filter_map(|found| {
            let index = self.archive.rows.binary_search_by_key(&found, |(position, _)| *position);
            index.ok().and_then(|index| self.archive.rows.get(index)).map(|(_, message)| message.clone())
        });
        Ok(ArchivePage { messages: messages.collect(), next })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::ManualClock;
    use crate::{
        DeadLetterSelection, DeadLetters, Deadline, Message, MessagingService, Nack, QueueAdmin, ReceiveOptions,
    };
    use crate::{MemoryProvider, MemoryStore};

    async fn end_two(provider: &MemoryProvider, queue: &QueueName) {
        let (deadline, options) = (Deadline::never(), ReceiveOptions::default());
        provider.send_message(queue, Message::new("good"), deadline).await.unwrap();
        let good = provider.receive_messages(queue, &options, deadline).await.unwrap().remove(0);
        provider.ack_message(queue, good, deadline).await.unwrap();
        provider.send_message(queue, Message::new("bad"), deadline).await.unwrap();
        let bad = provider.receive_messages(queue, &options, deadline).await.unwrap().remove(0);
        provider.nack_message(queue, bad, Nack::dead_letter("rejected"), deadline).await.unwrap();
        provider.purge_dead_letters(queue, &DeadLetterSelection::All, deadline).await.unwrap();
    }

    async fn kept(provider: &MemoryProvider, queue: &QueueName) -> Vec<ArchivedState> {
        let query = ArchiveQuery { limit: 20_000, ..ArchiveQuery::default() };
        let page = provider.archived(queue, &query, Deadline::never()).await.unwrap();
        page.messages.iter().map(|message| message.state).collect()
    }

    #[tokio::test]
    async fn the_policy_decides_what_is_kept_and_retention_how_long() {
        use ArchivedState::{Completed, Failed};
        let queue = QueueName::new("orders").unwrap();
        let expected = [
            (ArchivePolicy::All, vec![Failed, Completed]),
            (ArchivePolicy::Failed, vec![Failed]),
            (ArchivePolicy::None, vec![]),
        ];
        for (policy, states) in expected {
            let clock = ManualClock::default();
            let provider = MemoryStore::builder().archive(policy).clock(clock.clone()).build().open();
            end_two(&provider, &queue).await;
            assert_eq!(kept(&provider, &queue).await, states, "{policy:?}");
            clock.advance(RETENTION);
            assert_eq!(kept(&provider, &queue).await, [], "{policy:?}");
        }
    }

    #[tokio::test]
    async fn an_archive_in_memory_is_bounded() {
        let (queue, deadline) = (QueueName::new("orders").unwrap(), Deadline::never());
        let provider = MemoryStore::new().open();
        for round in 0..=MAX_ROWS / 1000 {
            let messages = (0..1000).map(|n| Message::new(format!("{round} {n}"))).collect();
            provider.send_batch(&queue, messages, deadline).await.unwrap();
            let taken = provider.receive_messages(&queue, &ReceiveOptions::batch(1000), deadline).await.unwrap();
            let receipts = taken.into_iter().map(Into::into).collect();
            provider.ack_messages(&queue, receipts, deadline).await.unwrap();
        }
        let query = ArchiveQuery { limit: 9_000, ..ArchiveQuery::default() };
        let first = provider.archived(&queue, &query, deadline).await.unwrap();
        let query = ArchiveQuery { after: first.next, ..query };
        let rest = provider.archived(&queue, &query, deadline).await.unwrap();
        assert_eq!(first.messages.len() + rest.messages.len(), MAX_ROWS);
        assert!(rest.messages.iter().all(|message| !message.body.starts_with(b"0 ")), "the oldest are gone");
        let body = vec![b'x'; 1024 * 1024];
        for _ in 0..70 {
            provider.send_message(&queue, Message::new(body.clone()), deadline).await.unwrap();
            let message =
                provider.receive_messages(&queue, &ReceiveOptions::default(), deadline).await.unwrap().remove(0);
            provider.ack_message(&queue, message, deadline).await.unwrap();
        }
        assert_eq!(kept(&provider, &queue).await.len(), MAX_BYTES / body.len());
    }

    #[tokio::test]
    async fn rows_of_other_queues_are_not_in_a_search() {
        let (provider, deadline) = (MemoryStore::new().open(), Deadline::never());
        let (own, other) = (QueueName::new("own").unwrap(), QueueName::new("other").unwrap());
        for _ in 0..MAX_ROWS / 1000 {
            let messages = (0..1000).map(|_| Message::new("a")).collect();
            provider.send_batch(&other, messages, deadline).await.unwrap();
            let taken = provider.receive_messages(&other, &ReceiveOptions::batch(1000), deadline).await.unwrap();
            let receipts = taken.into_iter().map(Into::into).collect();
            provider.ack_messages(&other, receipts, deadline).await.unwrap();
        }
        let page = provider.archived(&own, &ArchiveQuery::default(), deadline).await.unwrap();
        assert_eq!(page, ArchivePage::default(), "a next page would reveal other queues");
        let page = provider.archived(&other, &ArchiveQuery::default(), deadline).await.unwrap();
        assert!(page.messages.len() == 100 && page.next.is_some());
    }
}
