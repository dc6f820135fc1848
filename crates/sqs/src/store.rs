//! A store: what all connections to one endpoint and prefix share.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use aws_sdk_sqs::config::SharedCredentialsProvider;
use postrider_broker::Connection;
use postrider_core::{BoxFuture, Capabilities, Deadline, MessagingError};
use postrider_provider::Provider;

use crate::calls::Calls;
use crate::clock::SqsClock;
use crate::names::Names;
use crate::options::SqsOptions;
use crate::pause::Pauses;
use crate::queues::Urls;
use crate::url::SqsUrl;
use crate::{SqsProvider, capabilities, connect};

/// Queues of SQS or of an endpoint with its protocol. Clones are the same store.
#[derive(Debug, Clone)]
pub struct SqsStore {
    pub(crate) shared: Arc<Shared>,
}

#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) calls: Calls,
    pub(crate) clock: SqsClock,
    pub(crate) names: Names,
    pub(crate) urls: Urls,
    pub(crate) pauses: Pauses,
    /// Counts receives, so that neither side of a queue is always polled first.
    pub(crate) turns: AtomicUsize,
    credentials: Option<SharedCredentialsProvider>,
    pub(crate) options: SqsOptions,
    pub(crate) capabilities: Capabilities,
}

impl Shared {
    /// Returns the access key that signs calls, or the reason why there is none.
    pub(crate) async fn credentials(&self) -> Result<String, String> {
        use aws_credential_types::provider::ProvideCredentials;
        match &self.credentials {
            Some(provider) => match provider.provide_credentials().await {
                Ok(credentials) => Ok(credentials.access_key_id().to_owned()),
                Err(error) => Err(crate::error::chain(&error)),
            },
            None => Err("the AWS environment, profile and role have none".to_owned()),
        }
    }
}

impl SqsStore {
    /// Opens the store of a URL, `sqs://region[/prefix]` or `sqs+http://host:port[/prefix]`, with the credentials of the
    /// environment, a profile or a role. Fails if SQS does not answer.
    pub fn open(url: &str, options: SqsOptions) -> BoxFuture<'_, Result<Self, MessagingError>> {
        Box::pin(async move {
            let store = Self::prepare(url, options).await?;
            store.shared.check_answers(Deadline::default()).await?;
            Ok(store)
        })
    }

    /// As [`Self::open`], without the check that SQS answers.
    pub(crate) async fn prepare(url: &str, options: SqsOptions) -> Result<Self, MessagingError> {
        options.check()?;
        let (url, clock) = (SqsUrl::parse(url)?, SqsClock::new());
        let (client, credentials) = connect::build(&url, options.connect_timeout, Some(clock.clone())).await?;
        if client.config().region().is_none() {
            return Err(MessagingError::invalid(
                "URL",
                "it names no region and the environment has none; write sqs://region/prefix or set AWS_REGION",
            ));
        }
        let calls = Calls { client, timeout: options.call_timeout, parallel: options.parallel_calls };
        let shared = Shared {
            calls,
            clock,
            names: Names::new(&url.prefix),
            urls: Urls::default(),
            pauses: Pauses::default(),
            turns: AtomicUsize::new(0),
            credentials,
            capabilities: capabilities::of(&options),
            options,
        };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// Opens a connection; each is closed on its own.
    pub fn connect(&self) -> Result<SqsProvider, MessagingError> {
        Ok(SqsProvider(Provider::new(Connection::new(self.clone()))?))
    }
}
