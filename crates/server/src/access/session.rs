//! Sessions of the dashboard: a cookie in place of a token.

use std::time::Duration;

use axum::http::{HeaderMap, HeaderValue, header};
use data_encoding::{BASE64URL_NOPAD, HEXLOWER};
use postrider::state_records::{RecordKey, RecordKind, StateRecords};
use postrider::{Deadline, MessagingError, StateStorage};
use sha2::{Digest, Sha256};
use uuid::Uuid;

use super::token::random;

static KIND: RecordKind = RecordKind::constant("session");

/// The cookie's name.
pub(crate) const SESSION_COOKIE: &str = "postrider_session";

/// The cookie's name over TLS: browsers accept the prefix `__Host-` only over TLS and from the host itself.
pub(crate) const SECURE_COOKIE: &str = "__Host-postrider_session";

fn name(is_secure: bool) -> &'static str {
    if is_secure { SECURE_COOKIE } else { SESSION_COOKIE }
}

/// Duration of a session.
const LENGTH: Duration = Duration::from_secs(12 * 3600);

/// Returns the session id in a request's cookie.
pub(crate) fn shown(headers: &HeaderMap, is_secure: bool) -> Option<&str> {
    let cookies = headers.get_all(header::COOKIE).into_iter().filter_map(|value| value.to_str().ok());
    let mut pairs = cookies.flat_map(|line| line.split(';')).filter_map(|pair| pair.trim().split_once('='));
    pairs.find(|(own, _)| *own == name(is_secure)).map(|(_, id)| id).filter(|id| (1..=64).contains(&id.len()))
}

/// Returns the hash that is stored in place of the id, so that the state reveals no sessions.
pub(super) fn key(id: &str) -> String {
    HEXLOWER.encode(&Sha256::digest(id.as_bytes()))
}

/// Begins a session of a token. Returns its id and its cookie.
pub(super) async fn begin(
    records: &StateStorage,
    token: Uuid,
    is_secure: bool,
    deadline: Deadline,
) -> Result<(String, HeaderValue), MessagingError> {
    let id = BASE64URL_NOPAD.encode(&random::<32>());
    let key = RecordKey::new(key(&id))?;
    // A random id is unique.
    let _ = records.put_new(&KIND, &key, token.as_bytes().to_vec().into(), Some(LENGTH), deadline).await?;
    let cookie = cookie(&id, LENGTH, is_secure);
    Ok((id, cookie))
}

/// Returns the token id of a session.
pub(super) async fn token_of(
    records: &StateStorage,
    id: &str,
    deadline: Deadline,
) -> Result<Option<Uuid>, MessagingError> {
    let record = records.get(&KIND, &RecordKey::new(key(id))?, deadline).await?;
    Ok(record.and_then(|record| Uuid::from_slice(&record.value).ok()))
}

/// Ends a session. Returns the cookie that removes it from the browser.
pub(super) async fn end(
    records: &StateStorage,
    id: &str,
    is_secure: bool,
    deadline: Deadline,
) -> Result<HeaderValue, MessagingError> {
    records.remove(&KIND, &RecordKey::new(key(id))?, deadline).await?;
    Ok(cookie("", Duration::ZERO, is_secure))
}

fn cookie(id: &str, length: Duration, is_secure: bool) -> HeaderValue {
    let secure = if is_secure { "; Secure" } else { "" };
    let (name, length) = (name(is_secure), length.as_secs());
    let text = format!("{name}={id}; Path=/; HttpOnly; SameSite=Strict; Max-Age={length}{secure}");
    // Consists of valid header characters only.
    HeaderValue::from_str(&text).unwrap_or_else(|_| HeaderValue::from_static(""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cookie_is_found_among_others_and_cannot_be_read_by_scripts() {
        let mut headers = HeaderMap::new();
        assert_eq!(shown(&headers, false), None);
        headers.append(header::COOKIE, HeaderValue::from_static("a=b; postrider_session=xyz; c=d"));
        assert_eq!((shown(&headers, false), shown(&headers, true)), (Some("xyz"), None), "other hosts may have set it");
        headers.append(header::COOKIE, HeaderValue::from_static("__Host-postrider_session=safe"));
        assert_eq!((shown(&headers, false), shown(&headers, true)), (Some("xyz"), Some("safe")));
        let text = cookie("xyz", LENGTH, true);
        let text = text.to_str().unwrap();
        for part in ["__Host-postrider_session=xyz;", "HttpOnly", "SameSite=Strict", "Secure", "Path=/;"] {
            assert!(text.contains(part), "{text}");
        }
        assert!(!text.contains("Domain"), "{text}");
        let plain = cookie("xyz", LENGTH, false);
        let plain = plain.to_str().unwrap();
        assert!(plain.starts_with("postrider_session=xyz;") && !plain.contains("Secure"), "{plain}");
    }
}
