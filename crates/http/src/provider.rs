//! A connection: what callers use.

use std::sync::Arc;

use postrider_core::coalescer::{Coalescer, CoalescerConfig};
use postrider_core::{
    Capabilities, Deadline, Feature, MessageId, MessagingError, QueuedMessage, ReceiptHandle, ReturnLease, Returns,
    UnderWay,
};
use postrider_wire::receive::Received;
use postrider_wire::settle::{ExtendRequest, Rows};

use crate::PROVIDER;
use crate::batches::Batches;
use crate::failure::Undone;
use crate::store::HttpStore;
use crate::transport::{Ask, Transport};

/// So many bytes of rows are in one request. As JSON they may be several times as many; a server that takes fewer says so,
/// and gets them in parts.
const MOST_BYTES: usize = 2 * 1024 * 1024;

/// A connection to a server, in the sense of the contract. Clones are the same connection and close together.
#[derive(Debug, Clone)]
pub struct HttpProvider {
    pub(crate) inner: Arc<Inner>,
}

#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) store: HttpStore,
    pub(crate) coalescer: Coalescer,
    returns: Arc<Returns>,
    pub(crate) under_way: UnderWay,
}

impl HttpProvider {
    pub(crate) fn new(store: HttpStore) -> Result<Self, MessagingError> {
        let transport = store.shared.transport.clone();
        let config = CoalescerConfig { max_bytes: MOST_BYTES, ..CoalescerConfig::new(PROVIDER) };
        let (coalescer, drivers) = Coalescer::new(Batches { transport: transport.clone() }, config)?;
        // A task, because callers who are not polled must not hold up the others.
        drivers.spawn();
        let can_extend = store.shared.capabilities.offers(Feature::ExtendLease);
        let shortest = store.shared.capabilities.limits.time_resolution;
        let returns = Returns::new(move |receipts| {
            let transport = transport.clone();
            async move {
                if !can_extend {
                    return Ok(());
                }
                give_up(&transport, &receipts, shortest).await
            }
        });
        Ok(Self { inner: Arc::new(Inner { store, coalescer, returns, under_way: UnderWay::new(PROVIDER) }) })
    }

    /// The server behind this connection, to open another.
    pub fn store(&self) -> &HttpStore {
        &self.inner.store
    }

    pub(crate) fn transport(&self) -> &Arc<Transport> {
        &self.inner.store.shared.transport
    }

    pub(crate) fn table(&self) -> &Capabilities {
        &self.inner.store.shared.capabilities
    }

    /// What every call asks before it does anything.
    pub(crate) fn begin(&self, operation: &'static str, deadline: Deadline) -> Result<(), MessagingError> {
        self.inner.under_way.begin(operation, deadline)
    }

    /// Carries work out apart from its caller, who may leave at any time.
    pub(crate) async fn carry_out<T: Send + 'static>(
        &self,
        operation: &'static str,
        ids: Vec<MessageId>,
        deadline: Deadline,
        work: impl Future<Output = Result<T, MessagingError>> + Send + 'static,
    ) -> Result<T, MessagingError> {
        self.begin(operation, deadline)?;
        // Boxed, because every future around this one would be as large.
        self.inner.under_way.carry_out(operation, ids, deadline, Box::pin(work)).await?
    }

    /// Asks for something that may be asked twice.
    pub(crate) async fn look<T: serde::de::DeserializeOwned + Send + 'static>(
        &self,
        operation: &'static str,
        ask: Ask,
        deadline: Deadline,
    ) -> Result<T, MessagingError> {
        let transport = self.transport().clone();
        self.carry_out(operation, Vec::new(), deadline, async move { transport.look(operation, ask).await }).await
    }

    /// Asks once for something to be done.
    pub(crate) async fn change<T: serde::de::DeserializeOwned + Send + 'static>(
        &self,
        operation: &'static str,
        ids: Vec<MessageId>,
        ask: Ask,
        deadline: Deadline,
    ) -> Result<T, MessagingError> {
        let (transport, known) = (self.transport().clone(), ids.clone());
        let change =
            async move { transport.change(ask).await.map_err(|undone: Undone| undone.into_error(operation, known)) };
        self.carry_out(operation, ids, deadline, change).await
    }

    /// Turns what came over the wire into messages that are held.
    pub(crate) fn deliver(&self) -> impl Fn(Vec<Received>) -> Vec<QueuedMessage> + Send + Sync + 'static {
        let returns: Arc<dyn ReturnLease> = self.inner.returns.clone();
        move |received| {
            let message = |received: Received| {
                let id = received.id;
                let parts = received.into_parts().and_then(|parts| parts.2.check_provider(PROVIDER).map(|()| parts));
                match parts {
                    Ok((body, envelope, receipt)) => Some(QueuedMessage::new(body, envelope, receipt, returns.clone())),
                    Err(error) => {
                        // Alone: the others of its batch are as good as ever.
                        tracing::warn!(%id, %error, "a message cannot be understood and waits for the end of its lease");
                        None
                    }
                }
            };
            received.into_iter().filter_map(message).collect()
        }
    }
}

/// Gives dropped messages back with their delivery counted: their leases end as soon as the store's clock can tell. A
/// release would take the delivery back, and a retry would count a failure that nobody has told of.
async fn give_up(
    transport: &Transport,
    receipts: &[ReceiptHandle],
    shortest: std::time::Duration,
) -> Result<(), MessagingError> {
    let receipts = receipts.iter().map(ToString::to_string).collect();
    let ask = Ask::post("/v1/messages/extend", &ExtendRequest { receipts, visibility: shortest })?;
    let _: Rows = transport.change(ask).await.map_err(Undone::into_harmless)?;
    Ok(())
}
