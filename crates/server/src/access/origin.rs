//! Protection against cross-site requests and DNS rebinding.
//!
//! A page of another site can make a browser send a request to this server. The browser adds the session's cookie; an
//! open server needs none. Browsers name the origin of such a request; other programs send no origin.

use axum::http::{HeaderMap, Version, header};

use super::caller::Proof;

/// Checks the origin of a request that changes something. The error is the reason for a refusal.
pub(super) fn check(headers: &HeaderMap, proof: Proof) -> Result<(), &'static str> {
    // No browser adds a token to a header by itself.
    if proof == Proof::Token {
        return Ok(());
    }
    let text = |name| headers.get(name).and_then(|value: &axum::http::HeaderValue| value.to_str().ok());
    match text(header::HeaderName::from_static("sec-fetch-site")) {
        Some("same-origin" | "none") => return Ok(()),
        Some(_) => return Err("it comes from a page of another site"),
        None => {}
    }
    match (text(header::ORIGIN), text(header::HOST)) {
        (Some(origin), Some(host)) => {
            let named = origin.split_once("://").map(|(_, host)| host);
            if named == Some(host) { Ok(()) } else { Err("it comes from a page of another site") }
        }
        (Some(_), None) => Err("it comes from a page and names no host"),
        (None, _) if proof == Proof::Session => Err("sessions are for browsers; send a token instead"),
        (None, _) => Ok(()),
    }
}

/// Checks that a request names exactly one host: a proxy could otherwise read another name than this server.
pub(super) fn check_host(version: Version, headers: &HeaderMap) -> Result<(), &'static str> {
    let mut hosts = headers.get_all(header::HOST).into_iter();
    match (hosts.next(), hosts.next()) {
        (Some(_), Some(_)) => Err("it has more than one 'Host' header; send one, with the name of this server"),
        (None, _) if version >= Version::HTTP_11 => {
            Err("it has no 'Host' header, which HTTP/1.1 requires; send one, with the name of this server")
        }
        _ => Ok(()),
    }
}

/// Whether a request names this machine as its host. A foreign name that resolves to this machine (DNS rebinding) would
/// let pages of that site read everything.
pub(super) fn is_local(headers: &HeaderMap) -> bool {
    // Browsers always send it.
    let Some(host) = headers.get(header::HOST) else { return true };
    let Ok(host) = host.to_str() else { return false };
    let name = match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => host.rsplit_once(':').map_or(host, |(name, _)| name),
    };
    name.eq_ignore_ascii_case("localhost")
        || name.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderName;

    use super::*;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let pair = |(name, value): &(&'static str, &'static str)| {
            (HeaderName::from_static(name), axum::http::HeaderValue::from_static(value))
        };
        pairs.iter().map(pair).collect()
    }

    #[test]
    fn a_page_of_another_site_changes_nothing() {
        let own = headers(&[("origin", "http://127.0.0.1:8025"), ("host", "127.0.0.1:8025")]);
        let other = headers(&[("origin", "http://evil.example"), ("host", "127.0.0.1:8025")]);
        let null = headers(&[("origin", "null"), ("host", "127.0.0.1:8025")]);
        let fetched = headers(&[("sec-fetch-site", "cross-site")]);
        for proof in [Proof::Open, Proof::Session] {
            assert!(check(&own, proof).is_ok());
            assert!(check(&headers(&[("sec-fetch-site", "same-origin")]), proof).is_ok());
            for bad in [&other, &null, &fetched, &headers(&[("sec-fetch-site", "same-site")])] {
                assert!(check(bad, proof).is_err(), "{bad:?}");
            }
        }
        assert!(check(&other, Proof::Token).is_ok());
        assert!(check(&HeaderMap::new(), Proof::Open).is_ok(), "curl");
        assert!(check(&HeaderMap::new(), Proof::Session).is_err());
    }

    #[test]
    fn an_open_server_answers_to_local_names_only() {
        for (host, is) in [
            ("localhost", true),
            ("LOCALHOST:8025", true),
            ("127.0.0.1:8025", true),
            ("127.9.9.9", true),
            ("[::1]:8025", true),
            ("evil.example:8025", false),
            ("127.0.0.1.evil.example", false),
            ("10.0.0.1", false),
        ] {
            assert_eq!(is_local(&headers(&[("host", host)])), is, "{host}");
        }
        assert!(is_local(&HeaderMap::new()));
        let odd = axum::http::HeaderValue::from_bytes(b"\xff.example").unwrap();
        assert!(!is_local(&HeaderMap::from_iter([(header::HOST, odd)])));
    }

    #[test]
    fn a_request_names_exactly_one_host() {
        let one = headers(&[("host", "localhost")]);
        let mut two = one.clone();
        two.append(header::HOST, axum::http::HeaderValue::from_static("evil.example"));
        for version in [Version::HTTP_10, Version::HTTP_11] {
            assert!(check_host(version, &one).is_ok());
            assert!(check_host(version, &two).is_err());
        }
        assert!(check_host(Version::HTTP_11, &HeaderMap::new()).is_err());
        assert!(check_host(Version::HTTP_10, &HeaderMap::new()).is_ok(), "older than the header");
    }
}
