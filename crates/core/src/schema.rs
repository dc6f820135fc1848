//! JSON schemas of the types that are not derived, for descriptions of HTTP APIs.

use schemars::json_schema;

use crate::duration_text::{OptionalText, Text};
use crate::task::MAX_TASK_TYPE;
use crate::{MessageId, QueueName, ReceiptHandle, TaskId, TaskType, Timestamp};

/// Gives a type a schema without a name. The schema may differ between requests and answers:
/// `generator.contract()` tells.
#[doc(hidden)]
#[macro_export]
macro_rules! inline_schema {
    ($type:ty, |$generator:pat_param| $schema:expr) => {
        impl schemars::JsonSchema for $type {
            fn inline_schema() -> bool {
                true
            }

            fn schema_name() -> std::borrow::Cow<'static, str> {
                stringify!($type).into()
            }

            fn json_schema($generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
                $schema
            }
        }
    };
}

inline_schema!(MessageId, |_| json_schema!({ "type": "string", "format": "uuid" }));
inline_schema!(TaskId, |_| json_schema!({ "type": "string", "format": "uuid" }));
inline_schema!(Timestamp, |_| json_schema!({ "type": "string", "format": "date-time" }));
inline_schema!(ReceiptHandle, |_| json_schema!({ "type": "string" }));
inline_schema!(
    TaskType,
    |_| json_schema!({ "type": "string", "minLength": 1, "maxLength": MAX_TASK_TYPE, "pattern": "^[A-Za-z0-9_.-]+$" })
);

// A name can be part of a path: `.` and `..` cannot. A name in an answer may be of another client.
inline_schema!(QueueName, |generator| if generator.contract().is_deserialize() {
    let pattern = r"^(\.{0,2}[A-Za-z0-9_-]|\.{3})[A-Za-z0-9_.-]*$";
    json_schema!({ "type": "string", "minLength": 1, "maxLength": 84, "pattern": pattern })
} else {
    json_schema!({ "type": "string" })
});

// An answer may have units that a request has not.
inline_schema!(Text, |generator| if generator.contract().is_deserialize() {
    json_schema!({
        "type": "string",
        "minLength": 2,
        "pattern": "^([0-9]{1,4}d)?([0-9]{1,4}h)?([0-9]{1,4}m)?([0-9]{1,4}s)?([0-9]{1,6}ms)?$",
        "examples": ["500ms", "5s", "1h30m", "3d"],
    })
} else {
    json_schema!({ "type": "string" })
});
inline_schema!(OptionalText, |generator| generator.subschema_for::<Option<Text>>());
