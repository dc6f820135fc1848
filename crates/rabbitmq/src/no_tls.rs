//! TLS configuration of a build without TLS: refuses a URL or an option that requires encryption.

use lapin::tcp::OwnedTLSConfig;
use lapin::uri::{AMQPScheme, AMQPUri};
use postrider_core::MessagingError;
use url::Url;

use crate::PROVIDER;
use crate::options::RabbitmqOptions;

/// Refuses a URL or an option that requires encryption.
pub(crate) fn config(uri: &AMQPUri, options: &RabbitmqOptions) -> Result<Option<OwnedTLSConfig>, MessagingError> {
    let refused = |what, asked: &str| Err(MessagingError::no_tls(what, asked, PROVIDER));
    if uri.scheme == AMQPScheme::AMQPS {
        return refused("URL", &format!("amqps://{}:{}", uri.authority.host, uri.authority.port));
    }
    if let Some(file) = &options.ca_file {
        return refused("ca_file", file);
    }
    let management = options.management_url.as_deref().and_then(|url| Url::parse(url).ok());
    match management.filter(|url| url.scheme() == "https") {
        // Omits the user and the password that the URL may have.
        Some(url) => {
            let (host, port) = (url.host_str().unwrap_or_default(), url.port_or_known_default().unwrap_or_default());
            refused("management_url", &format!("https://{host}:{port}"))
        }
        None => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_build_without_tls_refuses_encrypted_connections() {
        let plain = RabbitmqOptions::default();
        let ca_file = RabbitmqOptions { ca_file: Some("/x.pem".into()), ..plain.clone() };
        let management_url = Some("https://u:secret@h:15671".to_owned());
        let management = RabbitmqOptions { management_url, ..plain.clone() };
        for (url, options, asked) in [
            ("amqps://u:secret@h/v", &plain, "'amqps://h:5671'"),
            ("amqp://u:secret@h/v", &ca_file, "'/x.pem'"),
            ("amqp://u:secret@h/v", &management, "'https://h:15671'"),
        ] {
            let text = config(&url.parse().unwrap(), options).unwrap_err().to_string();
            assert!(text.contains(asked) && text.contains("feature 'tls'"), "{text}");
            assert!(text.contains("postrider-rabbitmq") && !text.contains("secret"), "{text}");
        }
        assert!(config(&"amqp://u@h/v".parse().unwrap(), &plain).unwrap().is_none());
    }
}
