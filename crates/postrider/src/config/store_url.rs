//! A URL that may hold a password.

use std::fmt;

/// What stands in the place of a secret.
pub(super) const MASK: &str = "***";

/// Schemes whose URLs are paths of this machine: an `@` in them is part of a name.
const PATH_SCHEMES: &[&str] = &["memory", "spool", "sqlite"];

/// A query's parameter is masked when its name contains one of these.
const SECRET_PARAMETERS: &[&str] = &["password", "passwd", "pwd", "secret", "token", "key"];

/// A store's URL. It is shown, in texts and in debug output, without its password; [`as_str`](Self::as_str) has all.
#[derive(Clone, PartialEq, Eq)]
pub struct StoreUrl(String);

impl StoreUrl {
    pub(crate) fn new(url: impl Into<String>) -> Self {
        Self(url.into())
    }

    /// The whole URL, its password included.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// What is before the first colon.
    pub fn scheme(&self) -> Option<&str> {
        self.0.split_once(':').map(|(scheme, _)| scheme)
    }

    /// Whether both lead to one store for certain. Two that only look different may still do.
    pub(super) fn leads_where(&self, other: &Self) -> bool {
        let file = |url: &Self| url.0.strip_prefix("sqlite:").and_then(|path| std::path::absolute(path).ok());
        self == other || file(self).is_some_and(|path| file(other) == Some(path))
    }

    /// What is behind the server's name, decoded; `None` when there is nothing.
    pub(super) fn path(&self) -> Option<String> {
        let (_, rest) = self.0.split_once("://")?;
        let rest = rest.split(['?', '#']).next().unwrap_or_default();
        // A password may have a slash in it.
        let server = rest.rsplit_once('@').map_or(rest, |(_, server)| server);
        let (_, path) = server.split_once('/').filter(|(_, path)| !path.is_empty())?;
        let mut bytes = Vec::with_capacity(path.len());
        let mut left = path.as_bytes();
        while let [first, tail @ ..] = left {
            let escaped = tail.get(..2).filter(|_| *first == b'%').and_then(|digits| std::str::from_utf8(digits).ok());
            let escaped = escaped.and_then(|digits| u8::from_str_radix(digits, 16).ok());
            bytes.push(escaped.unwrap_or(*first));
            left = if escaped.is_some() { &tail[2..] } else { tail };
        }
        Some(String::from_utf8_lossy(&bytes).into_owned())
    }
}

impl fmt::Display for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&masked(&self.0))
    }
}

impl fmt::Debug for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", masked(&self.0))
    }
}

/// The URL without its password.
///
/// People write passwords with `@`, `/`, `?` and `:` in them and forget to escape these. Everything that could belong
/// to the password is masked therefore, up to the last `@`, even when a part of the host or path goes with it.
fn masked(url: &str) -> String {
    let (scheme, rest) = match url.split_once(':') {
        Some((scheme, rest)) => (format!("{scheme}:"), rest),
        None => (String::new(), url),
    };
    let is_path = PATH_SCHEMES.iter().any(|known| scheme.strip_suffix(':') == Some(known));
    let (credentials, address) = match rest.rsplit_once('@') {
        Some((credentials, address)) if !is_path => (Some(credentials), address),
        _ => (None, rest),
    };
    let credentials = credentials.map_or(String::new(), |credentials| masked_credentials(credentials) + "@");
    scheme + &credentials + &masked_query(address)
}

fn masked_credentials(credentials: &str) -> String {
    match credentials.strip_prefix("//") {
        Some(named) => match named.split_once(':') {
            Some((user, _)) => format!("//{user}:{MASK}"),
            None => credentials.to_owned(),
        },
        // Without the slashes nothing says where a user's name would end.
        None => MASK.to_owned(),
    }
}

fn masked_query(address: &str) -> String {
    let Some((path, query)) = address.split_once('?') else {
        return address.to_owned();
    };
    let parameters: Vec<_> = query.split('&').map(masked_parameter).collect();
    format!("{path}?{}", parameters.join("&"))
}

fn masked_parameter(parameter: &str) -> String {
    match parameter.split_once('=') {
        Some((name, _)) if SECRET_PARAMETERS.iter().any(|secret| name.to_lowercase().contains(secret)) => {
            format!("{name}={MASK}")
        }
        _ => parameter.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passwords_are_never_shown() {
        for (url, shown) in [
            ("postgres://rider:secret@host:5432/mail", "postgres://rider:***@host:5432/mail"),
            ("postgres://rider:s:e/c?r@et@host/mail", "postgres://rider:***@host/mail"),
            ("postgres:rider:secret@host/mail", "postgres:***@host/mail"),
            ("postgres:/rider:secret@host/mail", "postgres:***@host/mail"),
            ("rider:secret@host", "rider:***@host"),
            ("amqps://:secret@host", "amqps://:***@host"),
            ("amqp://rider@host/", "amqp://rider@host/"),
            ("http://host:8080/?access_token=abc&x=1", "http://host:8080/?access_token=***&x=1"),
            ("postgres://host/mail?sslPassword=abc", "postgres://host/mail?sslPassword=***"),
            ("sqlite:/home/me@work/a:b.db", "sqlite:/home/me@work/a:b.db"),
            ("sqlite:/a.db?key=abc", "sqlite:/a.db?key=***"),
            ("memory:", "memory:"),
            ("orders", "orders"),
        ] {
            assert_eq!(StoreUrl::new(url).to_string(), shown);
            assert_eq!(format!("{:?}", StoreUrl::new(url)), format!("{shown:?}"));
            assert_eq!(StoreUrl::new(url).as_str(), url);
        }
    }
}
