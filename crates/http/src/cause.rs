//! Why a connection failed, for people who know neither the libraries below nor their words.

#[cfg(feature = "tls")]
mod encryption;

use std::error::Error;

/// The reason at the bottom of an error.
pub(crate) fn cause(error: &(dyn Error + 'static)) -> String {
    let (mut words, mut next) = (Vec::<String>::new(), Some(error));
    while let Some(error) = next {
        #[cfg(feature = "tls")]
        if let Some(cause) = encryption::cause(error) {
            return cause;
        }
        if error.downcast_ref().is_some_and(hyper::Error::is_parse) {
            return "what came is no HTTP; if the server encrypts, write https://".to_owned();
        }
        next = error.source();
        let text = error.to_string();
        // That of the client says only which of its parts saw it, and some repeat what the next one says.
        let says_nothing = error.is::<hyper_util::client::legacy::Error>() && next.is_some();
        if !says_nothing && words.last().is_none_or(|last| *last != text) {
            words.push(text);
        }
    }
    words.join(": ")
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[test]
    fn the_bottom_of_other_errors_is_told() {
        let refused = io::Error::from(io::ErrorKind::ConnectionRefused);
        assert_eq!(cause(&refused), "connection refused");
    }
}
