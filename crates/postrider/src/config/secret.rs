//! A text that is never shown.

use std::fmt;

use postrider_core::masked_url::MASK;

/// The prefix of a server's tokens.
const TOKEN: &str = "prt_";

/// A text that is masked in display and debug output.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    pub(super) fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The text itself.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(MASK)
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(MASK)
    }
}

/// Whether a text is a token.
pub(super) fn is_token(text: &str) -> bool {
    text.trim_start().starts_with(TOKEN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_not_shown() {
        let secret = Secret::new("prt_abc");
        assert_eq!((secret.reveal(), format!("{secret} {secret:?}").as_str()), ("prt_abc", "*** ***"));
        assert!(is_token(" prt_abc") && !is_token("port"));
    }
}
