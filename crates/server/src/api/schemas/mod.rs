//! Schemas of requests and answers, for the OpenAPI description.

mod archive;
mod dead_letters;
mod messages;
mod people;
mod queues;
mod tasks;

use serde_json::{Map, Value, json};

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

pub(crate) fn whole() -> Value {
    json!({ "type": "integer", "minimum": 0 })
}

/// A number of rows.
pub(crate) fn limit(most: usize) -> Value {
    json!({ "type": "integer", "minimum": 1, "maximum": most })
}

pub(crate) fn flag() -> Value {
    json!({ "type": "boolean" })
}

/// A schema with a description.
fn about(mut schema: Value, text: &str) -> Value {
    schema["description"] = text.into();
    schema
}

pub(crate) fn uuid() -> Value {
    json!({ "type": "string", "format": "uuid" })
}

pub(crate) fn time() -> Value {
    json!({ "type": "string", "format": "date-time" })
}

/// `500ms`, `5s`, `1h30m`, `3d`.
pub(crate) fn duration() -> Value {
    json!({
        "type": "string",
        "minLength": 2,
        "pattern": "^([0-9]{1,4}d)?([0-9]{1,4}h)?([0-9]{1,4}m)?([0-9]{1,4}s)?([0-9]{1,6}ms)?$",
        "examples": ["500ms", "5s", "1h30m", "3d"],
    })
}

fn priority() -> Value {
    json!({ "type": "integer", "minimum": 0, "maximum": 9 })
}

pub(crate) fn list(items: Value) -> Value {
    json!({ "type": "array", "items": items })
}

fn or_null(schema: Value) -> Value {
    json!({ "anyOf": [schema, { "type": "null" }] })
}

pub(crate) fn one_of(words: &[&str]) -> Value {
    json!({ "type": "string", "enum": words })
}

/// A line of printable ASCII, safe for terminals and logs.
fn line(most: usize) -> Value {
    json!({ "type": "string", "minLength": 1, "maxLength": most, "pattern": "^[ -~]+$" })
}

fn base64() -> Value {
    json!({
        "type": "string",
        "contentEncoding": "base64",
        "pattern": "^([A-Za-z0-9+/]{4})*([A-Za-z0-9+/][AQgw]==|[A-Za-z0-9+/]{2}[AEIMQUYcgkosw048]=)?$",
    })
}

fn text_or_json() -> Value {
    json!({
        "type": ["string", "object", "array", "number", "boolean"],
        "description": "text, or any other JSON, which is kept as written",
    })
}

fn headers() -> Value {
    json!({
        "type": "object",
        "propertyNames": { "pattern": "^[A-Za-z0-9_.-]{1,128}$" },
        "additionalProperties": { "type": "string", "pattern": "^[^\\x00]*$" },
    })
}

/// Builder of an object's schema.
struct Object {
    properties: Map<String, Value>,
    required: Vec<&'static str>,
    /// Pairs of fields of which exactly one is required.
    either: Vec<(&'static str, &'static str)>,
    /// Fields that are text in an answer, and text or any JSON in a request.
    bytes: Vec<&'static str>,
}

impl Object {
    fn new() -> Self {
        Self { properties: Map::new(), required: Vec::new(), either: Vec::new(), bytes: Vec::new() }
    }

    fn must(mut self, name: &'static str, schema: Value) -> Self {
        self.required.push(name);
        self.may(name, schema)
    }

    fn may(mut self, name: &'static str, schema: Value) -> Self {
        self.properties.insert(name.to_owned(), schema);
        self
    }

    /// An optional field, omitted or null.
    fn maybe(self, name: &'static str, schema: Value) -> Self {
        self.may(name, or_null(schema))
    }

    /// A field of bytes: text under one name, or base64 under the other.
    fn bytes(mut self, name: &'static str, encoded: &'static str) -> Self {
        self.bytes.push(name);
        self.may(name, text()).may(encoded, base64())
    }

    /// The same, and one of the two is required.
    fn must_bytes(mut self, name: &'static str, encoded: &'static str) -> Self {
        self.either.push((name, encoded));
        self.bytes(name, encoded)
    }

    /// Schema of an answer.
    fn answer(self) -> Value {
        let mut schema = json!({ "type": "object", "properties": self.properties, "required": self.required });
        for (one, other) in self.either {
            schema["oneOf"] = json!([{ "required": [one] }, { "required": [other] }]);
        }
        schema
    }

    /// Schema of a request: unknown fields are refused.
    fn request(mut self) -> Value {
        for name in self.bytes.drain(..) {
            self.properties.insert(name.to_owned(), text_or_json());
        }
        let mut schema = self.answer();
        schema["additionalProperties"] = json!(false);
        schema
    }
}

/// Answer with one field.
pub(crate) fn only(name: &'static str, schema: Value) -> Value {
    Object::new().must(name, schema).answer()
}

/// Page of rows.
pub(crate) fn page(name: &'static str, row: Value) -> Value {
    Object::new().must(name, list(row)).maybe("next", text()).answer()
}

/// Request with one field.
pub(crate) fn request_only(name: &'static str, schema: Value) -> Value {
    Object::new().must(name, schema).request()
}

/// All named schemas.
pub(crate) fn all() -> Value {
    let groups = [
        messages::shapes(),
        queues::shapes(),
        dead_letters::shapes(),
        archive::shapes(),
        tasks::shapes(),
        people::shapes(),
    ];
    Value::Object(groups.into_iter().flatten().map(|(name, schema)| (name.to_owned(), schema)).collect())
}

/// Schemas with their names.
type Named = Vec<(&'static str, Value)>;
