//! URLs without secrets, for display.

/// The replacement of a secret.
pub const MASK: &str = "***";

/// Schemes whose URLs are local paths: an `@` in them is part of a name.
const PATH_SCHEMES: &[&str] = &["memory", "spool", "sqlite"];

/// Schemes whose servers accept a user name alone as a key.
const KEY_SCHEMES: &[&str] = &["http", "https", "sqs+http", "sqs+https"];

/// A query parameter is masked if its name contains one of these.
const SECRET_PARAMETERS: &[&str] = &["pass", "pwd", "secret", "token", "key", "auth", "credential", "signature"];

/// Masks the password in a URL. Texts, logs and errors show URLs only in this form.
///
/// Passwords may contain unescaped `@`, `/`, `?` and `:`. So everything up to the last `@` that could belong to the
/// password is masked, even if part of the host or path is lost.
///
/// A text like `host=x password=secret`, which is not a URL, is cut at its first secret.
pub fn masked_url(url: &str) -> String {
    let url = &masked_keywords(url);
    let (scheme, rest) = match url.split_once(':') {
        Some((scheme, rest)) => (format!("{scheme}:"), rest),
        None => (String::new(), url.as_str()),
    };
    let is_of = |schemes: &[&str]| {
        let name = scheme.strip_suffix(':').unwrap_or_default();
        schemes.iter().any(|known| known.eq_ignore_ascii_case(name))
    };
    let rest = &if is_of(PATH_SCHEMES) { rest.to_owned() } else { masked_keywords(rest) };
    let (credentials, address) = match rest.rsplit_once('@') {
        Some((credentials, address)) if !is_of(PATH_SCHEMES) => (Some(credentials), address),
        _ => (None, rest.as_str()),
    };
    let credentials = credentials.map_or(String::new(), |found| masked_credentials(found, is_of(KEY_SCHEMES)) + "@");
    scheme + &credentials + &masked_query(address)
}

/// Cuts a list of `name=value` at its first secret, because a quoted value has no reliable end. Other texts are
/// unchanged.
fn masked_keywords(text: &str) -> String {
    let first = text.split([':', '/', '?', '@']).next().unwrap_or_default();
    if !first.contains('=') {
        return text.to_owned();
    }
    let mut begin = 0;
    for (at, _) in text.match_indices('=') {
        let name = text[begin..at].trim_end().rsplit([' ', '\t', '\n', ';', '&']).next();
        if name.is_some_and(is_secret) {
            return format!("{}={MASK}", &text[..at]);
        }
        begin = at + 1;
    }
    text.to_owned()
}

fn masked_credentials(credentials: &str, is_key: bool) -> String {
    match credentials.strip_prefix("//") {
        Some(named) => match named.split_once(':') {
            Some((user, _)) => format!("//{user}:{MASK}"),
            None if is_key => format!("//{MASK}"),
            None => credentials.to_owned(),
        },
        // Without the slashes the end of a user name is unknown.
        None => MASK.to_owned(),
    }
}

fn masked_query(address: &str) -> String {
    let (address, fragment) = match address.split_once('#') {
        // A fragment is not sent to the server and may contain anything.
        Some((address, _)) => (address, format!("#{MASK}")),
        None => (address, String::new()),
    };
    let Some((path, query)) = address.split_once('?') else { return format!("{address}{fragment}") };
    let parameters: Vec<_> = query.split('&').map(masked_parameter).collect();
    format!("{path}?{}{fragment}", parameters.join("&"))
}

fn masked_parameter(parameter: &str) -> String {
    match parameter.split_once('=') {
        Some((name, _)) if is_secret(name) => format!("{name}={MASK}"),
        _ => parameter.to_owned(),
    }
}

fn is_secret(name: &str) -> bool {
    SECRET_PARAMETERS.iter().any(|secret| name.to_lowercase().contains(secret))
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
            ("http://rider:secret@host:4318", "http://rider:***@host:4318"),
            ("https://secret@host:4318/a", "https://***@host:4318/a"),
            ("http://host/?pass=abc#secret", "http://host/?pass=***#***"),
            ("http://host/?X-Signature=abc", "http://host/?X-Signature=***"),
            ("postgres://host/mail?sslPassword=abc", "postgres://host/mail?sslPassword=***"),
            ("sqlite:/home/me@work/a:b.db", "sqlite:/home/me@work/a:b.db"),
            ("sqlite:/a.db?key=abc", "sqlite:/a.db?key=***"),
            ("HTTP://secret@host", "HTTP://***@host"),
            ("Sqs+Https://secret@host", "Sqs+Https://***@host"),
            ("SQLITE:/home/me@work/a.db", "SQLITE:/home/me@work/a.db"),
            ("host=x password=secret", "host=x password=***"),
            ("host=x:5432 password = 'se cret=s' user=rider", "host=x:5432 password =***"),
            ("host=x password=s:e@c/r?et", "host=x password=***"),
            ("postgres:host=x password=secret", "postgres:host=x password=***"),
            ("Server=x;Uid=rider;Pwd=secret;", "Server=x;Uid=rider;Pwd=***"),
            ("host=x:secret@host", "host=x:***@host"),
            ("host=x user=rider", "host=x user=rider"),
            ("memory:", "memory:"),
            ("orders", "orders"),
        ] {
            assert_eq!(masked_url(url), shown);
            assert_eq!(masked_url(&masked_url(url)), shown, "twice");
        }
    }
}
