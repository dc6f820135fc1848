//! The type of the route table: path, required role, parameters, body, answers and handler.
//!
//! The router, the check of roles, the OpenAPI description and the reference page are all generated from the table, so
//! they cannot diverge.

use std::sync::Arc;

use axum::handler::Handler;
use axum::routing::{MethodFilter, MethodRouter, on};
use serde_json::Value;

use crate::access::Role;
use crate::app::App;

/// What a route requires of its caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Need {
    /// Nothing, and the caller is not identified: the route works without the state.
    Unidentified,
    /// Nothing.
    Nothing,
    /// One of these roles.
    OneOf(&'static [Role]),
}

/// HTTP methods of routes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verb {
    Get,
    Post,
    Put,
    Patch,
    Delete,
}

impl Verb {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Get => "get",
            Self::Post => "post",
            Self::Put => "put",
            Self::Patch => "patch",
            Self::Delete => "delete",
        }
    }

    const fn filter(self) -> MethodFilter {
        match self {
            Self::Get => MethodFilter::GET,
            Self::Post => MethodFilter::POST,
            Self::Put => MethodFilter::PUT,
            Self::Patch => MethodFilter::PATCH,
            Self::Delete => MethodFilter::DELETE,
        }
    }
}

/// A query parameter.
#[derive(Debug, Clone)]
pub(crate) struct Parameter {
    pub(crate) name: &'static str,
    pub(crate) about: &'static str,
    pub(crate) schema: Value,
    pub(crate) is_repeatable: bool,
}

/// An answer of a route.
#[derive(Debug, Clone)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) about: &'static str,
    pub(crate) content: Content,
}

/// Content of an answer.
#[derive(Debug, Clone)]
pub(crate) enum Content {
    Nothing,
    /// JSON of that schema.
    Json(Value),
    /// A stream of server-sent events.
    Events,
    /// Another content type.
    Other(&'static str),
}

/// A route of the API.
#[derive(Debug, Clone)]
pub(crate) struct Route {
    pub(crate) verb: Verb,
    pub(crate) path: &'static str,
    pub(crate) operation: &'static str,
    pub(crate) group: &'static str,
    pub(crate) about: &'static str,
    pub(crate) need: Need,
    pub(crate) parameters: Vec<Parameter>,
    pub(crate) takes: Option<Value>,
    pub(crate) answers: Vec<Answer>,
    /// Whether it accepts an `Idempotency-Key`.
    pub(crate) is_repeatable: bool,
    pub(crate) handler: MethodRouter<Arc<App>>,
}

impl Route {
    /// A route. `about` is its summary.
    pub(crate) fn new<H, T>(
        (verb, path): (Verb, &'static str),
        (group, operation): (&'static str, &'static str),
        need: Need,
        about: &'static str,
        handler: H,
    ) -> Self
    where
        H: Handler<T, Arc<App>>,
        T: 'static,
    {
        Self {
            verb,
            path,
            operation,
            group,
            about,
            need,
            parameters: Vec::new(),
            takes: None,
            answers: Vec::new(),
            is_repeatable: false,
            handler: on(verb.filter(), handler),
        }
    }

    /// Adds a query parameter.
    pub(crate) fn parameter(mut self, name: &'static str, schema: Value, about: &'static str) -> Self {
        self.parameters.push(Parameter { name, about, schema, is_repeatable: false });
        self
    }

    /// Adds a repeatable query parameter.
    pub(crate) fn parameters(mut self, name: &'static str, schema: Value, about: &'static str) -> Self {
        self.parameters.push(Parameter { name, about, schema, is_repeatable: true });
        self
    }

    /// Sets the schema of the body.
    pub(crate) fn takes(mut self, schema: Value) -> Self {
        self.takes = Some(schema);
        self
    }

    /// Adds an answer.
    pub(crate) fn answers(mut self, status: u16, about: &'static str, content: Content) -> Self {
        self.answers.push(Answer { status, about, content });
        self
    }

    /// Accepts an `Idempotency-Key`.
    pub(crate) fn repeatable(mut self) -> Self {
        self.is_repeatable = true;
        self
    }

    /// Returns the parameter names in the path.
    pub(crate) fn path_names(&self) -> impl Iterator<Item = &'static str> {
        self.path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'))
    }
}
