//! Receiving: a receiver registers for wake-ups before it looks, so that no message arrives unnoticed.

use std::collections::HashMap;

use postrider_core::{
    Deadline, MessageId, MessagingError, QueueName, ReceiptHandle, ReceiveOptions, SettledAndReceived, Settlement,
};
use tokio::sync::oneshot;

use crate::patience::Patience;
use crate::service::Provider;
use crate::store::{Look, Looked, Store};
use crate::undone::Undone;

/// Whether the settlements name two leases of one message. A store reports results by message, so the expired lease
/// would get the result of the valid one.
pub(crate) fn settles_twice(settlements: &[Settlement]) -> bool {
    let mut leases: HashMap<MessageId, &ReceiptHandle> = HashMap::with_capacity(settlements.len());
    settlements.iter().any(|row| *leases.entry(row.receipt.message_id()).or_insert(&row.receipt) != &row.receipt)
}

impl<S: Store> Provider<S> {
    /// Settles, then leases what is due. When nothing is due, waits as long as the options and the deadline allow.
    pub(crate) async fn receive(
        &self,
        settlements: Vec<Settlement>,
        queues: &[QueueName],
        options: &ReceiveOptions,
        deadline: Deadline,
    ) -> Result<SettledAndReceived, MessagingError> {
        let store = self.store();
        let wait = deadline.at_most(options.wait);
        let imminent = deadline.at_most(store.imminent_within());
        // A caller that has just settled has other work to do.
        let is_idle = settlements.is_empty();
        let mut listener = (!options.wait.is_zero()).then(|| store.listen(queues)).flatten();
        let mut looked = self.look(settlements, queues, options, deadline, listener.as_ref()).await?;
        let settled = std::mem::take(&mut looked.settled);
        let received = loop {
            if let Some(error) = looked.failed {
                break Err(error);
            }
            if !looked.messages.is_empty() {
                break Ok(looked.messages);
            }
            if looked.is_cut_short {
                // The queue may still have a message.
                if deadline.has_passed() {
                    break Err(unfinished());
                }
            } else {
                let is_imminent = looked.is_imminent && is_idle && wait.has_passed();
                if is_imminent && listener.is_none() {
                    listener = store.listen(queues);
                }
                let wait = if is_imminent { imminent } else { wait };
                let Some(listener) = listener.as_ref().filter(|_| !wait.has_passed()) else { break Ok(Vec::new()) };
                if self.wait(listener, queues, &looked, wait).await == Waited::Closed {
                    break Ok(Vec::new());
                }
            }
            if deadline.has_passed() {
                break Ok(Vec::new());
            }
            let was_cut_short = looked.is_cut_short;
            match self.look(Vec::new(), queues, options, deadline, listener.as_ref()).await {
                Ok(again) => looked = again,
                // An earlier look found nothing. A look that the caller's deadline cuts off does not change that,
                // because leases without a caller are released.
                Err(MessagingError::OutcomeUnknown { source: None, .. }) if deadline.has_passed() => {
                    break match was_cut_short {
                        true => Err(unfinished()),
                        false => Ok(Vec::new()),
                    };
                }
                Err(MessagingError::Closed { .. }) => break Ok(Vec::new()),
                Err(error) => break Err(error),
            }
        };
        Ok(SettledAndReceived { settled, received })
    }

    /// Runs one look to its end, even if the caller leaves: leases without a caller are released.
    async fn look(
        &self,
        settlements: Vec<Settlement>,
        queues: &[QueueName],
        options: &ReceiveOptions,
        deadline: Deadline,
        listener: Option<&S::Listener>,
    ) -> Result<Looked, MessagingError> {
        let operation = if settlements.is_empty() { "receive" } else { "settle" };
        let ids: Vec<_> = settlements.iter().map(|settlement| settlement.receipt.message_id()).collect();
        let mut queues = queues.to_vec();
        if queues.len() > 1 {
            // Starts with a random queue, so that none is always the last.
            let first = rand::random_range(0..queues.len());
            queues.rotate_left(first);
        }
        if self.inner.under_way.is_closed() {
            // Messages are left to other connections.
            queues.clear();
        }
        let (caller, patience) = Patience::new(options.wait, deadline, self.inner.under_way.closing());
        let deliver = self.inner.deliver.clone();
        let look = Look { settlements, queues, options: options.clone(), deadline, patience, deliver };
        let store = self.store().clone();
        if let Some(listener) = listener {
            store.begin_look(listener);
        }
        let looked = self.lease(operation, ids, deadline, async move { store.look(look).await }).await?;
        drop(caller);
        if let Some(listener) = listener {
            self.store().end_look(listener, looked.next);
        }
        Ok(looked)
    }

    /// Runs an operation that leases messages. Leases whose caller has left are released.
    pub(crate) async fn lease(
        &self,
        operation: &'static str,
        ids: Vec<MessageId>,
        deadline: Deadline,
        look: impl Future<Output = Result<Looked, Undone>> + Send + 'static,
    ) -> Result<Looked, MessagingError> {
        if !S::SPAWNS {
            return self.carry_out(operation, ids, deadline, look).await;
        }
        let (answer, answered) = oneshot::channel();
        let store = self.store().clone();
        let work = async move {
            if let Err(Ok(unwanted)) = answer.send(look.await) {
                let receipts = unwanted.messages.into_iter().map(|message| message.into_receipt()).collect();
                store.release(receipts).await;
            }
        };
        self.inner.under_way.carry_out(operation, ids.clone(), deadline, work).await?;
        let unknown = || MessagingError::OutcomeUnknown { operation, ids: ids.clone(), source: None };
        answered.await.map_err(|_| unknown())?.map_err(|error| error.into_error(operation, ids))
    }

    async fn wait(&self, listener: &S::Listener, queues: &[QueueName], looked: &Looked, wait: Deadline) -> Waited {
        let mut closing = self.inner.under_way.closing();
        let news = async {
            tokio::select! {
                biased;
                _ = closing.wait_for(|closed| *closed) => Waited::Closed,
                () = self.store().news(listener, queues, looked.next) => Waited::LookAgain,
            }
        };
        wait.limit(news).await.unwrap_or(Waited::LookAgain)
    }
}

/// The deadline passed while dead messages were moved away.
fn unfinished() -> MessagingError {
    MessagingError::busy("the deadline passed while dead messages were moved; receive again")
}

#[derive(Debug, PartialEq, Eq)]
enum Waited {
    LookAgain,
    Closed,
}

#[cfg(test)]
mod tests {
    use postrider_core::{LeaseToken, NativeRef};

    use super::*;

    #[test]
    fn two_leases_of_one_message_are_found_and_one_lease_twice_is_not() {
        let receipt = |id, token| {
            let queue = QueueName::new("orders").unwrap();
            Settlement::ack(ReceiptHandle::new("test", queue, id, LeaseToken(token), NativeRef::Row(1)))
        };
        let (one, other) = (MessageId::generate(), MessageId::generate());
        assert!(!settles_twice(&[receipt(one, 1), receipt(other, 1), receipt(one, 1)]));
        assert!(settles_twice(&[receipt(one, 1), receipt(other, 1), receipt(one, 2)]));
    }
}
