//! Reading JSON with limits, and objects from objects only.
//!
//! A derived `Deserialize` also reads a struct from a list of its fields, in an order that is not part of the API. A list
//! in place of an object must be an error, not a request with an accidental meaning.

use std::cell::Cell;
use std::fmt;
use std::marker::PhantomData;

use serde::de::value::MapAccessDeserializer;
use serde::de::{DeserializeOwned, Error, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};

/// A value that can only be read from an object.
#[derive(Debug)]
pub struct Object<T>(pub T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(Fields(PhantomData)).map(Self)
    }
}

struct Fields<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for Fields<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, fields: A) -> Result<T, A::Error> {
        T::deserialize(MapAccessDeserializer::new(fields))
    }
}

/// Upper bound of the rows of one request.
pub(crate) const MOST_ROWS: usize = 10_000;

/// Upper bound of the values of one request: rows, items of lists and headers, in all of it together.
const MOST_VALUES: usize = 500_000;

thread_local! {
    /// Number of values that the current request may still have; `None` outside `read_request`.
    static VALUES_LEFT: Cell<Option<usize>> = const { Cell::new(None) };
}

/// Reads the body of a request. Counts the values while it reads: an empty row or header of a few bytes of JSON takes a
/// hundred times as much memory.
pub fn read_request<T: DeserializeOwned>(json: &[u8]) -> Result<T, serde_json::Error> {
    /// Ends the count, also if a `Deserialize` panics.
    struct Counting;

    impl Drop for Counting {
        fn drop(&mut self) {
            VALUES_LEFT.set(None);
        }
    }

    VALUES_LEFT.set(Some(MOST_VALUES));
    let _counting = Counting;
    serde_json::from_slice(json).map(|Object(value)| value)
}

/// Upper bound of the values of one answer. The largest answers have few but long rows.
const MOST_VALUES_ANSWERED: usize = 4_000_000;

/// Reads an answer. Counts the values first: a value of a few bytes of JSON takes many times as much memory.
pub fn read_answer<T: DeserializeOwned>(json: &[u8]) -> Result<T, serde_json::Error> {
    if json.len() > MOST_VALUES_ANSWERED && values_in(json) > MOST_VALUES_ANSWERED {
        return Err(Error::custom(format!("more than {MOST_VALUES_ANSWERED} values; request fewer rows")));
    }
    serde_json::from_slice(json)
}

/// Upper bound of the number of values in JSON: each is the first of a list or an object, or follows a comma.
fn values_in(json: &[u8]) -> usize {
    let (mut values, mut is_text, mut is_escaped) = (1, false, false);
    for byte in json {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' => is_escaped = is_text,
            b'"' => is_text = !is_text,
            b',' | b'[' | b'{' if !is_text => values += 1,
            _ => {}
        }
    }
    values
}

/// Counts one value of the current request.
pub(crate) fn count_value<E: Error>() -> Result<(), E> {
    match VALUES_LEFT.get() {
        Some(0) => Err(E::custom(format!("more than {MOST_VALUES} values in one request; send the rest in another"))),
        Some(left) => {
            VALUES_LEFT.set(Some(left - 1));
            Ok(())
        }
        None => Ok(()),
    }
}

/// Reads a list of at most [`MOST_ROWS`] objects.
pub(crate) fn list<'de, D: Deserializer<'de>, T: Deserialize<'de>>(deserializer: D) -> Result<Vec<T>, D::Error> {
    deserializer.deserialize_seq(Rows(|Object(row): Object<T>| row))
}

/// Reads a list of at most [`MOST_ROWS`] values.
pub(crate) fn values<'de, D: Deserializer<'de>, T: Deserialize<'de>>(deserializer: D) -> Result<Vec<T>, D::Error> {
    deserializer.deserialize_seq(Rows(|value: T| value))
}

/// Reads an optional list of values.
pub(crate) fn optional_values<'de, D: Deserializer<'de>, T: Deserialize<'de>>(
    deserializer: D,
) -> Result<Option<Vec<T>>, D::Error> {
    struct Values<T>(Vec<T>);

    impl<'de, T: Deserialize<'de>> Deserialize<'de> for Values<T> {
        fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            values(deserializer).map(Self)
        }
    }

    Ok(Option::<Values<T>>::deserialize(deserializer)?.map(|Values(list)| list))
}

