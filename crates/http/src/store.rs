//! What all connections to one server share.

use std::sync::Arc;

use postrider_core::{BoxFuture, Capabilities, Deadline, Feature, MessagingError, Support};
use postrider_wire::Code;
use postrider_wire::capabilities::CapabilityTable;

use crate::PROVIDER;
use crate::options::{HttpOptions, own_name};
use crate::provider::HttpProvider;
use crate::transport::{Ask, Transport};

const CONNECT: &str = "connect";

/// A server. Clones are the same server.
#[derive(Debug, Clone)]
pub struct HttpStore {
    pub(crate) shared: Arc<Shared>,
}

#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) transport: Arc<Transport>,
    pub(crate) capabilities: Capabilities,
    pub(crate) worker: String,
    server: String,
}

impl HttpStore {
    /// Opens the server at a URL, `http://host:port[/prefix]` or `https://…`. Fails when nobody answers there, and when
    /// whoever does is no Postrider server or does not know the token.
    pub fn open(url: &str, options: HttpOptions) -> BoxFuture<'_, Result<Self, MessagingError>> {
        Box::pin(async move {
            let transport = Transport::new(url, &options)?;
            Self::meet(transport, options.worker, Deadline::default()).await
        })
    }

    pub(crate) async fn meet(
        transport: Transport,
        worker: Option<String>,
        deadline: Deadline,
    ) -> Result<Self, MessagingError> {
        let asked = deadline.limit(transport.look_or_refuse(Ask::get("/v1/capabilities"))).await;
        let asked = asked.ok_or(MessagingError::DeadlineExceeded { operation: CONNECT })?;
        let table: CapabilityTable = asked.map_err(|undone| match undone.code() {
            // It speaks like a server of ours, and has nothing there.
            Some(Code::NotFound) => {
                let why = format!("a server is there, and nothing at '{}'; correct the path", transport.place());
                MessagingError::invalid("URL", why)
            }
            _ => undone.into_look_error(CONNECT),
        })?;
        let server = format!("{} with {}, version {}", transport.place(), table.provider, table.server_version);
        // Whatever its store needs, the server keeps for whoever shows the receipt.
        let capabilities = table.into_capabilities(PROVIDER).with(Feature::PortableReceipts, Support::Native);
        let worker = worker.unwrap_or_else(own_name);
        Ok(Self { shared: Arc::new(Shared { transport: Arc::new(transport), capabilities, worker, server }) })
    }

    /// One more connection, in the sense of the contract: each is closed by itself.
    pub fn connect(&self) -> Result<HttpProvider, MessagingError> {
        HttpProvider::new(self.clone())
    }

    /// Where the server is, what its store is and which version it has, in words.
    pub fn server(&self) -> &str {
        &self.shared.server
    }
}
