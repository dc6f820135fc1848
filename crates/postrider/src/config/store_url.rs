//! A URL that may contain a password.

use std::fmt;

use postrider_core::masked_url::masked_url;

/// A store's URL. Display and debug output mask its password; [`as_str`](Self::as_str) returns all of it.
#[derive(Clone, PartialEq, Eq)]
pub struct StoreUrl(String);

impl StoreUrl {
    /// Any URL.
    pub fn new(url: impl Into<String>) -> Self {
        Self(url.into())
    }

    /// The whole URL with its password.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The text before the first colon.
    pub fn scheme(&self) -> Option<&str> {
        self.0.split_once(':').map(|(scheme, _)| scheme)
    }

    /// Whether both certainly lead to one store. Two different URLs may also do so.
    pub(super) fn is_same_store(&self, other: &Self) -> bool {
        let file = |url: &Self| url.0.strip_prefix("sqlite:").and_then(|path| std::path::absolute(path).ok());
        self == other || file(self).is_some_and(|path| file(other) == Some(path))
    }

    /// The decoded path after the server's name; `None` when it is empty.
    pub(super) fn path(&self) -> Option<String> {
        let (_, rest) = self.0.split_once("://")?;
        let rest = rest.split(['?', '#']).next().unwrap_or_default();
        // A password may contain a slash.
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
        f.write_str(&masked_url(&self.0))
    }
}

impl fmt::Debug for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", masked_url(&self.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passwords_are_never_shown() {
        let (url, shown) = ("postgres://rider:secret@host:5432/mail", "postgres://rider:***@host:5432/mail");
        assert_eq!(StoreUrl::new(url).to_string(), shown);
        assert_eq!(format!("{:?}", StoreUrl::new(url)), format!("{shown:?}"));
        assert_eq!(StoreUrl::new(url).as_str(), url);
    }
}
