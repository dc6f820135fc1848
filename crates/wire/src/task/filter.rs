//! The query of `GET /v1/tasks`.
//!
//! Not a serde type, because `state`, `type`, `within` and `tag` may be repeated.

use std::fmt::Display;
use std::str::FromStr;

use form_urlencoded::Serializer;
use postrider_core::MessagingError;
use postrider_core::task::{TaskCursor, TaskQuery};

/// Writes a query, without the question mark.
pub fn write_query(query: &TaskQuery) -> String {
    let filter = &query.filter;
    let mut written = Serializer::new(String::new());
    for state in &filter.states {
        written.append_pair("state", state.as_str());
    }
    for task_type in &filter.types {
        written.append_pair("type", task_type.as_str());
    }
    for pattern in filter.within.iter().flatten() {
        written.append_pair("within", &pattern.to_string());
    }
    for tag in &filter.tags {
        written.append_pair("tag", tag);
    }
    let mut one = |name: &str, value: Option<String>| {
        if let Some(value) = value {
            written.append_pair(name, &value);
        }
    };
    one("schedule", filter.schedule.clone());
    one("reason", filter.dead_reason.map(|reason| reason.to_string()));
    one("error", filter.error_contains.clone());
    one("since", filter.created_since.map(|time| time.to_string()));
    one("before", filter.created_before.map(|time| time.to_string()));
    one("limit", Some(query.limit.to_string()));
    one("after", query.after.as_ref().map(|TaskCursor(cursor)| cursor.clone()));
    written.finish()
}

/// Reads a query. Unknown parameters and forbidden repetitions are errors.
pub fn read_query(query: &str) -> Result<TaskQuery, MessagingError> {
    let mut read = TaskQuery::default();
    let mut limit = None;
    let filter = &mut read.filter;
    for (name, value) in form_urlencoded::parse(query.as_bytes()) {
        match &*name {
            "state" => filter.states.push(value.parse()?),
            "type" => filter.types.push(value.parse()?),
            "within" => filter.within.get_or_insert_default().push(value.parse()?),
            "tag" => filter.tags.push(value.into_owned()),
            "schedule" => once(&mut filter.schedule, &name, value.into_owned())?,
            "reason" => once(&mut filter.dead_reason, &name, value.parse()?)?,
            "error" => once(&mut filter.error_contains, &name, value.into_owned())?,
            "since" => once(&mut filter.created_since, &name, parsed(&name, &value)?)?,
            "before" => once(&mut filter.created_before, &name, parsed(&name, &value)?)?,
            "limit" => once(&mut limit, &name, parsed(&name, &value)?)?,
            "after" => once(&mut read.after, &name, TaskCursor(value.into_owned()))?,
            other => {
                let why = format!("unknown parameter '{}'", other.escape_debug());
                return Err(MessagingError::invalid("query", why));
            }
        }
    }
    read.limit = limit.unwrap_or(read.limit);
    read.check()?;
    Ok(read)
}

fn once<T>(field: &mut Option<T>, name: &str, value: T) -> Result<(), MessagingError> {
    if field.replace(value).is_some() {
        return Err(MessagingError::invalid("query", format!("'{name}' occurs twice; send it once")));
    }
    Ok(())
}

fn parsed<T: FromStr<Err: Display>>(name: &str, value: &str) -> Result<T, MessagingError> {
    value.parse().map_err(|error| MessagingError::invalid("query", format!("{name}: {error}")))
}

#[cfg(test)]
mod tests {
    use postrider_core::task::{DeadReason, TaskFilter};
    use postrider_core::{TaskState, TaskType, Timestamp};

    use super::*;

    #[test]
    fn queries_round_trip() {
        let filter = TaskFilter {
            states: vec![TaskState::Dead, TaskState::Canceled],
            types: vec![TaskType::new("mail").unwrap(), TaskType::new("a.b-c_d").unwrap()],
            within: Some(vec!["mail".parse().unwrap(), "a.*".parse().unwrap()]),
            tags: vec!["a b".into(), "ä&=+%".into()],
            schedule: Some("daily".into()),
            dead_reason: Some(DeadReason::MaxAttempts),
            error_contains: Some("50% + \"x\"\n".into()),
            created_since: Some(Timestamp::from_micros(1)),
            created_before: Some(Timestamp::from_micros(2)),
        };
        let full = TaskQuery { filter, limit: 7, after: Some(TaskCursor("{\"a\":1}".into())) };
        for query in [full, TaskQuery::default()] {
            assert_eq!(read_query(&write_query(&query)).unwrap(), query);
        }
        assert_eq!(read_query("").unwrap(), TaskQuery::default());
    }

    #[test]
    fn invalid_queries_are_refused() {
        for bad in [
            "states=DEAD",
            "state=x",
            "type=a%20b",
            "within=a*b",
            "limit=0",
            "limit=x",
            "since=soon",
            "after=1&after=2",
        ] {
            assert!(read_query(bad).is_err(), "{bad}");
        }
    }
}
