//! Parsers of command-line values. An invalid value is refused before the store is reached.

use std::num::NonZeroU32;
use std::time::Duration;

use postrider::message::MAX_DURATION;
use postrider::task::{DeadReason, MissedFire};
use postrider::{
    ArchivedState, ContentType, Headers, IdempotencyKey, Key, MessageId, MessagingError, Priority, QueueName, TaskId,
    TaskState, TaskType, Timestamp, WaitingState, duration_text,
};
use uuid::Uuid;

/// A duration, like `500ms` or `1h30m`.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let wrong = || format!("write a duration like {}, of at most a hundred years", duration_text::EXAMPLES);
    duration_text::parse(text).filter(|duration| *duration <= MAX_DURATION).ok_or_else(wrong)
}

/// The length of a lease.
pub(crate) fn visibility(text: &str) -> Result<Duration, String> {
    match duration(text)? {
        Duration::ZERO => Err("use more than 0s; to give a message back, use 'postrider release'".into()),
        lease => Ok(lease),
    }
}

/// The length of a task's lease. On a busy machine a shorter one would expire before its renewal.
pub(crate) fn lease(text: &str) -> Result<Duration, String> {
    let lease = duration(text)?;
    if lease < Duration::from_millis(100) {
        return Err("a shorter lease cannot be renewed in time; use 100ms or more".into());
    }
    Ok(lease)
}

/// A header, `name=value`. The value may contain `=`.
pub(crate) fn header(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("write it as name=value")?;
    Headers::new().insert(name, value).map_err(why)?;
    Ok((name.to_owned(), value.to_owned()))
}

/// A queue to send to.
pub(crate) fn queue(text: &str) -> Result<QueueName, String> {
    QueueName::new(text).map_err(why)
}

/// A queue to read from, or its dead letters.
pub(crate) fn readable_queue(text: &str) -> Result<QueueName, String> {
    QueueName::for_reading(text).map_err(why)
}

/// A queue to run commands for.
pub(crate) fn worked_queue(text: &str) -> Result<QueueName, String> {
    let instead = |origin: &QueueName| {
        format!("send them again with 'postrider dlq redrive {origin}', or read them with 'postrider receive {text}'")
    };
    living_queue(text, instead)
}

/// A queue to purge.
pub(crate) fn purged_queue(text: &str) -> Result<QueueName, String> {
    living_queue(text, |origin| format!("use 'postrider dlq purge {origin}'"))
}

/// A queue whose waiting messages are acted on.
pub(crate) fn waiting_queue(text: &str) -> Result<QueueName, String> {
    living_queue(text, |origin| format!("use 'postrider dlq redrive {origin}' or 'postrider dlq purge {origin}'"))
}

/// A queue to create or delete.
pub(crate) fn own_queue(text: &str) -> Result<QueueName, String> {
    living_queue(text, |origin| format!("they are created and deleted with '{origin}'"))
}

/// A queue other than dead letters; `instead` returns the alternative for the dead letters of a queue.
fn living_queue(text: &str, instead: impl Fn(&QueueName) -> String) -> Result<QueueName, String> {
    match readable_queue(text)? {
        queue if queue.holds_dead_letters() => {
            let origin = queue.origin();
            Err(format!("these are the dead letters of '{origin}'; {}", instead(&origin)))
        }
        queue => Ok(queue),
    }
}

/// A number from 1.
pub(crate) fn count(text: &str) -> Result<usize, String> {
    let number = text.parse().ok().filter(|number| *number > 0);
    number.ok_or_else(|| "write a whole number; use at least 1".into())
}

/// The number of workers. Each takes a process and several open files.
pub(crate) fn workers(text: &str) -> Result<usize, String> {
    count(text).ok().filter(|number| *number <= 10_000).ok_or_else(|| "write a whole number from 1 to 10000".into())
}

/// The time limit of a command.
pub(crate) fn timeout(text: &str) -> Result<Duration, String> {
    match duration(text)? {
        Duration::ZERO => Err("use more than 0s; omit --timeout for no limit".into()),
        timeout => Ok(timeout),
    }
}

/// A count per time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Rate {
    pub(crate) count: u32,
    pub(crate) per: Duration,
}

