//! A server, shared by all connections to it.

use std::sync::Arc;

use postrider_core::{BoxFuture, Capabilities, Deadline, Feature, MessagingError, Support};
use postrider_wire::Code;
use postrider_wire::capabilities::CapabilityTable;

use crate::PROVIDER;
use crate::options::{HttpOptions, default_worker};
use crate::provider::HttpProvider;
use crate::transport::{Request, Transport};

const CONNECT: &str = "connect";

/// A server. Clones share it.
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
    /// Opens the server at a URL, `http://host:port[/prefix]` or `https://…`. Fails if it cannot be reached, is not a Postrider
    /// server or refuses the token.
    pub fn open(url: &str, options: HttpOptions) -> BoxFuture<'_, Result<Self, MessagingError>> {
        Box::pin(async move {
            let transport = Transport::new(url, &options)?;
            Self::open_with(transport, options.worker, Deadline::default()).await
        })
    }

    pub(crate) async fn open_with(
        transport: Transport,
        worker: Option<String>,
        deadline: Deadline,
    ) -> Result<Self, MessagingError> {
        let answer = deadline.limit(transport.try_call(Request::get("/v1/capabilities"))).await;
        let answer = answer.ok_or(MessagingError::DeadlineExceeded { operation: CONNECT })?;
        let table: CapabilityTable = answer.map_err(|failure| match failure.code() {
            // A problem of a Postrider server, but the path is wrong.
            Some(Code::NotFound) => {
                let why = format!("there is a Postrider server, but not at '{}'; correct the path", transport.server());
                MessagingError::invalid("URL", why)
            }
            _ => failure.into_read_error(CONNECT),
        })?;
        let server = format!("{} with {}, version {}", transport.server(), table.provider, table.server_version);
        // The server settles with any receipt that it issued, whatever its store needs.
        let capabilities = table.into_capabilities(PROVIDER).with(Feature::PortableReceipts, Support::Native);
        let worker = worker.unwrap_or_else(default_worker);
        Ok(Self { shared: Arc::new(Shared { transport: Arc::new(transport), capabilities, worker, server }) })
    }

    /// Opens a connection. Each is closed by itself.
    pub fn connect(&self) -> Result<HttpProvider, MessagingError> {
        HttpProvider::new(self.clone())
    }

    /// URL, store and version of the server, as text.
    pub fn server(&self) -> &str {
        &self.shared.server
    }
}
