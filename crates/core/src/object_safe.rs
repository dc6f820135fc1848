//! The contract behind a pointer, for providers that are not known when a program is built.
//!
//! The traits of [`service`](crate::service) answer futures of the provider's own types, which costs nothing but rules
//! out `dyn`. [`DynProvider`] has the same methods with boxed futures, and every provider has it without writing a
//! line. [`SharedProvider`] goes the other way: it keeps the contract by calling the twin, so an unknown provider fits
//! wherever a known one does, at the price of one allocation a call.
//!
//! The twin has what a provider writes or may write better than the contract's own version. The short forms
//! (`send_message`, `ack_message` and their like) come with the contract and call these.
//!
//! The twin's methods begin with `dyn_`: a provider has both traits, and with the same names every call on one would be
//! ambiguous as soon as both are in scope.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use crate::capabilities::Capabilities;
use crate::dead_letter::{
    DeadLetter, DeadLetterEdit, DeadLetterPage, DeadLetterQuery, DeadLetterSelection, Redrive, RedriveReport,
};
use crate::deadline::Deadline;
use crate::disposition::Settlement;
use crate::error::MessagingError;
use crate::id::MessageId;
use crate::message::Message;
use crate::queue_name::QueueName;
use crate::queued_message::QueuedMessage;
use crate::receipt::ReceiptHandle;
use crate::receive_options::ReceiveOptions;
use crate::service::{
    DeadLetters, MessageAttempt, MessagingService, PeekedMessage, Provider, QueueAdmin, RowResults, SettledAndReceived,
    WakeUps,
};
use crate::stats::{QueueHealthReport, QueueStats};

/// A future whose type is not known.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// A provider of any kind, shared: a clone is the same provider.
#[derive(Clone)]
pub struct SharedProvider(Arc<dyn DynProvider>);

impl SharedProvider {
    /// Hides what kind of provider it is.
    pub fn new(provider: impl Provider) -> Self {
        Self(Arc::new(provider))
    }
}

impl From<Arc<dyn DynProvider>> for SharedProvider {
    fn from(provider: Arc<dyn DynProvider>) -> Self {
        Self(provider)
    }
}

impl fmt::Debug for SharedProvider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SharedProvider").field(&self.0.dyn_provider_name()).finish()
    }
}

/// Writes the twin, its implementation for every provider, and the way back, from one list: a method that is in one
/// cannot be missing in another. `ref` marks an argument that is lent, for as long as the answer is under way.
macro_rules! twin {
    ($(
        $contract:ident [$($plain:item)*] {
            $($name:ident as $twin:ident($($argument:ident: $(ref $lent:tt)? $($given:ty)?),*) -> $answer:ty;)*
        }
    )*) => {
        /// The whole contract of a provider, fit for `dyn`. Every [`Provider`] has it.
        pub trait DynProvider: Send + Sync + 'static {
            /// [`MessagingService::provider_name`]
            fn dyn_provider_name(&self) -> &'static str;

            /// [`MessagingService::capabilities`]
            fn dyn_capabilities(&self) -> &Capabilities;

            $($(
                #[doc = concat!("[`", stringify!($contract), "::", stringify!($name), "`]")]
                fn $twin<'a>(
                    &'a self,
                    $($argument: $(&'a $lent)? $($given)?),*
                ) -> BoxFuture<'a, Result<$answer, MessagingError>>;
            )*)*
        }

        impl<P: Provider> DynProvider for P {
            fn dyn_provider_name(&self) -> &'static str {
                self.provider_name()
            }

            fn dyn_capabilities(&self) -> &Capabilities {
                self.capabilities()
            }

            $($(
                fn $twin<'a>(
                    &'a self,
                    $($argument: $(&'a $lent)? $($given)?),*
                ) -> BoxFuture<'a, Result<$answer, MessagingError>> {
                    Box::pin(<P as $contract>::$name(self, $($argument),*))
                }
            )*)*
        }

        $(
            impl $contract for SharedProvider {
                $($plain)*

                $(
                    async fn $name(
                        &self,
                        $($argument: $(&$lent)? $($given)?),*
                    ) -> Result<$answer, MessagingError> {
                        self.0.$twin($($argument),*).await
                    }
                )*
            }
        )*
    };
}

