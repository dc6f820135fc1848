//! A broker and its options, as the URL and the configuration give them.

use std::fmt;
use std::time::Duration;

use lapin::uri::AMQPUri;
use postrider_broker::Connection;
use postrider_core::{BoxFuture, MessagingError};
use postrider_provider::Provider;
use url::Url;

use crate::RabbitmqProvider;
use crate::broker::RabbitmqBroker;
use crate::options::RabbitmqOptions;

/// A broker that can be connected to any number of times. Each connection is an AMQP connection of its own, because only
/// the connection that received a message can settle it.
#[derive(Clone)]
pub struct RabbitmqStore {
    pub(crate) uri: AMQPUri,
    pub(crate) options: RabbitmqOptions,
}

impl fmt::Debug for RabbitmqStore {
    /// Without the password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let authority = &self.uri.authority;
        f.debug_struct("RabbitmqStore")
            .field("host", &authority.host)
            .field("port", &authority.port)
            .field("vhost", &self.uri.vhost)
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}

impl RabbitmqStore {
    /// The broker at `url`: `amqp://user:password@host:port/vhost`, or `amqps://…`.
    pub fn new(url: &str, options: RabbitmqOptions) -> Result<Self, MessagingError> {
        let invalid = |why: String| MessagingError::invalid("URL", format!("{why}; write amqp://user@host:5672/vhost"));
        let mut uri: AMQPUri = url.parse().map_err(invalid)?;
        if options.partitions == 0 {
            return Err(MessagingError::invalid("partitions", "0 partitions cannot store keys; 1 is the least"));
        }
        if options.prefetch_count == 0 {
            let why = "0 is unlimited on the broker; 1 is the least";
            return Err(MessagingError::invalid("prefetch_count", why));
        }
        // An empty path names no virtual host, as in other clients.
        let path = Url::parse(url).map_err(|error| invalid(error.to_string()))?;
        let names_one = !matches!(path.path(), "" | "/");
        if let Some(query) = path.query() {
            // Without the values: one may be a secret.
            let names: Vec<_> = query.split('&').filter_map(|pair| pair.split('=').next()).collect();
            let names = names.join("&");
            let why =
                format!("'?{}' is not supported; use the settings of common.messaging.rabbitmq", names.escape_debug());
            return Err(MessagingError::invalid("URL", why));
        }
        match &options.vhost {
            Some(vhost) if names_one && *vhost != uri.vhost => {
                let (named, vhost) = (uri.vhost.escape_debug(), vhost.escape_debug());
                let why = format!("the URL names '{named}' and the setting '{vhost}'; remove one of them");
                return Err(MessagingError::invalid("virtual host", why));
            }
            Some(vhost) => uri.vhost.clone_from(vhost),
            None if names_one => {}
            None => "/".clone_into(&mut uri.vhost),
        }
        let seconds = options.heartbeat.as_nanos().div_ceil(Duration::from_secs(1).as_nanos());
        uri.query.heartbeat = Some(u16::try_from(seconds).unwrap_or(u16::MAX));
        Ok(Self { uri, options })
    }

    /// Opens a connection.
    pub fn connect(&self) -> BoxFuture<'_, Result<RabbitmqProvider, MessagingError>> {
        Box::pin(async move {
            let broker = RabbitmqBroker::connect(self.uri.clone(), self.options.clone()).await?;
            Ok(RabbitmqProvider(Provider::new(Connection::new(broker))?))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vhost(url: &str, setting: Option<&str>) -> Result<String, String> {
        let options = RabbitmqOptions { vhost: setting.map(Into::into), ..RabbitmqOptions::default() };
        RabbitmqStore::new(url, options).map(|store| store.uri.vhost).map_err(|error| error.to_string())
    }

    #[test]
    fn two_different_virtual_hosts_are_refused() {
        for (url, setting, used) in [
            ("amqp://host", None, "/"),
            ("amqp://host/", None, "/"),
            ("amqp://host/%2f", None, "/"),
            ("amqp://host/mail", None, "mail"),
            ("amqp://host", Some("mail"), "mail"),
            ("amqp://host/", Some("mail"), "mail"),
            ("amqp://host/mail", Some("mail"), "mail"),
            ("amqps://host/%2fa%2fb", Some("/a/b"), "/a/b"),
        ] {
            assert_eq!(vhost(url, setting).as_deref(), Ok(used), "{url} {setting:?}");
        }
        let text = vhost("amqp://host/%2f", Some("mail")).unwrap_err();
        assert!(text.contains("the URL names '/' and the setting 'mail'; remove one of them"), "{text}");
    }

    #[test]
    fn a_query_is_refused_and_not_ignored() {
        let refused = RabbitmqStore::new("amqp://localhost/%2f?heartbeat=5", RabbitmqOptions::default()).unwrap_err();
        let text = refused.to_string();
        assert!(text.contains("'?heartbeat'") && text.contains("common.messaging.rabbitmq"), "{text}");
        assert!(!text.contains("heartbeat=5"), "a value may be a secret: {text}");
    }

    #[test]
    fn zero_partitions_and_an_unlimited_prefetch_are_refused() {
        for (options, what) in [
            (RabbitmqOptions { partitions: 0, ..RabbitmqOptions::default() }, "partitions"),
            (RabbitmqOptions { prefetch_count: 0, ..RabbitmqOptions::default() }, "prefetch_count"),
        ] {
            let error = RabbitmqStore::new("amqp://localhost", options).unwrap_err().to_string();
            assert!(error.contains(what) && error.contains("1 is the least"), "{error}");
        }
    }

    #[test]
    fn passwords_are_not_shown() {
        let management_url = Some("http://rider:secret@host:15672".to_owned());
        let options = RabbitmqOptions { management_url, ..RabbitmqOptions::default() };
        let shown = format!("{:?}", RabbitmqStore::new("amqp://rider:secret@host/mail", options).unwrap());
        assert!(shown.contains("mail") && shown.contains("host:15672") && !shown.contains("secret"), "{shown}");
    }
}
