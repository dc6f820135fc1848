//! Schemas for the OpenAPI description: the named ones are derived from the types of the API, the others are here.

use serde_json::{Value, json};

/// A reference to a named schema.
pub(crate) fn named(name: &str) -> Value {
    json!({ "$ref": format!("#/components/schemas/{name}") })
}

/// A name that can be part of a path: `.` and `..` cannot.
pub(crate) fn name(most: usize) -> Value {
    let pattern = r"^(\.{0,2}[A-Za-z0-9_-]|\.{3})[A-Za-z0-9_.-]*$";
    json!({ "type": "string", "minLength": 1, "maxLength": most, "pattern": pattern })
}

/// Name of a queue, or of a queue's dead letters.
pub(crate) fn queue_name() -> Value {
    name(84)
}

pub(crate) fn text() -> Value {
    json!({ "type": "string" })
}

/// A number of rows.
pub(crate) fn limit(most: usize) -> Value {
    json!({ "type": "integer", "minimum": 1, "maximum": most })
}

pub(crate) fn uuid() -> Value {
    json!({ "type": "string", "format": "uuid" })
}

pub(crate) fn time() -> Value {
    json!({ "type": "string", "format": "date-time" })
}

pub(crate) fn list(items: Value) -> Value {
    json!({ "type": "array", "items": items })
}

pub(crate) fn one_of(words: &[&str]) -> Value {
    json!({ "type": "string", "enum": words })
}

/// Answer with one field.
pub(crate) fn only(name: &'static str, schema: Value) -> Value {
    json!({ "type": "object", "properties": { name: schema }, "required": [name] })
}

/// Page of rows.
pub(crate) fn page(name: &'static str, row: Value) -> Value {
    let next = json!({ "type": ["string", "null"] });
    json!({ "type": "object", "properties": { name: list(row), "next": next }, "required": [name] })
}

/// Request with one field: unknown fields are refused.
pub(crate) fn request_only(name: &'static str, schema: Value) -> Value {
    let mut request = only(name, schema);
    request["additionalProperties"] = json!(false);
    request
}

/// All named schemas.
pub(crate) fn all() -> Value {
    let mut all = postrider_wire::schema::all();
    let status = json!({
        "type": "object",
        "properties": {
            "status": { "type": "string", "description": "`ok`, or what is wrong." },
            "why": { "type": ["string", "null"], "description": "The error of the store." },
        },
        "required": ["status"],
    });
    all.insert("Status".to_owned(), status);
    all.into()
}
