//! Parses a store's URL: region or endpoint, and the prefix of the queues' names.

use postrider_core::MessagingError;
use postrider_core::masked_url::masked_url;

/// Region of an endpoint when the environment names none: the one that emulators expect.
pub(crate) const DEFAULT_REGION: &str = "us-east-1";

/// A parsed URL.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SqsUrl {
    /// The region; `None` means the environment's.
    pub(crate) region: Option<String>,
    /// URL of a custom endpoint; `None` means the service in the region.
    pub(crate) endpoint: Option<String>,
    /// Prefix of every queue's name.
    pub(crate) prefix: String,
}

impl SqsUrl {
    /// Reads `sqs://region[/prefix]`, `sqs+http://host:port[/prefix]` or `sqs+https://host[:port][/prefix]`.
    pub(crate) fn parse(url: &str) -> Result<Self, MessagingError> {
        let invalid = |why: &str| {
            let shown = masked_url(url);
            let shown = shown.escape_debug();
            let forms = "write sqs://region/prefix or sqs+http://host:port/prefix; the prefix may be left out";
            MessagingError::invalid("URL", format!("'{shown}' {why}; {forms}"))
        };
        let (scheme, rest) = url.split_once("://").ok_or_else(|| invalid("is not an SQS URL"))?;
        let (location, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        if rest.contains(['?', '#']) {
            return Err(invalid("has a query or a fragment, which are not supported"));
        }
        if location.contains('@') {
            return Err(invalid(
                "has a user or a password; credentials come from the AWS environment, profile or role",
            ));
        }
        let prefix = prefix.strip_suffix('/').unwrap_or(prefix);
        if let Some(odd) = prefix.chars().find(|c| !(c.is_ascii_alphanumeric() || "_-".contains(*c))) {
            return Err(invalid(&format!("has {odd:?} in its prefix; SQS allows letters, digits, '_' and '-'")));
        }
        let prefix = prefix.to_owned();
        match scheme {
            "sqs" if location.is_empty() => Ok(Self { region: None, endpoint: None, prefix }),
            "sqs" if location.chars().all(|c| c.is_ascii_alphanumeric() || c == '-') => {
                Ok(Self { region: Some(location.to_owned()), endpoint: None, prefix })
            }
            "sqs" => Err(invalid("names no AWS region, such as eu-central-1")),
            "sqs+http" | "sqs+https" if location.is_empty() => Err(invalid("names no host")),
            "sqs+http" | "sqs+https" if !has_usable_port(location) => Err(invalid("has an invalid port")),
            "sqs+http" => Ok(Self { region: None, endpoint: Some(format!("http://{location}")), prefix }),
            "sqs+https" => Ok(Self { region: None, endpoint: Some(format!("https://{location}")), prefix }),
            _ => Err(invalid("is not an SQS URL")),
        }
    }

    /// Describes the endpoint.
    pub(crate) fn endpoint_text(&self) -> String {
        match (&self.endpoint, &self.region) {
            (Some(endpoint), _) => endpoint.clone(),
            (None, Some(region)) => format!("SQS in {region}"),
            (None, None) => "SQS in the environment's region".to_owned(),
        }
    }
}

/// Whether the port is valid or missing: the HTTP client would replace an invalid one by the default.
fn has_usable_port(location: &str) -> bool {
    match location.rsplit_once(':') {
        // An IPv6 address in brackets without a port.
        Some((_, port)) if !port.ends_with(']') => port.parse::<u16>().is_ok_and(|port| port > 0),
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regions_endpoints_and_prefixes_are_read() {
        let parse = |url: &str| SqsUrl::parse(url).unwrap();
        let location = |region: Option<&str>, endpoint: Option<&str>, prefix: &str| SqsUrl {
            region: region.map(str::to_owned),
            endpoint: endpoint.map(str::to_owned),
            prefix: prefix.to_owned(),
        };
        assert_eq!(parse("sqs://eu-central-1"), location(Some("eu-central-1"), None, ""));
        assert_eq!(parse("sqs://eu-central-1/app-"), location(Some("eu-central-1"), None, "app-"));
        assert_eq!(parse("sqs:///app_"), location(None, None, "app_"));
        assert_eq!(parse("sqs+http://127.0.0.1:4566/"), location(None, Some("http://127.0.0.1:4566"), ""));
        assert_eq!(parse("sqs+https://sqs.example/a/"), location(None, Some("https://sqs.example"), "a"));
        assert_eq!(parse("sqs+http://[::1]"), location(None, Some("http://[::1]"), ""));
        assert_eq!(parse("sqs+http://[::1]:4566"), location(None, Some("http://[::1]:4566"), ""));
    }

    #[test]
    fn invalid_urls_are_refused_and_no_password_is_shown() {
        for url in
            ["sqs:eu", "sqs://eu central", "sqs+http://", "sqs+ftp://h/", "sqs://eu/a.b", "sqs://eu?x=1", "http://h"]
        {
            assert!(SqsUrl::parse(url).is_err(), "{url}");
        }
        for url in ["sqs+http://h:99999/x", "sqs+http://h:0", "sqs+https://h:", "sqs+https://h:443x/x"] {
            let error = SqsUrl::parse(url).unwrap_err().to_string();
            assert!(error.contains("has an invalid port"), "{url}: {error}");
        }
        let error = SqsUrl::parse("sqs+http://key:secret@host/").unwrap_err().to_string();
        assert!(error.contains("AWS environment") && !error.contains("secret"), "{error}");
        for url in ["sqs+http://key:se@cret@host/", "sqs://eu?secret=cret"] {
            let error = SqsUrl::parse(url).unwrap_err().to_string();
            assert!(error.contains("***") && !error.contains("cret@") && !error.contains("=cret"), "{error}");
        }
    }
}