twin! {
    MessagingService [
        fn provider_name(&self) -> &'static str {
            self.0.dyn_provider_name()
        }

        fn capabilities(&self) -> &Capabilities {
            self.0.dyn_capabilities()
        }
    ] {
        ensure_queue as dyn_ensure_queue(queue: ref QueueName, deadline: Deadline) -> ();
        ensure_queues as dyn_ensure_queues(queues: ref [QueueName], deadline: Deadline) -> ();
        send_batch as dyn_send_batch(
            queue: ref QueueName, messages: Vec<Message>, deadline: Deadline
        ) -> RowResults<MessageId>;
        receive_messages as dyn_receive_messages(
            queue: ref QueueName, options: ref ReceiveOptions, deadline: Deadline
        ) -> Vec<QueuedMessage>;
        settle as dyn_settle(settlements: Vec<Settlement>, deadline: Deadline) -> RowResults<()>;
        settle_and_receive as dyn_settle_and_receive(
            settlements: Vec<Settlement>, queues: ref [QueueName], options: ref ReceiveOptions, deadline: Deadline
        ) -> SettledAndReceived;
        extend_visibility as dyn_extend_visibility(
            queue: ref QueueName, receipt: ref ReceiptHandle, extension: Duration, deadline: Deadline
        ) -> ();
        receive_by_id as dyn_receive_by_id(
            queue: ref QueueName, id: MessageId, options: ref ReceiveOptions, deadline: Deadline
        ) -> Option<QueuedMessage>;
        subscribe as dyn_subscribe(queue: ref QueueName, deadline: Deadline) -> WakeUps;
        health_check as dyn_health_check(deadline: Deadline) -> ();
        close as dyn_close(deadline: Deadline) -> ();
    }

    QueueAdmin [] {
        list_queues as dyn_list_queues(deadline: Deadline) -> Vec<QueueName>;
        queue_stats as dyn_queue_stats(queue: ref QueueName, deadline: Deadline) -> QueueStats;
        verify_queues as dyn_verify_queues(queues: ref [QueueName], deadline: Deadline) -> QueueHealthReport;
        peek as dyn_peek(queue: ref QueueName, limit: usize, deadline: Deadline) -> Vec<PeekedMessage>;
        message_attempts as dyn_message_attempts(
            queue: ref QueueName, id: MessageId, deadline: Deadline
        ) -> Vec<MessageAttempt>;
        purge as dyn_purge(queue: ref QueueName, deadline: Deadline) -> u64;
        pause as dyn_pause(queue: ref QueueName, deadline: Deadline) -> ();
        resume as dyn_resume(queue: ref QueueName, deadline: Deadline) -> ();
        delete_queue as dyn_delete_queue(queue: ref QueueName, deadline: Deadline) -> ();
    }

    DeadLetters [] {
        list_dead_letters as dyn_list_dead_letters(
            queue: ref QueueName, query: ref DeadLetterQuery, deadline: Deadline
        ) -> DeadLetterPage;
        get_dead_letter as dyn_get_dead_letter(
            queue: ref QueueName, id: MessageId, deadline: Deadline
        ) -> DeadLetter;
        edit_dead_letter as dyn_edit_dead_letter(
            queue: ref QueueName, id: MessageId, edit: DeadLetterEdit, deadline: Deadline
        ) -> DeadLetter;
        redrive_dead_letters as dyn_redrive_dead_letters(
            queue: ref QueueName, redrive: ref Redrive, deadline: Deadline
        ) -> RedriveReport;
        purge_dead_letters as dyn_purge_dead_letters(
            queue: ref QueueName, selection: ref DeadLetterSelection, deadline: Deadline
        ) -> u64;
    }
}

#[cfg(test)]
pub(crate) mod fake_provider;

#[cfg(test)]
mod tests {
    use super::fake_provider::FakeProvider;
    use super::*;

    fn orders() -> QueueName {
        QueueName::new("orders").unwrap()
    }

    /// Written for any provider, so that it takes the same path as code that knows nothing of `dyn`.
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
        let attempts = provider.message_attempts(&queue, MessageId::generate(), deadline).await.unwrap();
        assert_eq!(attempts[0].attempt, 3);
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
    async fn a_hidden_provider_is_asked_exactly_what_a_known_one_is() {
        let known = FakeProvider::default();
        call_everything(&known).await;
        let hidden = Arc::new(FakeProvider::default());
        let shared = SharedProvider::from(hidden.clone() as Arc<dyn DynProvider>);
        call_everything(&shared).await;
        assert_eq!(hidden.calls(), known.calls());
        let mut distinct = known.calls();
        distinct.sort_unstable();
        distinct.dedup();
        assert_eq!((distinct.len(), known.calls().len()), (25, 25), "every method once, none by way of another");
    }

    #[tokio::test]
    async fn the_short_forms_work_on_a_hidden_provider() {
        let hidden = Arc::new(FakeProvider::default());
        let shared = SharedProvider::from(hidden.clone() as Arc<dyn DynProvider>);
        let id = shared.send_message(&orders(), Message::new("a"), Deadline::never()).await.unwrap();
        let options = ReceiveOptions::default();
        let received = shared.receive_messages(&orders(), &options, Deadline::never()).await.unwrap().remove(0);
        assert_eq!(received.id(), id);
        shared.ack_message(&orders(), received, Deadline::never()).await.unwrap();
        assert_eq!(hidden.calls(), ["send_batch", "receive_messages", "settle"]);
    }

    #[tokio::test]
    async fn a_provider_can_be_hidden_behind_a_reference() {
        let provider = FakeProvider::default();
        let hidden: &dyn DynProvider = &provider;
        assert_eq!(hidden.dyn_provider_name(), "fake");
        assert_eq!(hidden.dyn_capabilities().provider(), "fake");
        hidden.dyn_health_check(Deadline::never()).await.unwrap();
        let shared = SharedProvider::new(provider);
        assert_eq!(format!("{shared:?}"), r#"SharedProvider("fake")"#);
        assert_eq!(shared.clone().capabilities(), shared.capabilities());
    }
}
