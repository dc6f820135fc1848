//! The name of a message's file: all state of the message that changes.
//!
//! A step of a message's life is one rename, so all that it changes must be in the name. The name is readable, sorts by
//! time, and its parts are always in this order:
//!
//! ```text
//! until-20261116T220233-123456.token-…   the lease: its end and its token
//! 20261116T220203-123456                 the position: when it was sent, or when it was dead-lettered
//! 0199e1c2-…                             the message's id
//! dead                                   it is a dead letter
//! due-… / retry-…                        when it can be received: sent with a delay or given back / failed
//! p9                                     its priority, unless that is 4
//! k…, u…                                 hashes of its ordering key and its dedup key
//! exp-…                                  when it expires
//! d2, a1                                 how often it was delivered, and how often a handler failed
//! f120, l4000120                         first and last delivery, in microseconds after its position
//! n                                      there is a note about it in `records/`
//! .msg, ~orders.json, .file              a message file, or a foreign file with its original name
//! ```

use std::fmt::Write as _;

use data_encoding::BASE32_DNSSEC;
use postrider_core::{LeaseToken, MessageId, Priority, Timestamp};
use uuid::Uuid;

use crate::time_text;

/// Maximum length of an original name that is kept in the new name. A longer one goes into the note.
pub(crate) const MAX_ORIGINAL: usize = 48;

/// A lease: its end and its token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Lease {
    pub(crate) until: Timestamp,
    pub(crate) token: LeaseToken,
}

/// When a message without a lease can be received.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Due {
    /// At once.
    Always,
    /// Sent with a delay until this time, or released at this time.
    From(Timestamp),
    /// Retried at this time after a failure.
    Retry(Timestamp),
}

/// Kind of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A message file: metadata and body.
    Message,
    /// A foreign file, with its original name.
    Foreign(Box<[u8]>),
    /// A foreign file whose original name is too long and is in the note.
    LongNamed,
}

/// A parsed file name of this provider.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FileName {
    pub(crate) lease: Option<Lease>,
    pub(crate) position: Timestamp,
    pub(crate) id: MessageId,
    pub(crate) is_dead: bool,
    pub(crate) due: Due,
    pub(crate) priority: Priority,
    pub(crate) key: Option<u64>,
    pub(crate) dedup: Option<u64>,
    pub(crate) expires_at: Option<Timestamp>,
    pub(crate) deliveries: u32,
    pub(crate) attempts: u32,
    pub(crate) first: Option<Timestamp>,
    pub(crate) last: Option<Timestamp>,
    pub(crate) is_noted: bool,
    pub(crate) kind: Kind,
}

impl FileName {
    /// A new message at this position.
    pub(crate) fn new(position: Timestamp, id: MessageId, kind: Kind) -> Self {
        Self {
            lease: None,
            position,
            id,
            is_dead: false,
            due: Due::Always,
            priority: Priority::default(),
            key: None,
            dedup: None,
            expires_at: None,
            deliveries: 0,
            attempts: 0,
            first: None,
            last: None,
            is_noted: false,
            kind,
        }
    }

    /// When it can next be received: the end of its lease, its due time, or its position.
    pub(crate) fn next_attempt_at(&self) -> Timestamp {
        match (self.lease, self.due) {
            (Some(lease), _) => lease.until,
            (None, Due::From(due) | Due::Retry(due)) => due,
            (None, Due::Always) => self.position,
        }
    }

    pub(crate) fn is_leased(&self, now: Timestamp) -> bool {
        self.lease.is_some_and(|lease| now < lease.until)
    }

    /// The stem of the names of its note and its death record, which never changes.
    pub(crate) fn stem(&self) -> String {
        format!("{}.{}", time_text::write(self.position), self.id)
    }