/// Reads rows as `R` and maps each to `T`.
struct Rows<R, T>(fn(R) -> T);

impl<'de, R: Deserialize<'de>, T> Visitor<'de> for Rows<R, T> {
    type Value = Vec<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a sequence")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Vec<T>, A::Error> {
        let mut rows = Vec::new();
        while let Some(row) = list.next_element()? {
            if rows.len() == MOST_ROWS {
                return Err(A::Error::custom(format!(
                    "more than {MOST_ROWS} rows in one request; send the rest in another"
                )));
            }
            count_value()?;
            rows.push((self.0)(row));
        }
        Ok(rows)
    }
}

/// Reads an optional object.
pub(crate) fn optional<'de, D: Deserializer<'de>, T: Deserialize<'de>>(deserializer: D) -> Result<Option<T>, D::Error> {
    Ok(Option::<Object<T>>::deserialize(deserializer)?.map(|Object(value)| value))
}

#[cfg(test)]
mod tests {
    use serde::de::DeserializeOwned;

    use super::*;
    use crate::message::SendBatchRequest;
    use crate::queue::VerifyRequest;
    use crate::receive::{ReceiveRequest, SettleAndReceiveRequest};
    use crate::schedule::PutScheduleRequest;
    use crate::settle::{ReceiptsRequest, SettleRequest};
    use crate::task::{ClaimRequest, FinishRequest, HeartbeatRequest, NewTask, NewTasksRequest, StandingsRequest};

    fn read<T: DeserializeOwned>(json: &str) -> Result<T, String> {
        serde_json::from_str::<Object<T>>(json).map(|Object(value)| value).map_err(|error| error.to_string())
    }

