//! A shared provider of any type, for providers that are not known at compile time.
//!
//! The contract returns boxed futures, so `dyn Provider` implements it. [`SharedProvider`] is such a pointer that
//! implements the traits itself, and fits wherever a concrete provider does.

use std::fmt;
use std::sync::Arc;

use crate::hand_on;
use crate::service::{DeadLetters, MessagingService, Provider, QueueAdmin};

/// A shared provider of any type. Clones share the provider.
#[derive(Clone)]
pub struct SharedProvider(Arc<dyn Provider>);

impl SharedProvider {
    /// Erases the type of a provider.
    pub fn new(provider: impl Provider) -> Self {
        Self(Arc::new(provider))
    }
}

impl From<Arc<dyn Provider>> for SharedProvider {
    fn from(provider: Arc<dyn Provider>) -> Self {
        Self(provider)
    }
}

impl fmt::Debug for SharedProvider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SharedProvider").field(&self.0.provider_name()).finish()
    }
}

/// The provider.
macro_rules! hidden {
    ($self:ident, $provider:ident => $call:expr) => {{
        let $provider = &*$self.0;
        $call
    }};
}

impl MessagingService for SharedProvider {
    hand_on!(MessagingService, hidden);
}

impl QueueAdmin for SharedProvider {
    hand_on!(QueueAdmin, hidden);
}

impl DeadLetters for SharedProvider {
    hand_on!(DeadLetters, hidden);
}