impl Rate {
    pub(crate) fn per_second(self) -> f64 {
        f64::from(self.count) / self.per.as_secs_f64()
    }
}

/// A rate: `N`, `N/s`, `N/m` or `N/h`.
pub(crate) fn rate(text: &str) -> Result<Rate, String> {
    let (number, unit) = text.split_once('/').unwrap_or((text, "s"));
    let seconds = match unit {
        "s" => 1,
        "m" => 60,
        "h" => 3600,
        _ => return Err("write the time as s, m or h: 10/s, 100/m or 5/h".into()),
    };
    let count: Option<u32> = number.parse().ok().filter(|number| *number > 0);
    let count = count.ok_or("write a whole number from 1: 10, 100/m or 5/h")?;
    Ok(Rate { count, per: Duration::from_secs(seconds) })
}

/// The number of deliveries after which a message is dead-lettered.
pub(crate) fn deliveries(text: &str) -> Result<NonZeroU32, String> {
    text.parse().map_err(|_| "write a whole number; use at least 1, the first delivery".into())
}

/// The seed of a run.
pub(crate) fn seed(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| format!("write a whole number from 0 to {}, as a run prints it at its end", u64::MAX))
}

/// The number of messages of a storm.
pub(crate) fn storm(text: &str) -> Result<usize, String> {
    let number = text.parse().ok().filter(|number| *number <= 10_000_000);
    number.ok_or_else(|| "write a whole number from 0 to 10000000".into())
}

/// An ordering or dedup key.
pub(crate) fn key(text: &str) -> Result<Key, String> {
    Key::new("key", text).map_err(why)
}

/// A priority, from 0 to 9.
pub(crate) fn priority(text: &str) -> Result<Priority, String> {
    let number = text.parse::<u8>().ok().and_then(|number| Priority::new(number).ok());
    number.ok_or_else(|| "write a number from 0 to 9; 9 is the most urgent, 4 is the default".into())
}

/// A message's id.
pub(crate) fn id(text: &str) -> Result<MessageId, String> {
    text.parse().map_err(|_| "write a UUID like 0190163d-8694-739b-aea5-966c26f8ad91".into())
}

/// A task's id.
pub(crate) fn task_id(text: &str) -> Result<TaskId, String> {
    text.parse().map_err(|_| "write a UUID like 0190163d-8694-739b-aea5-966c26f8ad91".into())
}

/// A task's type.
pub(crate) fn task_type(text: &str) -> Result<TaskType, String> {
    TaskType::new(text).map_err(why)
}

/// The state of a task.
pub(crate) fn task_state(text: &str) -> Result<TaskState, String> {
    text.parse().map_err(why)
}

/// The reason of a task's death.
pub(crate) fn dead_reason(text: &str) -> Result<DeadReason, String> {
    text.parse().map_err(why)
}

/// The idempotency key of a task.
pub(crate) fn idempotency_key(text: &str) -> Result<IdempotencyKey, String> {
    IdempotencyKey::new(text).map_err(why)
}

/// The number of attempts of a task.
pub(crate) fn attempts(text: &str) -> Result<NonZeroU32, String> {
    text.parse().map_err(|_| "write a whole number; use at least 1, the first attempt".into())
}

/// The policy for missed times of a schedule.
pub(crate) fn missed(text: &str) -> Result<MissedFire, String> {
    text.parse().map_err(why)
}

/// A time, like `2026-03-01T09:30:00Z`.
pub(crate) fn time(text: &str) -> Result<Timestamp, String> {
    // `us` is the notation for times outside the calendar, which are not for users.
    let time = text.parse().ok().filter(|_| !text.ends_with("us"));
    time.ok_or_else(|| format!("write a time with its zone, like {TIMES}"))
}

const TIMES: &str = "2026-03-01T09:30:00Z or 2026-03-01T10:30:00+01:00";

/// A time, or an age.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Since {
    At(Timestamp),
    Ago(Duration),
}

impl Since {
    /// The time by this machine's clock.
    pub(crate) fn time(self) -> Timestamp {
        match self {
            Self::At(time) => time,
            Self::Ago(age) => Timestamp::now().saturating_sub(age),
        }
    }
}

