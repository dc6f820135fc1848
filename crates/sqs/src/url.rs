//! What a URL says: where SQS is, and what the queues' names begin with there.

use postrider_core::MessagingError;
use postrider_core::masked_url::masked_url;

/// The region of an endpoint whose URL and environment name none: what emulators expect.
pub(crate) const DEFAULT_REGION: &str = "us-east-1";

/// A place where queues are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SqsUrl {
    /// As the URL names it; else the environment's.
    pub(crate) region: Option<String>,
    /// The address of something that speaks SQS's protocol; else the service's own in the region.
    pub(crate) endpoint: Option<String>,
    /// What stands before every queue's name.
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
        let (scheme, rest) = url.split_once("://").ok_or_else(|| invalid("is no URL of SQS"))?;
        let (place, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        if rest.contains(['?', '#']) {
            return Err(invalid("has a query or a fragment, and there is nothing to set there"));
        }
        if place.contains('@') {
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
            "sqs" if place.is_empty() => Ok(Self { region: None, endpoint: None, prefix }),
            "sqs" if place.chars().all(|c| c.is_ascii_alphanumeric() || c == '-') => {
                Ok(Self { region: Some(place.to_owned()), endpoint: None, prefix })
            }
            "sqs" => Err(invalid("names no region of AWS, like eu-central-1")),
            "sqs+http" | "sqs+https" if place.is_empty() => Err(invalid("names no host")),
            "sqs+http" | "sqs+https" if !has_usable_port(place) => Err(invalid("has a port that is none")),
            "sqs+http" => Ok(Self { region: None, endpoint: Some(format!("http://{place}")), prefix }),
            "sqs+https" => Ok(Self { region: None, endpoint: Some(format!("https://{place}")), prefix }),
            _ => Err(invalid("is no URL of SQS")),
        }
    }

    /// The place in words.
    pub(crate) fn place(&self) -> String {
        match (&self.endpoint, &self.region) {
            (Some(endpoint), _) => endpoint.clone(),
            (None, Some(region)) => format!("SQS in {region}"),
            (None, None) => "SQS in the environment's region".to_owned(),
        }
    }
}

/// A client takes the scheme's own port where it can read none.
fn has_usable_port(place: &str) -> bool {
    match place.rsplit_once(':') {
        // The end of an address in brackets is no port.
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
        let place = |region: Option<&str>, endpoint: Option<&str>, prefix: &str| SqsUrl {
            region: region.map(str::to_owned),
            endpoint: endpoint.map(str::to_owned),
            prefix: prefix.to_owned(),
        };
        assert_eq!(parse("sqs://eu-central-1"), place(Some("eu-central-1"), None, ""));
        assert_eq!(parse("sqs://eu-central-1/app-"), place(Some("eu-central-1"), None, "app-"));
        assert_eq!(parse("sqs:///app_"), place(None, None, "app_"));
        assert_eq!(parse("sqs+http://127.0.0.1:4566/"), place(None, Some("http://127.0.0.1:4566"), ""));
        assert_eq!(parse("sqs+https://sqs.example/a/"), place(None, Some("https://sqs.example"), "a"));
        assert_eq!(parse("sqs+http://[::1]"), place(None, Some("http://[::1]"), ""));
        assert_eq!(parse("sqs+http://[::1]:4566"), place(None, Some("http://[::1]:4566"), ""));
    }

    #[test]
    fn what_cannot_be_meant_is_refused_and_no_password_is_shown() {
        for url in
            ["sqs:eu", "sqs://eu central", "sqs+http://", "sqs+ftp://h/", "sqs://eu/a.b", "sqs://eu?x=1", "http://h"]
        {
            assert!(SqsUrl::parse(url).is_err(), "{url}");
        }
        for url in ["sqs+http://h:99999/x", "sqs+http://h:0", "sqs+https://h:", "sqs+https://h:443x/x"] {
            let error = SqsUrl::parse(url).unwrap_err().to_string();
            assert!(error.contains("a port that is none"), "{url}: {error}");
        }
        let error = SqsUrl::parse("sqs+http://key:secret@host/").unwrap_err().to_string();
        assert!(error.contains("AWS environment") && !error.contains("secret"), "{error}");
        for url in ["sqs+http://key:se@cret@host/", "sqs://eu?secret=cret"] {
            let error = SqsUrl::parse(url).unwrap_err().to_string();
            assert!(error.contains("***") && !error.contains("cret@") && !error.contains("=cret"), "{error}");
        }
    }
}
