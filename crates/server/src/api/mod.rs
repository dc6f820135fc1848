//! The parts that all routes share: the route table, errors, extractors, and the generated description.

mod body_error;
mod error;
mod extract;
mod openapi;
mod reference;
mod route;
pub(crate) mod schemas;

pub(crate) use error::ApiError;
pub(crate) use extract::{
    IdPath, JsonBody, MessagePath, NamePath, Params, QueuePath, SmallJson, TaskPath, WholeBody, answer, answer_with,
    no_content, read_body,
};
pub(crate) use openapi::document;
pub(crate) use postrider_wire::Code;
pub(crate) use reference::page;
pub(crate) use route::{Content, Need, Route, Verb};
