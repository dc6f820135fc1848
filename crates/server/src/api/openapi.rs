//! The OpenAPI description, generated from the routes.

use serde_json::{Map, Value, json};

use super::route::{Content, Need, Parameter, Route};
use super::schemas;
use crate::access::{SECURE_COOKIE, SESSION_COOKIE};

/// Returns the description.
pub(crate) fn document(routes: &[Route]) -> Value {
    let mut paths = Map::new();
    for route in routes {
        let path = paths.entry(route.path).or_insert_with(|| json!({}));
        path[route.verb.name()] = operation(route);
    }
    let mut groups: Vec<&str> = Vec::new();
    for route in routes {
        if !groups.contains(&route.group) {
            groups.push(route.group);
        }
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Postrider",
            "version": env!("CARGO_PKG_VERSION"),
            "summary": "One durable message lifecycle on whatever queue you already run",
            "description": "Send, receive, settle, redrive and watch messages; create, run and replay tasks. Every error is \
                            application/problem+json with a stable `code`.",
            "license": { "name": "MIT OR Apache-2.0", "identifier": "MIT OR Apache-2.0" },
        },
        "servers": [{ "url": "/" }],
        "tags": groups.iter().map(|name| json!({ "name": name })).collect::<Vec<_>>(),
        "paths": paths,
        "components": {
            "schemas": schemas::all(),
            "securitySchemes": {
                "token": { "type": "http", "scheme": "bearer", "description": "A token from `postrider token create`" },
                "session": {
                    "type": "apiKey",
                    "in": "cookie",
                    "name": SESSION_COOKIE,
                    "description": format!("If the server itself uses TLS, the cookie is named {SECURE_COOKIE}."),
                },
            },
            "responses": { "Problem": problem("The request failed or was refused") },
        },
    })
}

fn operation(route: &Route) -> Value {
    let mut operation = json!({
        "operationId": route.operation,
        "tags": [route.group],
        "summary": route.about,
        "parameters": parameters(route),
        "responses": responses(route),
        // An open server needs no token.
        "security": match route.need {
            Need::Unidentified | Need::Nothing => json!([]),
            Need::OneOf(_) => json!([{ "token": [] }, { "session": [] }]),
        },
        // Any one of these roles suffices.
        "x-roles": match route.need {
            Need::Unidentified | Need::Nothing => Value::Null,
            Need::OneOf(roles) => json!(roles),
        },
    });
    if let Some(schema) = &route.takes {
        operation["requestBody"] = json!({ "required": true, "content": { "application/json": { "schema": schema } } });
    }
    operation
}

fn parameters(route: &Route) -> Vec<Value> {
    let in_path = route.path_names().map(|name| {
        let schema = match name {
            "queue" => schemas::queue_name(),
            "id" => json!({ "type": "string", "format": "uuid" }),
            _ => schemas::name(64),
        };
        json!({ "name": name, "in": "path", "required": true, "schema": schema })
    });
    let in_query = route.parameters.iter().map(|Parameter { name, about, schema, is_repeatable }| {
        let schema = if *is_repeatable { json!({ "type": "array", "items": schema }) } else { schema.clone() };
        json!({ "name": name, "in": "query", "description": about, "schema": schema })
    });
    let in_header = route.is_repeatable.then(|| {
        json!({
            "name": "Idempotency-Key", "in": "header",
            "description": "A repeated request with the same key gets the first answer, for 24 hours; of a batch, failed \
                            rows are retried",
            "schema": { "type": "string", "minLength": 1, "maxLength": 200, "pattern": "^[!-~]+$" },
        })
    });
    in_path.chain(in_query).chain(in_header).collect()
}

fn responses(route: &Route) -> Value {
    let mut responses = Map::new();
    for answer in &route.answers {
        let mut response = json!({ "description": answer.about });
        let content = match &answer.content {
            Content::Nothing => None,
            Content::Json(schema) => Some(("application/json", schema.clone())),
            Content::Events => Some(("text/event-stream", json!({ "type": "string" }))),
            Content::Other(name) => Some((*name, json!({ "type": "string" }))),
        };
        if let Some((name, schema)) = content {
            response["content"] = json!({ name: { "schema": schema } });
        }
        responses.insert(answer.status.to_string(), response);
    }
    // Every route can fail in a middleware or in the store.
    responses.insert("default".into(), json!({ "$ref": "#/components/responses/Problem" }));
    Value::Object(responses)
}

fn problem(about: &str) -> Value {
    json!({
        "description": about,
        "headers": { "X-Request-Id": { "schema": { "type": "string" } } },
        "content": { "application/problem+json": { "schema": schemas::named("Problem") } },
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn references(value: &Value, found: &mut BTreeSet<String>) {
        match value {
            Value::Object(fields) => {
                found.extend(fields.get("$ref").and_then(Value::as_str).map(str::to_owned));
                fields.values().for_each(|field| references(field, found));
            }
            Value::Array(items) => items.iter().for_each(|item| references(item, found)),
            _ => {}
        }
    }

    #[test]
    fn every_schema_is_defined_and_used() {
        let document = document(&crate::routes::all());
        let mut found = BTreeSet::new();
        references(&document, &mut found);
        for reference in &found {
            let pointer = reference.strip_prefix('#').unwrap();
            assert!(document.pointer(pointer).is_some(), "{reference} leads nowhere");
        }
        for name in document["components"]["schemas"].as_object().unwrap().keys() {
            assert!(found.contains(&format!("#/components/schemas/{name}")), "{name} is not used");
        }
    }

    #[test]
    fn operations_have_unique_names() {
        let routes = crate::routes::all();
        let names: BTreeSet<_> = routes.iter().map(|route| route.operation).collect();
        assert_eq!(names.len(), routes.len());
        for route in &routes {
            assert!(!route.answers.is_empty() && route.about.ends_with('.'), "{}", route.operation);
        }
    }
}
