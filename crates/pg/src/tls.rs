//! Encrypted connections, with `sslmode` and `sslrootcert` as in every client of PostgreSQL.

#[cfg(feature = "tls")]
mod certificates;

use postrider_core::MessagingError;

/// Encrypts a connection.
#[cfg(feature = "tls")]
pub(crate) type Connector = tokio_postgres_rustls::MakeRustlsConnect;
/// Leaves a connection unencrypted.
#[cfg(not(feature = "tls"))]
pub(crate) type Connector = tokio_postgres::NoTls;

/// How the server's certificate is verified.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Trust {
    /// Not at all.
    Unverified,
    /// Signed by a known authority, for any name.
    Authority,
    /// Signed by a known authority, for the host name of the URL.
    Name,
}

/// Removes the options that the driver does not know from a URL. Returns the URL and the connector. `provider` is for
/// errors.
pub(crate) fn prepare(url: &str, provider: &str) -> Result<(String, Connector), MessagingError> {
    let (base, query) = url.split_once('?').unwrap_or((url, ""));
    let authority = base.split_once("://").map_or("", |(_, rest)| rest.split('/').next().unwrap_or_default());
    if authority.matches('@').count() > 1 {
        return Err(MessagingError::invalid("URL", "it has two '@'; write one in a user name or password as %40"));
    }
    let (mut trust, mut roots, mut kept) = (Trust::Unverified, None, Vec::new());
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        if cfg!(not(feature = "tls")) && requires_tls(pair) {
            return Err(MessagingError::no_tls("URL", pair, provider));
        }
        match pair.split_once('=') {
            Some(("sslmode", "verify-ca")) => {
                trust = Trust::Authority;
                kept.push("sslmode=require");
            }
            Some(("sslmode", "verify-full")) => {
                trust = Trust::Name;
                kept.push("sslmode=require");
            }
            Some(("sslmode", mode)) if !["disable", "prefer", "require"].contains(&mode) => {
                return Err(MessagingError::invalid(
                    "sslmode",
                    format!(
                        "'{}' is unknown; use disable, prefer, require, verify-ca or verify-full",
                        mode.escape_debug()
                    ),
                ));
            }
            Some(("sslrootcert", path)) => roots = Some(decode(path)?),
            _ => kept.push(pair),
        }
    }
    if roots.is_some() && trust == Trust::Unverified {
        if !kept.contains(&"sslmode=require") {
            let why = "it is of no use without sslmode=require, verify-ca or verify-full; add one";
            return Err(MessagingError::invalid("sslrootcert", why));
        }
        // As in other clients: naming an authority implies its verification.
        trust = Trust::Authority;
    }
    let url = if kept.is_empty() { base.to_owned() } else { format!("{base}?{}", kept.join("&")) };
    Ok((url, connector(trust, roots.as_deref())?))
}

/// Whether a pair of the URL requires TLS. `sslmode=prefer` does not.
fn requires_tls(pair: &str) -> bool {
    match pair.split_once('=') {
        Some(("sslmode", mode)) => ["require", "verify-ca", "verify-full"].contains(&mode),
        Some(("channel_binding", mode)) => mode == "require",
        Some((name, _)) => name == "sslrootcert",
        None => false,
    }
}

#[cfg(feature = "tls")]
fn connector(trust: Trust, roots: Option<&str>) -> Result<Connector, MessagingError> {
    Ok(Connector::new(certificates::client_config(trust, roots)?))
}

/// Without TLS, URLs that require it were refused before.
#[cfg(not(feature = "tls"))]
fn connector(_: Trust, _: Option<&str>) -> Result<Connector, MessagingError> {
    Ok(tokio_postgres::NoTls)
}

/// Decodes `%` and two digits in a path.
fn decode(path: &str) -> Result<String, MessagingError> {
    let mut bytes = Vec::with_capacity(path.len());
    let mut rest = path.as_bytes();
    while let Some((&byte, tail)) = rest.split_first() {
        let code = tail.get(..2).and_then(|code| std::str::from_utf8(code).ok());
        match (byte, code.and_then(|code| u8::from_str_radix(code, 16).ok())) {
            (b'%', Some(decoded)) => {
                bytes.push(decoded);
                rest = &tail[2..];
            }
            _ => {
                bytes.push(byte);
                rest = tail;
            }
        }
    }
    String::from_utf8(bytes).map_err(|_| MessagingError::invalid("sslrootcert", "the path is not UTF-8"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_that_the_driver_does_not_know_are_removed() {
        let rewritten = |url: &str| prepare(url, "postgres").map(|(url, _)| url);
        assert_eq!(rewritten("postgres://h/d").unwrap(), "postgres://h/d");
        assert_eq!(
            rewritten("postgres://h/d?sslmode=prefer&connect_timeout=3").unwrap(),
            "postgres://h/d?sslmode=prefer&connect_timeout=3"
        );
        let refused = rewritten("postgres://h/d?sslmode=verify-all").unwrap_err().to_string();
        assert!(refused.contains("verify-full"), "{refused}");
        assert!(rewritten("postgres://u:p@ss@h/d").unwrap_err().to_string().contains("%40"));
        assert!(rewritten("postgres://h/d?sslrootcert=/x.pem").is_err());
    }

    #[test]
    #[cfg(feature = "tls")]
    fn a_missing_file_of_authorities_is_named() {
        let refused = prepare("postgres://h/d?sslmode=verify-full&sslrootcert=%2Fno%2Fsuch", "postgres");
        let missing = refused.err().unwrap().to_string();
        assert!(missing.contains("'/no/such'"), "{missing}");
    }

    #[test]
    #[cfg(not(feature = "tls"))]
    fn a_build_without_tls_refuses_urls_that_require_it() {
        for pair in [
            "sslmode=require",
            "sslmode=verify-ca",
            "sslmode=verify-full",
            "channel_binding=require",
            "sslrootcert=/x.pem",
        ] {
            let refused = prepare(&format!("postgres://u:secret@h/d?{pair}"), "pgmq").err().unwrap().to_string();
            assert!(refused.contains(&format!("'{pair}'")) && refused.contains("feature 'tls'"), "{refused}");
            assert!(refused.contains("postrider-pgmq") && !refused.contains("secret"), "{refused}");
        }
        for pair in ["sslmode=prefer", "sslmode=disable", "connect_timeout=3"] {
            let url = format!("postgres://h/d?{pair}");
            assert_eq!(prepare(&url, "pgmq").map(|(url, _)| url).unwrap(), url);
        }
    }
}