/// A time, or an age like `2h`.
pub(crate) fn since(text: &str) -> Result<Since, String> {
    let ago = || duration(text).map(Since::Ago);
    let at = |_| time(text).map(Since::At);
    ago().or_else(at).map_err(|_| format!("write an age like 2h or 3d, or a time like {TIMES}"))
}

/// The state of an archived message.
pub(crate) fn archived_state(text: &str) -> Result<ArchivedState, String> {
    text.parse().map_err(|_| "write completed or failed".to_owned())
}

/// The state of a waiting message.
pub(crate) fn waiting_state(text: &str) -> Result<WaitingState, String> {
    let state = text.parse().ok().filter(|state| *state != WaitingState::InFlight);
    state.ok_or_else(|| "write ready or delayed; a message in flight belongs to its worker".to_owned())
}

/// A content type.
pub(crate) fn content_type(text: &str) -> Result<ContentType, String> {
    ContentType::parse(text).map_err(why)
}

/// The id of a token.
pub(crate) fn token_id(text: &str) -> Result<Uuid, String> {
    text.parse().map_err(|_| "write the id of a token, as 'postrider token list' shows it".to_owned())
}

/// The reason of the error, without the name of the value.
pub(crate) fn why(error: MessagingError) -> String {
    match error {
        MessagingError::InvalidInput { why, .. } => why,
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_is_split_at_the_first_equals_sign() {
        assert_eq!(header("query=a=b").unwrap(), ("query".into(), "a=b".into()));
        assert_eq!(header("empty=").unwrap(), ("empty".into(), String::new()));
        for bad in ["none", "=value", "a b=c", "postrider-x=1", "a=\0"] {
            assert!(header(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn errors_of_numbers_name_the_limits() {
        assert_eq!((count("1"), workers("10000")), (Ok(1), Ok(10_000)));
        for (why, says) in [
            (count("0").unwrap_err(), "at least 1"),
            (count("-1").unwrap_err(), "at least 1"),
            (workers("10001").unwrap_err(), "from 1 to 10000"),
            (workers("0").unwrap_err(), "from 1 to 10000"),
            (deliveries("0").unwrap_err(), "at least 1"),
            (seed("abc").unwrap_err(), "whole number"),
        ] {
            assert!(why.contains(says), "{why}");
        }
    }

    #[test]
    fn a_dead_letter_queue_is_refused_with_an_alternative() {
        assert!(purged_queue("orders_dlq").unwrap_err().contains("'postrider dlq purge orders'"));
        assert!(worked_queue("orders_dlq").unwrap_err().contains("'postrider dlq redrive orders'"));
        assert!(own_queue("orders_dlq").is_err() && own_queue("orders").is_ok());
    }

    #[test]
    fn a_rate_is_a_number_per_unit() {
        let read = |count, seconds| Ok(Rate { count, per: Duration::from_secs(seconds) });
        assert_eq!(rate("10"), read(10, 1));
        assert_eq!(rate("10/s"), read(10, 1));
        assert_eq!(rate("100/m"), read(100, 60));
        assert_eq!(rate("5/h"), read(5, 3600));
        assert_eq!(rate("90/m").unwrap().per_second(), 1.5);
        for wrong in ["", "0", "-1", "1.5", "1/d", "/s", "1/", "5000000000"] {
            assert!(rate(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_time_has_a_zone_and_may_be_an_age() {
        let noon = "2026-03-01T12:00:00Z".parse().unwrap();
        assert_eq!(time("2026-03-01T13:00:00+01:00"), Ok(noon));
        assert_eq!(
            (since("2h"), since("2026-03-01T12:00Z")),
            (Ok(Since::Ago(Duration::from_secs(7200))), Ok(Since::At(noon)))
        );
        for wrong in ["", "noon", "2026-03-01", "2026-03-01T12:00:00", "7us", "-1h"] {
            assert!(time(wrong).is_err(), "{wrong}");
        }
        assert!(since("yesterday").unwrap_err().contains("2h"));
    }

    #[test]
    fn durations_have_limits() {
        assert_eq!(duration("0s").unwrap(), Duration::ZERO);
        assert!(visibility("0s").is_err());
        for bad in ["-5s", "5", "36501d", "99999999999999999999d", ""] {
            assert!(duration(bad).is_err(), "{bad:?}");
        }
    }
}
