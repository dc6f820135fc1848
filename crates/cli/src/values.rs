//! How values are written on the command line. What is refused here never reaches a store.

use std::time::Duration;

use postrider::message::MAX_DURATION;
use postrider::{
    ContentType, Headers, Key, MessageId, MessagingError, Priority, QueueName, ReceiptHandle, duration_text,
};

/// A duration, like `500ms` or `1h30m`.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let wrong = || format!("write a duration like {}, of at most a hundred years", duration_text::EXAMPLES);
    duration_text::parse(text).filter(|duration| *duration <= MAX_DURATION).ok_or_else(wrong)
}

/// The length of a lease.
pub(crate) fn visibility(text: &str) -> Result<Duration, String> {
    match duration(text)? {
        Duration::ZERO => Err("a lease of no length protects nothing; to give a message back, release it".into()),
        lease => Ok(lease),
    }
}

/// A header, `name=value`. The value may have more of `=`.
pub(crate) fn header(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("write it as name=value")?;
    Headers::new().insert(name, value).map_err(why)?;
    Ok((name.to_owned(), value.to_owned()))
}

/// A queue to send to.
pub(crate) fn queue(text: &str) -> Result<QueueName, String> {
    QueueName::new(text).map_err(why)
}

/// A queue to read from: the name of a queue's dead letters is one, too.
pub(crate) fn readable_queue(text: &str) -> Result<QueueName, String> {
    QueueName::for_reading(text).map_err(why)
}

/// An ordering or dedup key.
pub(crate) fn key(text: &str) -> Result<Key, String> {
    Key::new("key", text).map_err(why)
}

/// A priority, from 0 to 9.
pub(crate) fn priority(text: &str) -> Result<Priority, String> {
    let number = text.parse::<u8>().ok().and_then(|number| Priority::new(number).ok());
    number.ok_or_else(|| "write a number from 0 to 9; 9 is the most urgent, 4 is what others have".into())
}

/// A message's id.
pub(crate) fn id(text: &str) -> Result<MessageId, String> {
    text.parse().map_err(|_| "write a UUID like 0190163d-8694-739b-aea5-966c26f8ad91".into())
}

/// A content type.
pub(crate) fn content_type(text: &str) -> Result<ContentType, String> {
    ContentType::parse(text).map_err(why)
}

/// A receipt, as `receive` printed it.
pub(crate) fn receipt(text: &str) -> Result<ReceiptHandle, String> {
    text.parse().map_err(why)
}

fn why(error: MessagingError) -> String {
    match error {
        MessagingError::InvalidInput { why, .. } => why,
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_is_split_at_the_first_sign() {
        assert_eq!(header("query=a=b").unwrap(), ("query".into(), "a=b".into()));
        assert_eq!(header("empty=").unwrap(), ("empty".into(), String::new()));
        for bad in ["none", "=value", "a b=c", "postrider-x=1", "a=\0"] {
            assert!(header(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn durations_have_an_end() {
        assert_eq!(duration("0s").unwrap(), Duration::ZERO);
        assert!(visibility("0s").is_err());
        for bad in ["-5s", "5", "36501d", "99999999999999999999d", ""] {
            assert!(duration(bad).is_err(), "{bad:?}");
        }
    }
}
