//! Parsers of `--per-key` and `--ack-policy`.

use postrider::subscriber::AckPolicy;
use postrider::{Envelope, Headers};

/// Limit of concurrent commands for messages with the same value of a header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PerKey {
    header: String,
    pub(super) limit: usize,
}

impl PerKey {
    /// Returns the header's value; messages without the header are not limited.
    pub(super) fn key_of(self) -> impl Fn(&Envelope) -> Option<String> + Send + Sync + 'static {
        move |envelope| envelope.headers.get(&self.header).map(str::to_owned)
    }
}

/// Reads `HEADER=N`.
pub(super) fn per_key(text: &str) -> Result<PerKey, String> {
    let (header, limit) = text.rsplit_once('=').ok_or("write it as HEADER=N, like tenant=2")?;
    Headers::new().insert(header, "").map_err(|error| error.to_string())?;
    let limit = limit.parse().ok().filter(|limit| *limit > 0);
    let limit = limit.ok_or("write a whole number from 1 after the last '=', like tenant=2")?;
    Ok(PerKey { header: header.to_owned(), limit })
}

/// Reads the name of an ack policy, with `-` or `_`.
pub(super) fn policy(text: &str) -> Result<AckPolicy, String> {
    match text.replace('-', "_").parse() {
        Ok(AckPolicy::Manual) => {
            Err("a command settles its message only by its exit code, so there is no manual policy; with \
                 nack-on-error, exit code 0 is done, 75 is a retry and 65 a dead letter"
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
    fn a_limit_per_key_has_a_header_and_a_number() {
        assert_eq!(per_key("tenant=2"), Ok(PerKey { header: "tenant".into(), limit: 2 }));
        for wrong in ["tenant", "tenant=", "tenant=0", "=3", "tenant=x"] {
            assert!(per_key(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn policies_have_their_common_names() {
        assert_eq!(policy("ack-first"), Ok(AckPolicy::AckFirst));
        assert_eq!(policy("ack"), Ok(AckPolicy::Ack));
        assert_eq!(policy("reject_on_error"), Ok(AckPolicy::RejectOnError));
        assert_eq!(policy("nack-on-error"), Ok(AckPolicy::NackOnError));
        assert!(policy("manual").unwrap_err().contains("only by its exit code"));
        assert_eq!(policy("never").unwrap_err(), "use one of ack-first, ack, reject-on-error, nack-on-error");
    }
}
