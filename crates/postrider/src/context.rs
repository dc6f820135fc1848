//! The parts of a running system, made from its configuration.

use std::sync::Arc;

use postrider_core::{BoxFuture, Deadline, MessageClient, MessageRouterKind, MessagingError, MessagingService};
use uuid::Uuid;

use crate::breaker::{CircuitBreaker, Guarded};
use crate::config::{Config, ConfigError, Sources};
use crate::messaging_provider::MessagingProvider;

/// A running system: its configuration, the provider behind its breaker, and the client that uses it.
///
/// ```
/// use postrider::config::{Config, Sources};
/// use postrider::{Deadline, Message, MessagingService, QueueName, SystemContext};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let sources = Sources::none().flag("--url", "common.messaging.url", "memory:");
/// let context = SystemContext::from_config(Config::load(&sources)?).await?;
///
/// let orders = QueueName::new("orders")?;
/// context.messaging_provider.send_message(&orders, Message::new("one"), Deadline::default()).await?;
/// let options = context.config.common().messaging.receive_options();
/// let received = context.messaging_provider.receive_messages(&orders, &options, Deadline::default()).await?;
/// assert_eq!(received.len(), 1);
///
/// context.close(Deadline::default()).await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct SystemContext {
    /// The id of this process.
    pub processor_uuid: Uuid,
    /// Its configuration.
    pub config: Arc<Config>,
    /// The provider.
    pub messaging_provider: Arc<Guarded<MessagingProvider>>,
    /// The client for workflow messages, on the same provider.
    pub message_client: Arc<MessageClient<Guarded<MessagingProvider>>>,
}

/// Why a context could not be made.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum ContextError {
    /// The configuration is wrong.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The store cannot be used.
    #[error(transparent)]
    Messaging(#[from] MessagingError),
}

impl SystemContext {
    /// Reads the configuration of this process and connects to the store that it names.
    pub fn connect() -> BoxFuture<'static, Result<Self, ContextError>> {
        Box::pin(async move { Self::from_config(Config::load(&Sources::of_this_process())?).await })
    }

    /// Connects to the store that the configuration names.
    pub fn from_config(config: Config) -> BoxFuture<'static, Result<Self, ContextError>> {
        Box::pin(async move {
            let provider = config.endpoint()?.connect().await?;
            let router = config.router().clone();
            Ok(Self::from_parts(config, provider, router))
        })
    }

    /// Uses the application's own provider and router instead of those that the configuration names.
    pub fn from_parts(config: Config, provider: MessagingProvider, router: impl Into<MessageRouterKind>) -> Self {
        let provider = Arc::new(Guarded::new(provider, config.common().messaging.circuit_breaker));
        Self {
            processor_uuid: Uuid::now_v7(),
            config: Arc::new(config),
            message_client: Arc::new(MessageClient::new(provider.clone(), router)),
            messaging_provider: provider,
        }
    }

    /// The router, which names the queues of workflows.
    pub fn router(&self) -> &MessageRouterKind {
        self.message_client.router()
    }

    /// The circuit breaker.
    pub fn breaker(&self) -> &CircuitBreaker {
        self.messaging_provider.breaker()
    }

    /// Closes the connection for every clone: finishes running calls and starts no new ones.
    pub async fn close(&self, deadline: Deadline) -> Result<(), MessagingError> {
        self.messaging_provider.close(deadline).await
    }
}

#[cfg(test)]
mod tests {
    use postrider_core::workflow_message::StepMessage;
    use postrider_core::{Message, MessageRouter, QueueName, SharedProvider};

    use super::*;
    use crate::breaker::BreakerState;

    fn sources() -> Sources {
        Sources::none().flag("--url", "common.messaging.url", "memory:")
    }

    async fn context(sources: Sources) -> SystemContext {
        SystemContext::from_config(Config::load(&sources).unwrap()).await.unwrap()
    }

    #[tokio::test]
    async fn client_and_provider_use_one_store_with_the_configured_names() {
        let context = context(sources().flag("--prefix", "common.queues.worker_queue_prefix", "w")).await;
        let step = StepMessage::new(Uuid::now_v7(), Uuid::now_v7(), Uuid::now_v7());
        context.message_client.send_step_message("mail", step, Deadline::default()).await.unwrap();
        let queue = context.router().step_queue("mail").unwrap();
        assert_eq!(queue.as_str(), "w_mail_queue");
        let options = context.config.common().messaging.receive_options();
        let received =
            context.messaging_provider.receive_messages(&queue, &options, Deadline::default()).await.unwrap();
        assert_eq!(received.len(), 1);
        assert_eq!(context.breaker().state(), BreakerState::Closed { failures: 0 });
        assert_ne!(context.processor_uuid, Uuid::nil());
    }

    #[tokio::test]
    async fn the_store_is_used_as_configured() {
        let context = context(
            sources()
                .flag("--create", "common.messaging.create_queues", "false")
                .flag("--bytes", "common.messaging.max_message_bytes", "3")
                .flag("--failures", "common.messaging.circuit_breaker.failure_threshold", "9"),
        )
        .await;
        let (provider, queue) = (&context.messaging_provider, QueueName::new("orders").unwrap());
        let send = |body: &'static str| provider.send_message(&queue, Message::new(body), Deadline::default());
        assert!(matches!(send("one").await, Err(MessagingError::QueueNotFound { .. })));
        provider.ensure_queue(&queue, Deadline::default()).await.unwrap();
        send("one").await.unwrap();
        assert!(matches!(send("four").await, Err(MessagingError::InvalidInput { what: "body", .. })));
        assert_eq!(context.breaker().settings().failure_threshold, 9);

        let context = self::context(sources().flag("--bytes", "common.messaging.max_message_bytes", "2000000")).await;
        let large = Message::new(vec![0; 2_000_000]);
        context.messaging_provider.send_message(&queue, large, Deadline::default()).await.unwrap();
    }

    #[tokio::test]
    async fn a_provider_of_the_application_is_guarded_too() {
        let config = Config::load(&sources()).unwrap();
        let (store, router) = (postrider_core::MemoryStore::new(), config.router().clone());
        let provider = MessagingProvider::Custom(SharedProvider::new(store.open()));
        let context = SystemContext::from_parts(config, provider, router);
        let queue = QueueName::new("orders").unwrap();
        context.messaging_provider.send_message(&queue, Message::new("a"), Deadline::default()).await.unwrap();
        assert!(matches!(context.messaging_provider.inner(), MessagingProvider::Custom(_)));
    }

    #[tokio::test]
    async fn close_ends_it_for_every_clone() {
        let context = context(sources()).await;
        context.clone().close(Deadline::default()).await.unwrap();
        let answer = context.messaging_provider.health_check(Deadline::default()).await;
        assert!(matches!(answer, Err(MessagingError::Closed { .. })), "{answer:?}");
    }

    #[tokio::test]
    async fn a_store_that_is_not_known_is_refused_by_its_configuration() {
        let sources = Sources::none().environment([("POSTRIDER_URL", "kafka://host")]);
        let error = SystemContext::from_config(Config::load(&sources).unwrap()).await.unwrap_err();
        assert!(matches!(error, ContextError::Config(_)));
        assert!(error.to_string().starts_with("POSTRIDER_URL: common.messaging.url = kafka://host: scheme 'kafka'"));
    }
}
