//! What the description calls an object is read from an object.
//!
//! A struct that reads itself takes its fields from a list as well, in an order that nobody has promised: a list where an
//! object belongs would be a request that means something by accident.

use std::fmt;
use std::marker::PhantomData;

use serde::de::value::MapAccessDeserializer;
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer};

/// Something that is read from an object alone.
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

/// A list of objects.
pub(crate) fn list<'de, D: Deserializer<'de>, T: Deserialize<'de>>(deserializer: D) -> Result<Vec<T>, D::Error> {
    let rows = Vec::<Object<T>>::deserialize(deserializer)?;
    Ok(rows.into_iter().map(|Object(row)| row).collect())
}

/// An object that may be left out.
pub(crate) fn optional<'de, D: Deserializer<'de>, T: Deserialize<'de>>(deserializer: D) -> Result<Option<T>, D::Error> {
    Ok(Option::<Object<T>>::deserialize(deserializer)?.map(|Object(value)| value))
}

#[cfg(test)]
mod tests {
    use serde::de::DeserializeOwned;

    use super::*;
    use crate::wire::message::SendBatchRequest;
    use crate::wire::receive::{ReceiveRequest, SettleAndReceiveRequest};
    use crate::wire::schedule::PutScheduleRequest;
    use crate::wire::settle::SettleRequest;
    use crate::wire::task::{ClaimRequest, FinishRequest, HeartbeatRequest, NewTask, NewTasksRequest};

    fn read<T: DeserializeOwned>(json: &str) -> Result<T, String> {
        serde_json::from_str::<Object<T>>(json).map(|Object(value)| value).map_err(|error| error.to_string())
    }

    #[test]
    fn an_object_is_read_and_a_list_is_not() {
        assert_eq!(read::<ReceiveRequest>(r#"{"max":3}"#).unwrap().max, Some(3));
        let error = read::<ReceiveRequest>("[3]").unwrap_err();
        assert!(error.starts_with("invalid type: sequence, expected an object"), "{error}");
        assert!(read::<ReceiveRequest>("null").is_err() && read::<ReceiveRequest>("3").is_err());
        assert!(read::<ReceiveRequest>(r#"{"maximum":3}"#).unwrap_err().contains("unknown field"));
    }

    #[test]
    fn neither_is_a_list_within_an_object() {
        fn refused<T: DeserializeOwned>(object: &str, list: &str) {
            assert!(read::<T>(object).is_ok(), "{object}: {:?}", read::<T>(object).err());
            let error = read::<T>(list).err().unwrap_or_else(|| panic!("{list} is read"));
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
        let progress = |told| beats(&format!(r#"{{"lease":"x","progress":{told}}}"#));
        refused::<HeartbeatRequest>(&progress(r#"{"fraction":0.5}"#), &progress("[0.5]"));
        refused::<NewTasksRequest>(r#"{"tasks":[{"type":"a","payload":""}]}"#, r#"{"tasks":[[null,"a",""]]}"#);
        let (strategy, as_list) = (r#"{"strategy":"no_retry"}"#, r#"["no_retry"]"#);
        let task = |strategy| format!(r#"{{"type":"a","payload":"","retry_strategy":{strategy}}}"#);
        refused::<NewTask>(&task(strategy), &task(as_list));
        let schedule = |strategy| format!(r#"{{"type":"a","payload":"","every":"5s","retry_strategy":{strategy}}}"#);
        refused::<PutScheduleRequest>(&schedule(strategy), &schedule(as_list));
    }
}
