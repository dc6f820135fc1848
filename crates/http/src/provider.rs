//! A connection to a server.

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
use crate::failure::Failure;
use crate::store::HttpStore;
use crate::transport::{Request, Transport};

/// Upper bound of the bytes of rows in one request. As JSON they may be several times as many; if the server refuses the
/// request as too large, it is split.
const MAX_BATCH_BYTES: usize = 2 * 1024 * 1024;

/// A connection to a server. Clones share the connection and are closed together.
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
        let config = CoalescerConfig { max_bytes: MAX_BATCH_BYTES, ..CoalescerConfig::new(PROVIDER) };
        let (coalescer, drivers) = Coalescer::new(Batches { transport: transport.clone() }, config)?;
        // A task, because a caller that is not polled must not delay others.
        drivers.spawn();
        let can_extend = store.shared.capabilities.offers(Feature::ExtendLease);
        let resolution = store.shared.capabilities.limits.time_resolution;
        let returns = Returns::new(move |receipts| {
            let transport = transport.clone();
            async move {
                if !can_extend {
                    return Ok(());
                }
                return_leases(&transport, &receipts, resolution).await
            }
        });
        Ok(Self { inner: Arc::new(Inner { store, coalescer, returns, under_way: UnderWay::new(PROVIDER) }) })
    }

    /// The server of this connection.
    pub fn store(&self) -> &HttpStore {
        &self.inner.store
    }

    pub(crate) fn transport(&self) -> &Arc<Transport> {
        &self.inner.store.shared.transport
    }

    pub(crate) fn table(&self) -> &Capabilities {
        &self.inner.store.shared.capabilities
    }

    /// Checks that the connection is open and the deadline has not passed.
    pub(crate) fn begin(&self, operation: &'static str, deadline: Deadline) -> Result<(), MessagingError> {
        self.inner.under_way.begin(operation, deadline)
    }

    /// Carries out work independently of its caller, which may be dropped at any time.
    pub(crate) async fn carry_out<T: Send + 'static>(
        &self,
        operation: &'static str,
        ids: Vec<MessageId>,
        deadline: Deadline,
        work: impl Future<Output = Result<T, MessagingError>> + Send + 'static,
    ) -> Result<T, MessagingError> {
        self.begin(operation, deadline)?;
        // Boxed to keep the enclosing futures small.
        self.inner.under_way.carry_out(operation, ids, deadline, Box::pin(work)).await?
    }

    /// Sends an idempotent request.
    pub(crate) async fn call<T: serde::de::DeserializeOwned + Send + 'static>(
        &self,
        operation: &'static str,
        request: Request,
        deadline: Deadline,
    ) -> Result<T, MessagingError> {
        let transport = self.transport().clone();
        self.carry_out(operation, Vec::new(), deadline, async move { transport.call(operation, request).await }).await
    }

    /// Sends a request once.
    pub(crate) async fn call_once<T: serde::de::DeserializeOwned + Send + 'static>(
        &self,
        operation: &'static str,
        ids: Vec<MessageId>,
        request: Request,
        deadline: Deadline,
    ) -> Result<T, MessagingError> {
        let (transport, known) = (self.transport().clone(), ids.clone());
        let call = async move {
            transport.call_once(request).await.map_err(|failure: Failure| failure.into_error(operation, known))
        };
        self.carry_out(operation, ids, deadline, call).await
    }

    /// Turns received rows into leased messages.
    pub(crate) fn deliver(&self) -> impl Fn(Vec<Received>) -> Vec<QueuedMessage> + Send + Sync + 'static {
        let returns: Arc<dyn ReturnLease> = self.inner.returns.clone();
        move |received| {
            let message = |received: Received| {
                let id = received.id;
                let parts = received.into_parts().and_then(|parts| parts.2.check_provider(PROVIDER).map(|()| parts));
                match parts {
                    Ok((body, envelope, receipt)) => Some(QueuedMessage::new(body, envelope, receipt, returns.clone())),
                    Err(error) => {
                        // Only this one: the others of the answer are valid.
                        tracing::warn!(%id, %error, "a received message is malformed; its lease expires");
                        None
                    }
                }
            };
            received.into_iter().filter_map(message).collect()
        }
    }
}

/// Returns dropped messages by setting their leases to the shortest duration. A release would not count the delivery, and a
/// retry would count a failed attempt.
async fn return_leases(
    transport: &Transport,
    receipts: &[ReceiptHandle],
    resolution: std::time::Duration,
) -> Result<(), MessagingError> {
    let receipts = receipts.iter().map(ToString::to_string).collect();
    let request = Request::post("/v1/messages/extend", &ExtendRequest { receipts, visibility: resolution })?;
    let _: Rows = transport.call_once(request).await.map_err(Failure::into_connection_error)?;
    Ok(())
}
