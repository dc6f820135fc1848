//! The reference page: the routes as HTML, without scripts.

use std::fmt::Write;

use postrider_wire::Code;
use serde_json::Value;

use super::route::{Content, Need, Route};

/// Returns the page.
pub(crate) fn page(routes: &[Route], document: &Value) -> String {
    let mut html = String::with_capacity(64 * 1024);
    html.push_str(
        "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" \
         content=\"width=device-width, initial-scale=1\"><title>Postrider API</title><link rel=\"icon\" \
         href=\"/assets/favicon.svg\"><link rel=\"stylesheet\" href=\"/assets/reference.css\"></head><body><main>\
         <h1>Postrider API</h1><p>Everything is JSON. Durations are written like <code>500ms</code>, <code>5s</code> or \
         <code>1h30m</code>, times as RFC 3339. Send a token as <code>Authorization: Bearer prt_…</code>; a server without \
         tokens is open, on loopback only. The same as OpenAPI: <a \
         href=\"/openapi.json\">/openapi.json</a>. <a href=\"/\">Dashboard</a>.</p><nav>",
    );
    let mut groups: Vec<&str> = Vec::new();
    for route in routes {
        if !groups.contains(&route.group) {
            groups.push(route.group);
        }
    }
    for group in &groups {
        let _ = write!(html, "<a href=\"#{0}\">{0}</a> ", escape(group));
    }
    html.push_str("<a href=\"#Errors\">Errors</a> <a href=\"#Shapes\">Shapes</a></nav>");
    for group in groups {
        let _ = write!(html, "<h2 id=\"{0}\">{0}</h2>", escape(group));
        for route in routes.iter().filter(|route| route.group == group) {
            write_route(&mut html, route);
        }
    }
    html.push_str(
        "<h2 id=\"Errors\">Errors</h2><p>As <code>application/problem+json</code>; rely on <code>code</code>, \
                   show <code>detail</code>.</p><table><tr><th>code<th>status<th>meaning</tr>",
    );
    let mut codes = Code::ALL.to_vec();
    codes.sort_by_key(|code| (code.status(), code.as_str()));
    for code in codes {
        let (status, title) = (code.status(), escape(code.title()));
        let _ = write!(html, "<tr id=\"{code}\"><td><code>{code}</code><td>{status}<td>{title}</tr>");
    }
    html.push_str("</table><h2 id=\"Shapes\">Shapes</h2>");
    if let Some(schemas) = document["components"]["schemas"].as_object() {
        for (name, schema) in schemas {
            let _ = write!(html, "<section id=\"shape-{0}\"><h3>{0}</h3><ul>", escape(name));
            let required: Vec<&str> =
                schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
            for (field, kind) in schema["properties"].as_object().into_iter().flatten() {
                let optional = if required.contains(&field.as_str()) { "" } else { " <em>optional</em>" };
                let about = kind["description"].as_str().map(escape).unwrap_or_default();
                let _ = write!(html, "<li><code>{}</code> {}{optional} {about}</li>", escape(field), shape(kind));
            }
            if schema["properties"].is_null() {
                let _ = write!(html, "<li>{}</li>", shape(schema));
            }
            html.push_str("</ul></section>");
        }
    }
    html.push_str("</main></body></html>");
    html
}

fn write_route(html: &mut String, route: &Route) {
    let verb = route.verb.name().to_uppercase();
    let need = match route.need {
        Need::Unidentified | Need::Nothing => "no role".to_owned(),
        Need::OneOf(roles) => roles.iter().map(|role| crate::access::role_name(*role)).collect::<Vec<_>>().join(" or "),
    };
    let _ = write!(
        html,
        "<section id=\"{}\"><h3><code>{verb} {}</code> <small>{need}</small></h3><p>{}</p>",
        route.operation,
        escape(route.path),
        escape(route.about)
    );
    if !route.parameters.is_empty() || route.is_repeatable || route.takes.is_some() {
        html.push_str("<ul>");
        for parameter in &route.parameters {
            let _ = write!(html, "<li><code>?{}=</code> {}</li>", parameter.name, escape(parameter.about));
        }
        if route.is_repeatable {
            html.push_str("<li><code>Idempotency-Key:</code> a repeated request gets the first answer</li>");
        }
        if let Some(schema) = &route.takes {
            let _ = write!(html, "<li>takes {}</li>", shape(schema));
        }
        html.push_str("</ul>");
    }
    for answer in &route.answers {
        let content = match &answer.content {
            Content::Nothing => String::new(),
            Content::Json(schema) => format!(", {}", shape(schema)),
            Content::Events => ", server-sent events".to_owned(),
            Content::Other(name) => format!(", {name}"),
        };
        let _ = write!(html, "<p>{} {}{content}</p>", answer.status, escape(answer.about));
    }
    html.push_str("</section>");
}

/// Returns a schema in a few words.
fn shape(schema: &Value) -> String {
    if let Some(name) = schema["$ref"].as_str().and_then(|name| name.rsplit('/').next()) {
        return format!("<a href=\"#shape-{0}\">{0}</a>", escape(name));
    }
    if let Some(any) = schema["anyOf"].as_array().or(schema["oneOf"].as_array()).filter(|_| schema["type"].is_null()) {
        return any.iter().map(shape).collect::<Vec<_>>().join(" or ");
    }
    if let Some(words) = schema["enum"].as_array() {
        let words = words.iter().filter_map(Value::as_str).map(|word| format!("<code>{}</code>", escape(word)));
        return words.collect::<Vec<_>>().join(" | ");
    }
    if let Some(kinds) = schema["type"].as_array() {
        if let [kind, null] = kinds.as_slice()
            && null == "null"
        {
            let mut schema = schema.clone();
            schema["type"] = kind.clone();
            return format!("{} or null", shape(&schema));
        }
        return "text or JSON".to_owned();
    }
    match (schema["type"].as_str(), schema["format"].as_str()) {
        (Some("array"), _) => format!("list of {}", shape(&schema["items"])),
        (Some("object"), _) if schema["properties"].is_object() => {
            let fields = schema["properties"].as_object().into_iter().flatten();
            let fields = fields.map(|(name, kind)| format!("<code>{}</code> {}", escape(name), shape(kind)));
            format!("{{ {} }}", fields.collect::<Vec<_>>().join(", "))
        }
        (_, Some(format)) => escape(format),
        (Some(kind), None) => escape(kind),
        (None, None) => "any".to_owned(),
    }
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
