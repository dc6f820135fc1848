//! The causes of connection failures, in texts for users.

#[cfg(feature = "tls")]
mod encryption;

use std::error::Error;

/// The cause of an error.
pub(crate) fn cause(error: &(dyn Error + 'static)) -> String {
    let (mut texts, mut next) = (Vec::<String>::new(), Some(error));
    while let Some(error) = next {
        #[cfg(feature = "tls")]
        if let Some(cause) = encryption::cause(error) {
            return cause;
        }
        if error.downcast_ref().is_some_and(hyper::Error::is_parse) {
            return "the answer is not HTTP; if the server uses TLS, write https://".to_owned();
        }
        next = error.source();
        let text = error.to_string();
        // The client's error only names its failed part, and some errors repeat the text of their source.
        let is_redundant = error.is::<hyper_util::client::legacy::Error>() && next.is_some();
        if !is_redundant && texts.last().is_none_or(|last| *last != text) {
            texts.push(text);
        }
    }
    texts.join(": ")
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[test]
    fn other_errors_show_their_own_text() {
        let refused = io::Error::from(io::ErrorKind::ConnectionRefused);
        assert_eq!(cause(&refused), "connection refused");
    }
}
