//! Builds the SDK client.

use std::time::Duration;

use aws_config::stalled_stream_protection::StalledStreamProtectionConfig;
use aws_config::{BehaviorVersion, Region};
use aws_sdk_sqs::Client;
use aws_sdk_sqs::config::retry::RetryConfig;
use aws_sdk_sqs::config::timeout::TimeoutConfig;
use aws_sdk_sqs::config::{Intercept, SharedCredentialsProvider};
use postrider_core::MessagingError;

use crate::clock::SqsClock;
use crate::transport::Transport;
use crate::url::{DEFAULT_REGION, SqsUrl};

/// Returns a client for the endpoint of a URL, with the credentials of the environment, a profile or a role. It repeats no
/// calls by itself.
pub async fn client(url: &str, connect_timeout: Duration) -> Result<Client, MessagingError> {
    Ok(build(&SqsUrl::parse(url)?, connect_timeout, None::<SqsClock>).await?.0)
}

/// Returns the client and its credentials provider.
pub(crate) async fn build(
    url: &SqsUrl,
    connect_timeout: Duration,
    intercept: Option<impl Intercept + 'static>,
) -> Result<(Client, Option<SharedCredentialsProvider>), MessagingError> {
    let timeouts = TimeoutConfig::builder().connect_timeout(connect_timeout).build();
    let mut loader = aws_config::defaults(BehaviorVersion::latest())
        .http_client(Transport::new()?)
        // A call whose answer was lost may have taken effect: the SDK must not repeat it.
        .retry_config(RetryConfig::disabled())
        .timeout_config(timeouts)
        // It mistakes a connection that opens slowly for a stalled answer. `Calls` has its own time-outs.
        .stalled_stream_protection(StalledStreamProtectionConfig::disabled());
    if let Some(region) = &url.region {
        loader = loader.region(Region::new(region.clone()));
    }
    if let Some(endpoint) = &url.endpoint {
        loader = loader.endpoint_url(endpoint);
    }
    let shared = loader.load().await;
    let mut config = aws_sdk_sqs::config::Builder::from(&shared);
    if shared.region().is_none() && url.endpoint.is_some() {
        config = config.region(Region::new(DEFAULT_REGION));
    }
    if let Some(intercept) = intercept {
        config = config.interceptor(intercept);
    }
    Ok((Client::from_conf(config.build()), shared.credentials_provider()))
}
