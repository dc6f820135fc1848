//! A Postrider server as the configuration describes it.

use postrider_core::MessagingError;
use postrider_http::{HttpOptions, HttpStore};

use super::Migration;
use crate::config::{MessagingConfig, StoreUrl};

/// How the settings say that a server is used.
pub(super) fn options(settings: &MessagingConfig) -> HttpOptions {
    let http = &settings.http;
    HttpOptions {
        token: http.token.as_ref().map(|token| token.reveal().to_owned()),
        ca_file: http.ca_file.clone(),
        connect_timeout: http.connection_timeout,
        ..HttpOptions::default()
    }
}

/// There are none: the server sees to its own store. Whoever asks shall hear of a place where nobody answers.
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
