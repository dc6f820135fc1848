//! How limits are written on the command line.

use std::time::Duration;

use postrider::subscriber::AckPolicy;
use postrider::subscriber::layers::RateLimitLayer;
use postrider::{Envelope, Headers};

use crate::values;

/// So many messages in a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Rate {
    messages: u32,
    per: Duration,
}

impl Rate {
    pub(super) fn layer(self) -> RateLimitLayer {
        RateLimitLayer::new(self.messages, self.per)
    }
}

/// Reads `N`, `N/s`, `N/m` or `N/h`.
pub(super) fn rate(text: &str) -> Result<Rate, String> {
    let (number, unit) = text.split_once('/').unwrap_or((text, "s"));
    let seconds = match unit {
        "s" => 1,
        "m" => 60,
        "h" => 3600,
        _ => return Err("write the time as s, m or h: 10/s, 100/m or 5/h".into()),
    };
    let messages: Option<u32> = number.parse().ok().filter(|number| *number > 0);
    let messages = messages.ok_or("write a whole number of messages from 1 up: 10, 100/m or 5/h")?;
    Ok(Rate { messages, per: Duration::from_secs(seconds) })
}

/// At most so many commands at once for messages with the same value of a header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PerKey {
    header: String,
    pub(super) most: usize,
}

impl PerKey {
    /// What messages are counted by; those without the header are not.
    pub(super) fn key_of(self) -> impl Fn(&Envelope) -> Option<String> + Send + Sync + 'static {
        move |envelope| envelope.headers.get(&self.header).map(str::to_owned)
    }
}

/// Reads `HEADER=N`.
pub(super) fn per_key(text: &str) -> Result<PerKey, String> {
    let (header, most) = text.rsplit_once('=').ok_or("write it as HEADER=N, like tenant=2")?;
    Headers::new().insert(header, "").map_err(|error| error.to_string())?;
    let most = most.parse().ok().filter(|most| *most > 0);
    let most = most.ok_or("write a whole number from 1 up after the last '=', like tenant=2")?;
    Ok(PerKey { header: header.to_owned(), most })
}

/// How long a command may take.
pub(super) fn timeout(text: &str) -> Result<Duration, String> {
    match values::duration(text)? {
        Duration::ZERO => Err("no command could ever end in time; leave --timeout out for no limit".into()),
        timeout => Ok(timeout),
    }
}

/// Reads the name of an ack policy, with `-` or `_`.
pub(super) fn policy(text: &str) -> Result<AckPolicy, String> {
    match text.replace('-', "_").parse() {
        Ok(AckPolicy::Manual) => {
            Err("a command settles its message by how it ends and has no other way, so nothing is left to settle by \
                 hand; with nack-on-error, exit code 0 is done, 75 is a retry and 65 a dead letter"
                .into())
        }
        Ok(policy) => Ok(policy),
        Err(_) => {
            let names = AckPolicy::ALL.into_iter().filter(|policy| *policy != AckPolicy::Manual);
            let names = names.map(|policy| policy.name().replace('_', "-"));
            Err(format!("use one of {}", names.collect::<Vec<_>>().join(", ")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_a_number_in_a_time() {
        let read = |messages, seconds| Ok(Rate { messages, per: Duration::from_secs(seconds) });
        assert_eq!(rate("10"), read(10, 1));
        assert_eq!(rate("10/s"), read(10, 1));
        assert_eq!(rate("100/m"), read(100, 60));
        assert_eq!(rate("5/h"), read(5, 3600));
        for wrong in ["", "0", "-1", "1.5", "1/d", "/s", "1/", "5000000000"] {
            assert!(rate(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_limit_by_key_has_a_header_and_a_number() {
        assert_eq!(per_key("tenant=2"), Ok(PerKey { header: "tenant".into(), most: 2 }));
        for wrong in ["tenant", "tenant=", "tenant=0", "=3", "tenant=x"] {
            assert!(per_key(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn policies_have_the_names_that_they_have_everywhere() {
        assert_eq!(policy("ack-first"), Ok(AckPolicy::AckFirst));
        assert_eq!(policy("ack"), Ok(AckPolicy::Ack));
        assert_eq!(policy("reject_on_error"), Ok(AckPolicy::RejectOnError));
        assert_eq!(policy("nack-on-error"), Ok(AckPolicy::NackOnError));
        assert!(policy("manual").unwrap_err().contains("by how it ends"));
        assert_eq!(policy("never").unwrap_err(), "use one of ack-first, ack, reject-on-error, nack-on-error");
    }
}
