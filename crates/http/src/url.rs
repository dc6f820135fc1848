//! The URL of a server.

use std::fmt;

use http::uri::{Authority, Parts, PathAndQuery, Scheme, Uri};
use postrider_core::MessagingError;
use postrider_core::masked_url::masked_url;

/// The URL of a server.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct ServerUrl {
    scheme: Scheme,
    authority: Authority,
    /// Path before `/v1`, as a proxy may add it; empty or without a trailing slash.
    prefix: String,
}

impl ServerUrl {
    /// Reads `http://host:port[/prefix]` or `https://…`.
    pub(crate) fn parse(url: &str) -> Result<Self, MessagingError> {
        let invalid = |why: &str| {
            let shown = masked_url(url);
            let shown = shown.escape_debug();
            let forms = "write http://host:port or https://host:port, with or without a path";
            MessagingError::invalid("URL", format!("'{shown}' {why}; {forms}"))
        };
        if url.contains(['?', '#']) {
            return Err(invalid("has a query or a fragment, which is not allowed"));
        }
        let uri: Uri = url.parse().map_err(|_| invalid("is not a URL"))?;
        let parts = uri.into_parts();
        let scheme = parts.scheme.ok_or_else(|| invalid("has no scheme"))?;
        if scheme != Scheme::HTTP && scheme != Scheme::HTTPS {
            return Err(invalid("is not a URL of a server"));
        }
        let authority = parts.authority.ok_or_else(|| invalid("has no host"))?;
        if authority.as_str().contains('@') {
            return Err(invalid("has a user or a password; set the token as an option"));
        }
        if authority.host().is_empty() {
            return Err(invalid("has no host"));
        }
        if authority.port().is_none() && authority.as_str() != authority.host() {
            return Err(invalid("has an invalid port; use a number up to 65535"));
        }
        let path = parts.path_and_query.as_ref().map_or("", PathAndQuery::path);
        let prefix = path.trim_end_matches('/').to_owned();
        if prefix.ends_with("/v1") {
            return Err(invalid("ends in /v1; remove it"));
        }
        Ok(Self { scheme, authority, prefix })
    }

    /// Whether connections are encrypted.
    pub(crate) fn is_encrypted(&self) -> bool {
        self.scheme == Scheme::HTTPS
    }

    /// The full URL of a path from `/v1` on, with its query.
    pub(crate) fn uri(&self, path: &str) -> Result<Uri, MessagingError> {
        let mut parts = Parts::default();
        parts.scheme = Some(self.scheme.clone());
        parts.authority = Some(self.authority.clone());
        let path: Result<PathAndQuery, _> = format!("{}{path}", self.prefix).parse();
        parts.path_and_query = Some(path.map_err(|error| MessagingError::invalid("path", error.to_string()))?);
        Uri::from_parts(parts).map_err(|error| MessagingError::invalid("path", error.to_string()))
    }
}

impl fmt::Display for ServerUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}{}", self.scheme, self.authority, self.prefix)
    }
}

impl fmt::Debug for ServerUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The query of these names and values, without the question mark.
// A function of its own, because the serializer must not be held over an await.
pub(crate) fn query<'p>(pairs: impl IntoIterator<Item = (&'p str, &'p str)>) -> String {
    form_urlencoded::Serializer::new(String::new()).extend_pairs(pairs).finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_parsed_and_extended() {
        for (url, uri) in [
            ("http://127.0.0.1:8080", "http://127.0.0.1:8080/v1/health"),
            ("http://127.0.0.1:8080/", "http://127.0.0.1:8080/v1/health"),
            ("https://queue.example/rider/", "https://queue.example/rider/v1/health"),
            ("http://[::1]:8080/a/b", "http://[::1]:8080/a/b/v1/health"),
        ] {
            assert_eq!(ServerUrl::parse(url).unwrap().uri("/v1/health").unwrap().to_string(), uri);
        }
        assert_eq!(ServerUrl::parse("http://localhost/a/").unwrap().to_string(), "http://localhost/a");
    }

    #[test]
    fn invalid_urls_are_refused_without_their_secrets() {
        for url in [
            "",
            "localhost",
            "ftp://host",
            "http://",
            "http://h?x=1",
            "http://h/#a",
            "http://h/v1",
            "/v1",
            "http://h:99999",
            "http://h:",
        ] {
            assert!(matches!(ServerUrl::parse(url), Err(MessagingError::InvalidInput { what: "URL", .. })), "{url}");
        }
        let error = ServerUrl::parse("http://anna:secret@host").unwrap_err().to_string();
        assert!(error.contains("token") && !error.contains("secret"), "{error}");
        for url in ["http://secret@host", "http://host?token=secret", "http://host/#secret", "http://a:se@cret@host/v1"]
        {
            let error = ServerUrl::parse(url).unwrap_err().to_string();
            assert!(error.contains("host") && !error.contains("secret") && !error.contains("cret@"), "{error}");
        }
    }
}
