//! The requests and answers of the HTTP API, for server and client.
//!
//! **The idea.** Both sides use the same types, and each type can be written and read, so the two cannot drift apart. A
//! module is a noun of the API; `…Request` is what a client sends, everything else is an answer or a part of either.
//! Conversions from and to the types of `postrider-core` are in the module of the type.
//!
//! **The invariant.** A value that one side writes is read as the same value by the other; the tests of each module show
//! it. A request with an unknown field is refused, because a misspelt `dealy` that is ignored is a message sent too early.
//! An answer with an unknown field is read: an older client must work with a newer server.
//!
//! **Two kinds of errors.** A malformed request (no JSON, a number in place of a text) fails when it is read. A value that
//! is not allowed (an empty key, a header of a reserved name) fails when it is converted, as `InvalidInput` of that value,
//! so that in a batch only its row fails.
//!
//! **What was rejected.** `#[serde(flatten)]` for fields that several requests share: it rules out `deny_unknown_fields`,
//! and it copies every body into a tree first. Borrowed variants of the types for writing: bodies are reference-counted,
//! so they would save nothing measurable.

pub mod archive;
pub mod audit;
pub mod body;
pub mod capabilities;
pub mod dead_letter;
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
#[cfg(feature = "schema")]
pub mod schema;
pub mod session;
pub mod settle;
mod static_text;
pub mod task;
pub mod token;
pub mod worker;

pub use header_fields::HeaderFields;
pub use object::{Object, read_answer, read_request};
pub use problem::{Code, Problem};

#[cfg(test)]
pub(crate) mod testing {
    use serde::Serialize;
    use serde::de::DeserializeOwned;

    /// Writes a value and reads it back, as the other side does.
    pub(crate) fn round_trip<T: Serialize + DeserializeOwned>(value: &T) -> T {
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
