//! What goes over the wire: every request and every answer of the API, for server and client alike.
//!
//! **The idea.** One set of types for both sides, each of which can be written and read, so that neither side can say
//! what the other does not understand. A module is a noun of the API; `…Request` is what a client sends, everything else
//! is an answer or a part of either. Conversions to and from the words of the law stand beside the type.
//!
//! **The invariant.** Whatever one side writes, the other reads back as the same value; the tests of each module show it.
//! A request with a field that nobody reads is refused, because a misspelt `dealy` that is ignored is a message sent too
//! early. An answer with such a field is read all the same: an older client must get along with a newer server.
//!
//! **Two kinds of mistakes.** What is no request at all (no JSON, a number where a text belongs) fails when it is read.
//! What is one but cannot be meant (an empty key, a header of a reserved name) fails when it is converted, as
//! `InvalidInput` of that value, so that in a batch it is one row's failure and not everybody's.
//!
//! **What was rejected.** `#[serde(flatten)]` for what several requests share: it forbids `deny_unknown_fields`, and it
//! copies every body into a tree first. Borrowed twins of the types for writing: bodies are reference-counted, so there
//! is nothing left to save that a round trip would notice.

pub mod archive;
pub mod audit;
pub mod body;
pub mod capabilities;
pub mod dead_letter;
mod duration;
pub mod event;
mod header_fields;
pub mod history;
pub mod job;
pub mod message;
mod object;
pub mod problem;
pub mod queue;
pub mod receive;
pub mod schedule;
pub mod session;
pub mod settle;
pub mod task;
pub mod token;
mod words;
pub mod worker;

pub use header_fields::HeaderFields;
pub(crate) use object::read_answer;
pub use object::{Object, read_request};
pub use problem::{Code, Problem};

#[cfg(test)]
pub(crate) mod round_trip {
    use serde::Serialize;
    use serde::de::DeserializeOwned;

    /// What the other side reads.
    pub(crate) fn over<T: Serialize + DeserializeOwned>(value: &T) -> T {
        let json = serde_json::to_string(value).unwrap();
        serde_json::from_str(&json).unwrap_or_else(|error| panic!("{error}: {json}"))
    }

    pub(crate) fn json<T: Serialize>(value: &T) -> serde_json::Value {
        serde_json::to_value(value).unwrap()
    }

    pub(crate) fn is_refused<T: DeserializeOwned>(json: &str) -> bool {
        serde_json::from_str::<T>(json).is_err()
    }
}