#[cfg(test)]
pub(crate) mod fake_provider;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::fake_provider::FakeProvider;
    use super::*;
    use crate::*;

    fn orders() -> QueueName {
        QueueName::new("orders").unwrap()
    }

    /// Generic, so that it calls the traits like code for concrete providers.
    async fn call_everything(provider: &impl Provider) {
        let (queue, queues) = (orders(), [orders()]);
        let (deadline, options) = (Deadline::never(), ReceiveOptions::batch(1));
        provider.ensure_queue(&queue, deadline).await.unwrap();
        provider.ensure_queues(&queues, deadline).await.unwrap();
        let sent: Vec<_> = ["a", "b", "c"].map(Message::new).into();
        let ids: Vec<_> = sent.iter().map(|message| message.id).collect();
        let answered = provider.send_batch(&queue, sent, deadline).await.unwrap();
        assert_eq!(answered.into_iter().map(Result::unwrap).collect::<Vec<_>>(), ids);
        let received = provider.receive_messages(&queue, &options, deadline).await.unwrap().remove(0);
        assert_eq!(&received.message[..], b"a");
        provider.extend_visibility(&queue, received.receipt(), Duration::from_secs(1), deadline).await.unwrap();
        let rows = provider.settle(vec![Settlement::ack(received)], deadline).await.unwrap();
        assert_eq!(rows.len(), 1);
        let both = provider.settle_and_receive(Vec::new(), &queues, &options, deadline).await.unwrap();
        assert_eq!(both.received.unwrap()[0].id(), ids[1]);
        let by_id = provider.receive_by_id(&queue, ids[2], &options, deadline).await.unwrap().unwrap();
        assert_eq!(by_id.id(), ids[2]);
        assert_eq!(provider.subscribe(&queue, deadline).await.unwrap().next().await, Some(()));
        provider.health_check(deadline).await.unwrap();
        assert_eq!(provider.list_queues(deadline).await.unwrap(), queues);
        assert_eq!(provider.queue_stats(&queue, deadline).await.unwrap().ready.value(), Some(1));
        assert_eq!(provider.verify_queues(&queues, deadline).await.unwrap().healthy, queues);
        assert_eq!(provider.peek(&queue, 3, deadline).await.unwrap(), []);
        let query = PeekQuery { after: Some(PeekCursor("x".into())), ..PeekQuery::default() };
        assert_eq!(provider.peek_page(&queue, &query, deadline).await.unwrap().next, query.after);
        let attempts = provider.message_attempts(&queue, MessageId::generate(), deadline).await.unwrap();
        assert_eq!(attempts[0].attempt, 3);
        let query = ArchiveQuery { after: Some(ArchiveCursor("x".into())), ..ArchiveQuery::default() };
        assert_eq!(provider.archived(&queue, &query, deadline).await.unwrap().next, query.after);
        assert_eq!(provider.send_again(&queue, ids[0], deadline).await.unwrap(), ids[0]);
        provider.deliver_now(&queue, ids[0], deadline).await.unwrap();
        provider.dead_letter_waiting(&queue, ids[0], "by hand".into(), None, deadline).await.unwrap();
        provider.delete_waiting(&queue, ids[0], deadline).await.unwrap();
        assert_eq!(provider.purge(&queue, deadline).await.unwrap(), 7);
        provider.pause(&queue, deadline).await.unwrap();
        provider.resume(&queue, deadline).await.unwrap();
        let query = DeadLetterQuery { limit: 2, ..DeadLetterQuery::default() };
        assert_eq!(provider.list_dead_letters(&queue, &query, deadline).await.unwrap().letters.len(), 2);
        let got = provider.get_dead_letter(&queue, ids[0], deadline).await.unwrap();
        assert_eq!((got.id, &got.body[..]), (ids[0], &b"got"[..]));
        let edit = DeadLetterEdit::default();
        let edited = provider.edit_dead_letter(&queue, ids[0], edit, deadline).await.unwrap();
        assert_eq!(&edited.body[..], b"edited");
        let redrive = Redrive { selection: DeadLetterSelection::Ids(ids.clone()), ..Redrive::default() };
        assert_eq!(provider.redrive_dead_letters(&queue, &redrive, deadline).await.unwrap().redriven, ids);
        let all = DeadLetterSelection::All;
        assert_eq!(provider.purge_dead_letters(&queue, &all, deadline).await.unwrap(), 9);
        let missing = provider.delete_queue(&queue, deadline).await.unwrap_err();
        assert!(matches!(missing, MessagingError::QueueNotFound { .. }));
        let closed = provider.close(deadline).await.unwrap_err();
        assert!(matches!(closed, MessagingError::Closed { provider: "fake" }));
    }

    #[tokio::test]
    async fn an_erased_provider_gets_the_same_calls_as_a_concrete_one() {
        let known = FakeProvider::default();
        call_everything(&known).await;
        let hidden = Arc::new(FakeProvider::default());
        let shared = SharedProvider::from(hidden.clone() as Arc<dyn Provider>);
        call_everything(&shared).await;
        assert_eq!(hidden.calls(), known.calls());
        let mut distinct = known.calls();
        distinct.sort_unstable();
        distinct.dedup();
        assert_eq!((distinct.len(), known.calls().len()), (31, 31), "every method is called once and directly");
    }

    #[tokio::test]
    async fn the_short_forms_work_on_an_erased_provider() {
        let hidden = Arc::new(FakeProvider::default());
        let shared = SharedProvider::from(hidden.clone() as Arc<dyn Provider>);
        let id = shared.send_message(&orders(), Message::new("a"), Deadline::never()).await.unwrap();
        let options = ReceiveOptions::default();
        let received = shared.receive_messages(&orders(), &options, Deadline::never()).await.unwrap().remove(0);
        assert_eq!(received.id(), id);
        shared.ack_message(&orders(), received, Deadline::never()).await.unwrap();
        assert_eq!(hidden.calls(), ["send_batch", "receive_messages", "settle"]);
    }

    #[tokio::test]
    async fn a_reference_to_a_provider_can_be_erased() {
        let provider = FakeProvider::default();
        let hidden: &dyn Provider = &provider;
        assert_eq!(hidden.provider_name(), "fake");
        assert_eq!(hidden.capabilities().provider(), "fake");
        hidden.health_check(Deadline::never()).await.unwrap();
        let shared = SharedProvider::new(provider);
        assert_eq!(format!("{shared:?}"), r#"SharedProvider("fake")"#);
        assert_eq!(shared.clone().capabilities(), shared.capabilities());
    }
}