    pub(crate) fn render(&self) -> Vec<u8> {
        let mut text = String::with_capacity(160);
        // Writing into a string cannot fail.
        if let Some(Lease { until, token }) = self.lease {
            text.push_str("until-");
            time_text::push(&mut text, until);
            text.push_str(".token-");
            BASE32_DNSSEC.encode_append(&token.0.to_be_bytes(), &mut text);
            text.push('.');
        }
        time_text::push(&mut text, self.position);
        let _ = write!(text, ".{}", self.id);
        if self.is_dead {
            text.push_str(".dead");
        }
        let mut time = |tag: &str, time: Timestamp| {
            text.push_str(tag);
            time_text::push(&mut text, time);
        };
        match self.due {
            Due::Always => {}
            Due::From(due) => time(".due-", due),
            Due::Retry(due) => time(".retry-", due),
        }
        if self.priority != Priority::default() {
            let _ = write!(text, ".p{}", self.priority.get());
        }
        for (tag, hash) in [('k', self.key), ('u', self.dedup)] {
            if let Some(hash) = hash {
                text.extend(['.', tag]);
                BASE32_DNSSEC.encode_append(&hash.to_be_bytes(), &mut text);
            }
        }
        if let Some(expires_at) = self.expires_at {
            text.push_str(".exp-");
            time_text::push(&mut text, expires_at);
        }
        for (tag, count) in [('d', self.deliveries), ('a', self.attempts)] {
            if count > 0 {
                let _ = write!(text, ".{tag}{count}");
            }
        }
        for (tag, delivery) in [('f', self.first), ('l', self.last)] {
            if let Some(delivery) = delivery {
                let _ = write!(text, ".{tag}{}", delivery.since(self.position).as_micros());
            }
        }
        if self.is_noted {
            text.push_str(".n");
        }
        let mut name = text.into_bytes();
        match &self.kind {
            Kind::Message => name.extend_from_slice(b".msg"),
            Kind::LongNamed => name.extend_from_slice(b".file"),
            Kind::Foreign(original) => {
                name.push(b'~');
                name.extend_from_slice(original);
            }
        }
        name
    }

    /// Parses a name; `None` for a foreign one.
    pub(crate) fn parse(name: &[u8]) -> Option<Self> {
        let (tags, kind) = match name.iter().position(|byte| *byte == b'~') {
            Some(at) => match &name[at + 1..] {
                original if original.is_empty() || original.len() > MAX_ORIGINAL => return None,
                original => (&name[..at], Kind::Foreign(original.into())),
            },
            None => match (name.strip_suffix(b".msg"), name.strip_suffix(b".file")) {
                (Some(tags), _) => (tags, Kind::Message),
                (None, Some(tags)) => (tags, Kind::LongNamed),
                (None, None) => return None,
            },
        };
        let mut tags = std::str::from_utf8(tags).ok()?.split('.');
        let mut tag = tags.next()?;
        let mut lease = None;
        if let Some(until) = tag.strip_prefix("until-") {
            let token = tags.next()?.strip_prefix("token-")?;
            let token = BASE32_DNSSEC.decode(token.as_bytes()).ok()?;
            let token = LeaseToken(u128::from_be_bytes(token.try_into().ok()?));
            lease = Some(Lease { until: time_text::read(until)?, token });
            tag = tags.next()?;
        }
        let position = time_text::read(tag)?;
        let id = MessageId::from_uuid(Uuid::try_parse(tags.next()?).ok()?);
        let mut parsed = Self { lease, ..Self::new(position, id, kind) };
        for tag in tags {
            parsed.read_tag(tag)?;
        }
        Some(parsed)
    }

