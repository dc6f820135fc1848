//! Encrypted connections, with the meaning that `sslmode` and `sslrootcert` have for every client of PostgreSQL.

#[cfg(feature = "tls")]
mod certificates;

use postrider_core::MessagingError;

/// What makes an encrypted connection of a plain one.
#[cfg(feature = "tls")]
pub(crate) type Connector = tokio_postgres_rustls::MakeRustlsConnect;
/// Leaves a connection plain.
#[cfg(not(feature = "tls"))]
pub(crate) type Connector = tokio_postgres::NoTls;

/// How far the server's certificate is trusted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Trust {
    /// Whoever answers is the server.
    Anybody,
    /// A known authority has signed the certificate, for whatever name.
    Authority,
    /// A known authority has signed the certificate, for the name in the URL.
    Name,
}

/// Takes what the driver does not know out of a URL, and answers how to connect. `provider` is for errors.
pub(crate) fn prepare(url: &str, provider: &str) -> Result<(String, Connector), MessagingError> {
    let (base, query) = url.split_once('?').unwrap_or((url, ""));
    let authority = base.split_once("://").map_or("", |(_, rest)| rest.split('/').next().unwrap_or_default());
    if authority.matches('@').count() > 1 {
        return Err(MessagingError::invalid("URL", "it has two '@'; write one in a user's name or password as %40"));
    }
    let (mut trust, mut roots, mut kept) = (Trust::Anybody, None, Vec::new());
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        if cfg!(not(feature = "tls")) && asks_for_tls(pair) {
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
                        "'{}' is not known; use disable, prefer, require, verify-ca or verify-full",
                        mode.escape_debug()
                    ),
                ));
            }
            Some(("sslrootcert", path)) => roots = Some(decode(path)?),
            _ => kept.push(pair),
        }
    }
    if roots.is_some() && trust == Trust::Anybody {
        if !kept.contains(&"sslmode=require") {
            let why = "it is of no use without sslmode=require, verify-ca or verify-full";
            return Err(MessagingError::invalid("sslrootcert", why));
        }
        // As for other clients: who names an authority wants it to be asked.
        trust = Trust::Authority;
    }
    let url = if kept.is_empty() { base.to_owned() } else { format!("{base}?{}", kept.join("&")) };
    Ok((url, connector(trust, roots.as_deref())?))
}

/// Whether a pair of the URL cannot be kept without encryption. `sslmode=prefer` can.
fn asks_for_tls(pair: &str) -> bool {
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

/// Every URL that asks for more than nothing was refused.
#[cfg(not(feature = "tls"))]
fn connector(_: Trust, _: Option<&str>) -> Result<Connector, MessagingError> {
    Ok(tokio_postgres::NoTls)
}

/// A path may have any character, written as `%` and two digits.
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
    String::from_utf8(bytes).map_err(|_| MessagingError::invalid("sslrootcert", "it is no path in UTF-8"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_driver_does_not_know_is_taken_out() {
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
    fn a_file_of_authorities_that_is_missing_is_named() {
        let refused = prepare("postgres://h/d?sslmode=verify-full&sslrootcert=%2Fno%2Fsuch", "postgres");
        let missing = refused.err().unwrap().to_string();
        assert!(missing.contains("'/no/such'"), "{missing}");
    }

    #[test]
    #[cfg(not(feature = "tls"))]
    fn a_build_without_tls_refuses_what_asks_for_it() {
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
