//! Options of a Postrider server from the configuration.

use postrider_core::MessagingError;
use postrider_http::{HttpOptions, HttpStore};

use super::Migration;
use crate::config::{MessagingConfig, StoreUrl};

/// The options of the settings.
pub(super) fn options(settings: &MessagingConfig) -> HttpOptions {
    let http = &settings.http;
    HttpOptions {
        token: http.token.as_ref().map(|token| token.reveal().to_owned()),
        ca_file: http.ca_file.clone(),
        connect_timeout: http.connection_timeout,
        ..HttpOptions::default()
    }
}

/// Returns none: the server migrates its own store. Fails when the server does not answer.
pub(super) async fn migrations(url: &StoreUrl, options: &HttpOptions) -> Result<Vec<Migration>, MessagingError> {
    HttpStore::open(url.as_str(), options.clone()).await.map(|_| Vec::new())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_are_the_same() {
        let options = options(&MessagingConfig::default());
        assert_eq!(format!("{options:?}"), format!("{:?}", HttpOptions::default()));
    }
}
