//! Codes of problems.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

macro_rules! codes {
    ($($(#[$doc:meta])* $variant:ident = $name:literal, $status:literal, $title:literal;)*) => {
        /// Kind of a problem.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum Code {
            $($(#[$doc])* $variant,)*
            /// A code of a newer server.
            Unknown,
        }

        impl Code {
            /// All codes but `Unknown`.
            pub const ALL: &[Self] = &[$(Self::$variant,)*];

            /// The code as it is written in JSON.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $name,)* Self::Unknown => "unknown" }
            }

            /// HTTP status of an answer with this problem.
            pub const fn status(self) -> u16 {
                match self { $(Self::$variant => $status,)* Self::Unknown => 500 }
            }

            /// Title of the problem.
            pub const fn title(self) -> &'static str {
                match self { $(Self::$variant => $title,)* Self::Unknown => "Something went wrong" }
            }
        }
    };
}

codes! {
    /// The store cannot be reached. Nothing was done.
    StoreUnreachable = "store_unreachable", 503, "The store cannot be reached";
    /// The store returned an error. Nothing was done.
    StoreFailed = "store_failed", 500, "The store failed";
    /// The store was locked or overloaded for too long. Nothing was done.
    StoreBusy = "store_busy", 503, "The store is busy";
    /// The circuit breaker is open because the store kept failing.
    CircuitBreakerOpen = "circuit_breaker_open", 503, "Calls to the store are held back";
    /// No such queue.
    QueueNotFound = "queue_not_found", 404, "There is no such queue";
    /// No such message.
    MessageNotFound = "message_not_found", 404, "There is no such message";
    /// The message is leased.
    MessageLeased = "message_leased", 409, "The message is leased";
    /// The lease has expired or was settled.
    VisibilityExpired = "visibility_expired", 409, "The lease is over";
    /// The store refuses the feature.
    NotSupported = "not_supported", 422, "The store does not support it";
    /// The store's answer was lost.
    OutcomeUnknown = "outcome_unknown", 504, "The outcome is unknown";
    /// The receipt is not one of this queue and store.
    InvalidReceipt = "invalid_receipt", 400, "The receipt cannot be used here";
    /// A value that is not allowed.
    InvalidInput = "invalid_input", 400, "A value is not allowed";
    /// No such task.
    TaskNotFound = "task_not_found", 404, "There is no such task";
    /// The state of the task does not allow the operation.
    TaskConflict = "task_conflict", 409, "The task is in another state";
    /// The deadline passed before the operation began.
    DeadlineExceeded = "deadline_exceeded", 503, "The deadline has passed";
    /// The server is closing its store.
    Closed = "closed", 503, "The server is closing";
    /// A value could not be turned into bytes.
    Serialization = "serialization", 500, "A value cannot be encoded";
    /// Bytes could not be turned into a value.
    Deserialization = "deserialization", 400, "Bytes cannot be decoded";
    /// The request is malformed.
    MalformedRequest = "malformed_request", 400, "The request is malformed";
    /// The token is missing or unknown.
    Unauthorized = "unauthorized", 401, "A token is needed";
    /// The client's token or origin does not allow it.
    Forbidden = "forbidden", 403, "This is not allowed";
    /// No such path.
    NotFound = "not_found", 404, "There is no such path";
    /// The path has no such method.
    MethodNotAllowed = "method_not_allowed", 405, "The method is not allowed here";
    /// The request was not received in time.
    RequestTimeout = "request_timeout", 408, "The request took too long to arrive";
    /// The key was used for another request.
    IdempotencyMismatch = "idempotency_mismatch", 422, "The idempotency key belongs to another request";
    /// A request with the key is under way.
    IdempotencyInProgress = "idempotency_in_progress", 409, "A request with this idempotency key is under way";
    /// More bytes than are allowed.
    PayloadTooLarge = "payload_too_large", 413, "The request is too large";
    /// Not JSON.
    UnsupportedMediaType = "unsupported_media_type", 415, "The request must be JSON";
    /// The server failed at a read-only request.
    InternalError = "internal_error", 500, "The server failed";
    /// The server's memory is used up by other requests and answers. Nothing was done.
    ServerBusy = "server_busy", 503, "The server has no memory for it now";
    /// Too many requests.
    TooManyRequests = "too_many_requests", 429, "Too many requests";
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Serialize for Code {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl<'de> Deserialize<'de> for Code {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let code = String::deserialize(deserializer)?;
        Ok(Self::ALL.iter().copied().find(|known| known.as_str() == code).unwrap_or(Self::Unknown))
    }
}