    #[test]
    fn objects_are_read_and_lists_are_not() {
        assert_eq!(read::<ReceiveRequest>(r#"{"max":3}"#).unwrap().max, Some(3));
        let error = read::<ReceiveRequest>("[3]").unwrap_err();
        assert!(error.starts_with("invalid type: sequence, expected an object"), "{error}");
        assert!(read::<ReceiveRequest>("null").is_err() && read::<ReceiveRequest>("3").is_err());
        assert!(read::<ReceiveRequest>(r#"{"maximum":3}"#).unwrap_err().contains("unknown field"));
    }

    #[test]
    fn too_many_rows_are_refused() {
        let rows = |count| format!(r#"{{"tasks":[{}]}}"#, vec![r#"{"type":"a","payload":""}"#; count].join(","));
        assert_eq!(read::<NewTasksRequest>(&rows(MOST_ROWS)).unwrap().tasks.len(), MOST_ROWS);
        let error = read::<NewTasksRequest>(&rows(MOST_ROWS + 1)).unwrap_err();
        assert!(error.starts_with("more than 10000 rows"), "{error}");
        let texts = vec![r#""a""#; MOST_ROWS + 1].join(",");
        for (list, rest) in [
            ("receipts", ""),
            ("leases", ""),
            ("queues", ""),
            ("types", r#","lease":"5s","worker":"w""#),
            ("tags", r#","type":"a""#),
        ] {
            let json = format!(r#"{{"{list}":[{texts}]{rest}}}"#);
            let error = match list {
                "receipts" => read::<ReceiptsRequest>(&json).unwrap_err(),
                "leases" => read::<StandingsRequest>(&json).unwrap_err(),
                "queues" => read::<VerifyRequest>(&json).unwrap_err(),
                "types" => read::<ClaimRequest>(&json).unwrap_err(),
                _ => read::<NewTask>(&json).unwrap_err(),
            };
            assert!(error.starts_with("more than 10000 rows"), "{list}: {error}");
        }
    }

    #[test]
    fn values_are_counted_over_the_whole_request() {
        let message = |headers: usize| {
            let headers: Vec<_> = (0..headers).map(|number| format!(r#""h{number}":"""#)).collect();
            format!(r#"{{"body":"","headers":{{{}}}}}"#, headers.join(","))
        };
        let batch = |rows: usize| format!(r#"{{"messages":[{}]}}"#, vec![message(999); rows].join(","));
        assert_eq!(read_request::<SendBatchRequest>(batch(500).as_bytes()).unwrap().messages.len(), 500);
        let error = read_request::<SendBatchRequest>(batch(501).as_bytes()).unwrap_err().to_string();
        assert!(error.starts_with("more than 500000 values"), "{error}");
        // The count starts anew with each request, and answers are not counted this way.
        assert_eq!(read_request::<SendBatchRequest>(batch(1).as_bytes()).unwrap().messages.len(), 1);
        assert_eq!(serde_json::from_str::<SendBatchRequest>(&batch(501)).unwrap().messages.len(), 501);
    }

    #[test]
    fn the_values_of_an_answer_are_counted_before_it_is_read() {
        for (json, values) in [("7", 1), ("[]", 2), (r#"["a,[{","b\\",{"c\",":1,"d":2}]"#, 6)] {
            assert_eq!(values_in(json.as_bytes()), values, "{json}");
        }
        let list = |values: usize| format!("[{}0]", "0,".repeat(values - 1));
        let error = read_answer::<Vec<u8>>(list(MOST_VALUES_ANSWERED).as_bytes()).unwrap_err().to_string();
        assert!(error.starts_with("more than 4000000 values"), "{error}");
        let most = read_answer::<Vec<u8>>(list(MOST_VALUES_ANSWERED - 2).as_bytes()).unwrap();
        assert_eq!(most.len(), MOST_VALUES_ANSWERED - 2);
        let text = format!("\"{}\"", ",".repeat(3 * MOST_VALUES_ANSWERED));
        assert!(read_answer::<String>(text.as_bytes()).is_ok(), "a text is one value");
    }

    #[test]
    fn nested_lists_are_not_read_as_objects() {
        fn refused<T: DeserializeOwned>(object: &str, list: &str) {
            assert!(read::<T>(object).is_ok(), "{object}: {:?}", read::<T>(object).err());
            let error = read::<T>(list).err().unwrap_or_else(|| panic!("{list} was read"));
            assert!(error.contains("expected an object"), "{error}");
        }
        refused::<SendBatchRequest>(r#"{"messages":[{"body":"a"}]}"#, r#"{"messages":[[null,"a"]]}"#);
        let (settled, as_list) = (r#"[{"receipt":"x","outcome":"ack"}]"#, r#"[["x","ack"]]"#);
        refused::<SettleRequest>(
            &format!(r#"{{"settlements":{settled}}}"#),
            &format!(r#"{{"settlements":{as_list}}}"#),
        );
        let several = |rows| format!(r#"{{"queues":["a"],"settlements":{rows}}}"#);
        refused::<SettleAndReceiveRequest>(&several(settled), &several(as_list));
        let (ended, as_list) = (r#"[{"lease":"x","outcome":"released"}]"#, r#"[["x","released"]]"#);
        refused::<FinishRequest>(&format!(r#"{{"finish":{ended}}}"#), &format!(r#"{{"finish":{as_list}}}"#));
        let claim = |rows| format!(r#"{{"types":["a"],"lease":"5s","worker":"w","finish":{rows}}}"#);
        refused::<ClaimRequest>(&claim(ended), &claim(as_list));
        let beats = |row: &str| format!(r#"{{"heartbeats":[{row}],"extend":"5s"}}"#);
        refused::<HeartbeatRequest>(&beats(r#"{"lease":"x"}"#), &beats(r#"["x"]"#));
        let progress = |progress| beats(&format!(r#"{{"lease":"x","progress":{progress}}}"#));
        refused::<HeartbeatRequest>(&progress(r#"{"fraction":0.5}"#), &progress("[0.5]"));
        refused::<NewTasksRequest>(r#"{"tasks":[{"type":"a","payload":""}]}"#, r#"{"tasks":[[null,"a",""]]}"#);
        let (strategy, as_list) = (r#"{"strategy":"no_retry"}"#, r#"["no_retry"]"#);
        let task = |strategy| format!(r#"{{"type":"a","payload":"","retry_strategy":{strategy}}}"#);
        refused::<NewTask>(&task(strategy), &task(as_list));
        let schedule = |strategy| format!(r#"{{"type":"a","payload":"","every":"5s","retry_strategy":{strategy}}}"#);
        refused::<PutScheduleRequest>(&schedule(strategy), &schedule(as_list));
    }
}