    fn read_tag(&mut self, tag: &str) -> Option<()> {
        let hash = |text: &str| {
            let bytes = BASE32_DNSSEC.decode(text.as_bytes()).ok()?;
            Some(u64::from_be_bytes(bytes.try_into().ok()?))
        };
        let after = |text: &str| {
            let micros = text.parse().ok()?;
            Some(self.position.saturating_add(std::time::Duration::from_micros(micros)))
        };
        match tag {
            "dead" => self.is_dead = true,
            "n" => self.is_noted = true,
            _ => {
                if let Some(due) = tag.strip_prefix("due-") {
                    self.due = Due::From(time_text::read(due)?);
                } else if let Some(due) = tag.strip_prefix("retry-") {
                    self.due = Due::Retry(time_text::read(due)?);
                } else if let Some(expires_at) = tag.strip_prefix("exp-") {
                    self.expires_at = Some(time_text::read(expires_at)?);
                } else {
                    let (letter, rest) = (tag.get(..1)?, tag.get(1..)?);
                    match letter {
                        "p" => self.priority = Priority::new(rest.parse().ok()?).ok()?,
                        "k" => self.key = Some(hash(rest)?),
                        "u" => self.dedup = Some(hash(rest)?),
                        "d" => self.deliveries = rest.parse().ok()?,
                        "a" => self.attempts = rest.parse().ok()?,
                        "f" => self.first = Some(after(rest)?),
                        "l" => self.last = Some(after(rest)?),
                        _ => return None,
                    }
                }
            }
        }
        Some(())
    }
}

/// The hash of a key in a name. Ordering keys with the same hash wait for each other; dedup keys are compared by their text.
pub(crate) fn hash(key: &str) -> u64 {
    const KEYS: Uuid = Uuid::from_u128(0x2a0c_65c1_88a5_5e33_9d0f_70c1_c0de_0f11);
    Uuid::new_v5(&KEYS, key.as_bytes()).as_u64_pair().0
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn longest() -> FileName {
        let position = Timestamp::from_micros(1_763_330_523_123_456);
        let later = position.saturating_add(Duration::from_secs(99 * 365 * 24 * 3600));
        FileName {
            lease: Some(Lease { until: later, token: LeaseToken(u128::MAX - 7) }),
            is_dead: true,
            due: Due::Retry(later),
            priority: Priority::HIGHEST,
            key: Some(u64::MAX),
            dedup: Some(7),
            expires_at: Some(later),
            deliveries: u32::MAX,
            attempts: u32::MAX,
            first: Some(later),
            last: Some(later),
            is_noted: true,
            ..FileName::new(position, MessageId::generate(), Kind::Message)
        }
    }

    #[test]
    fn a_name_round_trips_and_fits_into_255_bytes() {
        let name = longest();
        // A name never has both a lease and a due time.
        let leased = FileName { due: Due::Always, ..name.clone() };
        assert!(leased.render().len() <= 255, "{}", leased.render().len());
        let waiting = FileName { lease: None, ..name.clone() };
        assert!(waiting.render().len() <= 255);
        // A foreign file has no dedup key and does not expire.
        let kind = Kind::Foreign(vec![0xff; MAX_ORIGINAL].into());
        let foreign = FileName { dedup: None, expires_at: None, kind, ..leased.clone() };
        assert!(foreign.render().len() <= 255, "{}", foreign.render().len());
        let plain = FileName::new(name.position, name.id, Kind::LongNamed);
        for name in [name, leased, waiting, foreign, plain] {
            assert_eq!(FileName::parse(&name.render()).as_ref(), Some(&name));
        }
    }

    #[test]
    fn foreign_names_are_not_parsed() {
        let ours = String::from_utf8(longest().render()).unwrap();
        for name in ["", "orders.json", "a.msg", "~", ".msg", "~x", "2026.json", &ours.replace(".p9", ".q9")] {
            assert_eq!(FileName::parse(name.as_bytes()), None, "{name}");
        }
        assert_eq!(FileName::parse(ours.trim_end_matches(".msg").as_bytes()), None);
        assert_eq!(FileName::parse(b"\xff\xfe.msg"), None);
        let plain = FileName::new(longest().position, longest().id, Kind::Foreign(vec![b'x'; 49].into()));
        assert_eq!(FileName::parse(&plain.render()), None, "its later names would be too long");
    }
}
