//! Connections of a build without TLS: URLs and options for encryption are refused.

use std::path::Path;

use hyper_util::client::legacy::connect::HttpConnector;
use postrider_core::MessagingError;

use crate::PROVIDER;
use crate::url::ServerUrl;

/// Opens connections.
pub(crate) type Connector = HttpConnector;

/// The connector for an `http://` URL.
pub(crate) fn connector(
    tcp: HttpConnector,
    server: &ServerUrl,
    ca_file: Option<&Path>,
) -> Result<Connector, MessagingError> {
    if server.is_encrypted() {
        return Err(MessagingError::no_tls("URL", &server.to_string(), PROVIDER));
    }
    match ca_file {
        Some(path) => Err(MessagingError::no_tls("ca_file", &path.to_string_lossy(), PROVIDER)),
        None => Ok(tcp),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_build_without_tls_refuses_tls() {
        let refused = |url: &str, ca_file: Option<&Path>| {
            let refused = connector(HttpConnector::new(), &ServerUrl::parse(url).unwrap(), ca_file);
            refused.err().map(|error| error.to_string())
        };
        let text = refused("https://h:1/mail", None).unwrap();
        assert!(text.contains("'https://h:1/mail'") && text.contains("feature 'tls'"), "{text}");
        let text = refused("http://h:1", Some(Path::new("/x.pem"))).unwrap();
        assert!(text.contains("ca_file") && text.contains("'/x.pem'") && text.contains("postrider-http"), "{text}");
        assert_eq!(refused("http://h:1", None), None);
    }
}
