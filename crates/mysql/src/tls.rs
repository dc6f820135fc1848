//! Encrypted connections, with the URL options of MySQL's own clients: `ssl-mode` and `ssl-ca`.

use std::borrow::Cow;
use std::path::PathBuf;

use mysql_async::SslOpts;
use postrider_core::MessagingError;

use crate::PROVIDER;

/// Removes the TLS options from a URL. Returns the URL and the TLS configuration.
pub(crate) fn prepare(url: &str) -> Result<(Cow<'_, str>, Option<SslOpts>), MessagingError> {
    // The driver has one scheme for both.
    let url = match url.strip_prefix("mariadb:") {
        Some(rest) => Cow::Owned(format!("mysql:{rest}")),
        None => Cow::Borrowed(url),
    };
    let Some((base, query)) = url.split_once('?') else { return Ok((url, None)) };
    let (mut mode, mut authority, mut kept) = (None, None, Vec::new());
    for pair in query.split('&') {
        match pair.split_once('=') {
            Some(("ssl-mode", word)) if cfg!(not(feature = "tls")) && is_encrypted(word) => {
                return Err(MessagingError::no_tls("URL", pair, PROVIDER));
            }
            Some(("ssl-ca", _)) if cfg!(not(feature = "tls")) => {
                return Err(MessagingError::no_tls("URL", pair, PROVIDER));
            }
            Some(("ssl-mode", word)) => mode = Some(word.to_ascii_uppercase()),
            Some(("ssl-ca", path)) => authority = Some(PathBuf::from(path)),
            // The driver's own options. Ignoring them would leave a connection unencrypted that should be encrypted.
            Some((word @ ("require_ssl" | "verify_ca" | "verify_identity" | "built_in_roots"), _)) => {
                let why = format!("'{word}' is not supported; use ssl-mode=REQUIRED or ssl-mode=VERIFY_IDENTITY");
                return Err(MessagingError::invalid("URL", why));
            }
            _ => kept.push(pair),
        }
    }
    let options = SslOpts::default();
    let options = match mode.as_deref() {
        None | Some("DISABLED") => None,
        Some("REQUIRED") => {
            Some(options.with_danger_accept_invalid_certs(true).with_danger_skip_domain_validation(true))
        }
        Some("VERIFY_IDENTITY") => Some(options),
        // The driver cannot verify an authority without the name.
        Some(unknown) => {
            let why =
                format!("'{}' is not supported; use DISABLED, REQUIRED or VERIFY_IDENTITY", unknown.escape_debug());
            return Err(MessagingError::invalid("ssl-mode", why));
        }
    };
    if authority.is_some() && mode.as_deref() != Some("VERIFY_IDENTITY") {
        return Err(MessagingError::invalid("ssl-ca", "it is of no use without ssl-mode=VERIFY_IDENTITY"));
    }
    let options = options.map(|options| match authority {
        Some(path) => options.with_root_certs(vec![path.into()]).with_disable_built_in_roots(true),
        None => options,
    });
    let url = if kept.is_empty() { base.to_owned() } else { format!("{base}?{}", kept.join("&")) };
    Ok((Cow::Owned(url), options))
}

/// Whether a mode requires encryption.
fn is_encrypted(mode: &str) -> bool {
    ["REQUIRED", "VERIFY_IDENTITY"].iter().any(|word| mode.eq_ignore_ascii_case(word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tls_options_are_removed_and_others_kept() {
        let rewritten = |url: &str| prepare(url).map(|(url, options)| (url.into_owned(), options.is_some()));
        for (url, plain, is_encrypted) in [
            ("mysql://h/d", "mysql://h/d", false),
            ("mariadb://h/d", "mysql://h/d", false),
            #[cfg(feature = "tls")]
            ("mysql://h/d?ssl-mode=required", "mysql://h/d", true),
            #[cfg(feature = "tls")]
            ("mysql://h/d?a=b&ssl-mode=VERIFY_IDENTITY&ssl-ca=/x.pem", "mysql://h/d?a=b", true),
            ("mysql://h/d?ssl-mode=DISABLED", "mysql://h/d", false),
        ] {
            assert_eq!(rewritten(url).unwrap(), (plain.to_owned(), is_encrypted), "{url}");
        }
        for url in [
            "mysql://h/d?ssl-mode=PREFERRED",
            "mysql://h/d?ssl-mode=VERIFY_CA",
            "mysql://h/d?ssl-ca=/x.pem",
            "mysql://h/d?require_ssl=true",
        ] {
            assert!(rewritten(url).is_err(), "{url}");
        }
    }

    #[test]
    #[cfg(not(feature = "tls"))]
    fn a_build_without_tls_refuses_urls_that_require_it() {
        for pair in ["ssl-mode=required", "ssl-mode=VERIFY_IDENTITY", "ssl-ca=/x.pem"] {
            let refused = prepare(&format!("mysql://u:secret@h/d?{pair}")).unwrap_err().to_string();
            assert!(refused.contains(&format!("'{pair}'")) && refused.contains("feature 'tls'"), "{refused}");
            assert!(refused.contains("postrider-mysql") && !refused.contains("secret"), "{refused}");
        }
    }
}
