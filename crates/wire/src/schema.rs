//! JSON schemas of the requests and answers, for the OpenAPI description.
//!
//! They are derived from the types: the fields, their forms and their descriptions are those of the code. Bounds that no
//! type has are attributes of the fields.

use postrider_core::inline_schema;
use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, json_schema};
use serde_json::{Map, Value};

use crate::body::{Base64, Text};
use crate::{Code, HeaderFields, archive, audit, capabilities, dead_letter, history, job, message, problem, queue};
use crate::{receive, schedule, session, settle, task, token, worker};

/// A line of printable ASCII, safe for terminals and logs.
pub(crate) struct Line<const MOST: usize>;

impl<const MOST: usize> JsonSchema for Line<MOST> {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> std::borrow::Cow<'static, str> {
        format!("Line{MOST}").into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        json_schema!({ "type": "string", "minLength": 1, "maxLength": MOST, "pattern": "^[ -~]+$" })
    }
}

inline_schema!(Code, |_| json_schema!({ "type": "string" }));
inline_schema!(Text, |generator| if generator.contract().is_deserialize() {
    json_schema!({ "type": ["string", "object", "array", "number", "boolean"] })
} else {
    json_schema!({ "type": "string" })
});
inline_schema!(Base64, |_| json_schema!({
    "type": "string",
    "contentEncoding": "base64",
    "pattern": "^([A-Za-z0-9+/]{4})*([A-Za-z0-9+/][AQgw]==|[A-Za-z0-9+/]{2}[AEIMQUYcgkosw048]=)?$",
}));
inline_schema!(HeaderFields, |_| json_schema!({
    "type": "object",
    "propertyNames": { "pattern": "^[A-Za-z0-9_.-]{1,128}$" },
    "additionalProperties": { "type": "string", "pattern": "^[^\\x00]*$" },
}));

/// The named schemas, as `components/schemas` of an OpenAPI description.
pub fn all() -> Map<String, Value> {
    macro_rules! schemas {
        ($settings:expr, $is_request:literal: $($type:ty,)*) => {{
            let mut settings = $settings;
            settings.definitions_path = "/components/schemas".into();
            let mut generator = settings.into_generator();
            $(generator.subschema_for::<$type>();)*
            let mut schemas = generator.take_definitions(true);
            schemas.values_mut().for_each(|schema| simplify(schema, $is_request));
            schemas
        }};
    }
    let mut all = schemas!(SchemaSettings::draft2020_12().for_deserialize(), true:
        dead_letter::EditRequest,
        dead_letter::Filter,
        dead_letter::PurgeRequest,
        dead_letter::RedriveJobRequest,
        dead_letter::RedriveRequest,
        message::BulkMessages,
        message::DeathRequest,
        message::NewMessage,
        receive::ReceiveRequest,
        receive::SettleAndReceiveRequest,
        schedule::PutScheduleRequest,
        session::LogInRequest,
        settle::DeadLetterRequest,
        settle::ExtendRequest,
        settle::NackRequest,
        settle::ReceiptsRequest,
        settle::Settlement,
        task::BulkRequest,
        task::ClaimByIdRequest,
        task::ClaimRequest,
        task::EditPayloadRequest,
        task::Finish,
        task::FinishRequest,
        task::HeartbeatRequest,
        task::NewTask,
        task::ReplayJobRequest,
        task::ReplayRequest,
        task::StandingsRequest,
        token::NewTokenRequest,
    );
    all.extend(schemas!(SchemaSettings::draft2020_12().for_serialize(), false:
        archive::Archived,
        audit::AuditEntry,
        capabilities::CapabilityTable,
        capabilities::Finding,
        capabilities::Health,
        dead_letter::Dead,
        dead_letter::DeadGroup,
        dead_letter::DeadGroups,
        dead_letter::Redriven,
        history::History,
        job::Job,
        message::ChosenMessages,
        message::MessageAttempt,
        message::Peeked,
        message::Sent,
        message::SentRow,
        problem::Problem,
        queue::Durations,
        queue::Paused,
        queue::Purged,
        queue::Stats,
        queue::Verified,
        receive::Received,
        receive::SettledAndReceived,
        schedule::NextTimes,
        schedule::Schedule,
        session::Session,
        settle::Row,
        task::Canceled,
        task::Chosen,
        task::ClaimRow,
        task::Claimed,
        task::Claims,
        task::Counts,
        task::Created,
        task::CreatedRow,
        task::Detail,
        task::Edited,
        task::Info,
        task::Percentiles,
        task::Replayed,
        task::Routes,
        task::Standing,
        task::TypeCount,
        token::NewToken,
        token::TokenInfo,
        worker::Worker,
    ));
    all
}

/// Removes what says nothing to a client: the width of numbers, defaults, and null as another way to omit a field. An
/// answer may get new fields, so no answer refuses unknown ones. Constants become an enumeration.
fn simplify(schema: &mut Value, is_request: bool) {
    let Value::Object(fields) = schema else {
        if let Value::Array(schemas) = schema {
            schemas.iter_mut().for_each(|schema| simplify(schema, is_request));
        }
        return;
    };
    let required = fields.get("required").and_then(Value::as_array).cloned().unwrap_or_default();
    for (keyword, value) in fields.iter_mut() {
        match (keyword.as_str(), value) {
            ("properties", Value::Object(properties)) => {
                for (name, property) in properties {
                    if let (false, Value::Object(property)) =
                        (required.iter().any(|field| field == name), &mut *property)
                    {
                        remove_null(property);
                    }
                    simplify(property, is_request);
                }
            }
            ("items" | "additionalProperties" | "anyOf" | "oneOf", value) => simplify(value, is_request),
            _ => {}
        }
    }
    fields.remove("default");
    if fields.get("format").is_some_and(|format| format != "uuid" && format != "date-time") {
        fields.remove("format");
    }
    if !is_request && fields.get("additionalProperties") == Some(&Value::Bool(false)) {
        fields.remove("additionalProperties");
    }
    let words: Option<Vec<Value>> = fields
        .get("oneOf")
        .and_then(Value::as_array)
        .and_then(|schemas| schemas.iter().map(|schema| schema.get("const").cloned()).collect());
    if let Some(words) = words {
        fields.remove("oneOf");
        fields.insert("type".to_owned(), "string".into());
        fields.entry("enum").or_insert(words.into());
    }
}

fn remove_null(fields: &mut Map<String, Value>) {
    if let Some(Value::Array(kinds)) = fields.get_mut("type") {
        kinds.retain(|kind| kind != "null");
        if let [kind] = kinds.as_mut_slice() {
            let kind = kind.take();
            fields.insert("type".to_owned(), kind);
        }
    }
    if let Some(Value::Array(schemas)) = fields.get_mut("anyOf") {
        schemas.retain(|schema| schema["type"] != "null");
        if let [Value::Object(only)] = schemas.as_mut_slice() {
            let only = std::mem::take(only);
            fields.remove("anyOf");
            for (keyword, value) in only {
                fields.entry(keyword).or_insert(value);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_property_has_a_description() {
        for (name, schema) in all() {
            for (field, property) in schema["properties"].as_object().into_iter().flatten() {
                assert!(property["description"].is_string(), "{name}.{field}: {property}");
            }
        }
    }
}
