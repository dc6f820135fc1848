//! `postrider dlq edit`

use std::collections::HashSet;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;

use postrider::{Bytes, ContentType, DeadLetterEdit, DeadLetters, Deadline, MessageId, MessagingService, QueueName};

use super::record::{Record, RecordText};
use crate::args::Global;
use crate::failure::Failure;
use crate::input;
use crate::values;

/// Change a dead letter before it is redriven
#[derive(Debug, clap::Args)]
pub(super) struct Edit {
    /// The queue
    #[arg(value_parser = values::readable_queue)]
    queue: QueueName,

    /// The message id
    #[arg(value_parser = values::id)]
    id: MessageId,

    /// The new body; '-' reads it from stdin
    #[arg(long)]
    body: Option<OsString>,

    /// The new content type
    #[arg(long, value_name = "TYPE", value_parser = values::content_type)]
    content_type: Option<ContentType>,

    /// Set a header; repeatable, each name once
    #[arg(long = "header", value_name = "NAME=VALUE", value_parser = values::header)]
    headers: Vec<(String, String)>,

    /// Remove a header; repeatable
    #[arg(long = "remove-header", value_name = "NAME")]
    removed_headers: Vec<String>,
}

pub(super) async fn run(global: &Global, command: Edit) -> Result<(), Failure> {
    let Edit { queue, id, body, content_type, headers, removed_headers } = command;
    let is_nothing = body.is_none() && content_type.is_none() && headers.is_empty() && removed_headers.is_empty();
    if is_nothing {
        return Err(Failure::usage(
            "there is nothing to change; pass --body, --content-type, --header or --remove-header",
        ));
    }
    let mut names = HashSet::new();
    for name in headers.iter().map(|(name, _)| name).chain(&removed_headers) {
        if !names.insert(name) {
            let name = name.escape_debug();
            return Err(Failure::usage(format!("header '{name}' is given twice; set or remove each name once")));
        }
    }
    let session = global.connect().await?;
    let body = match body {
        Some(body) if body == "-" => Some(input::body(session.provider.capabilities().limits.max_body_bytes).await?),
        Some(body) => Some(Bytes::from(body.into_vec())),
        None => None,
    };
    let headers = if headers.is_empty() && removed_headers.is_empty() {
        None
    } else {
        // An edit replaces all headers, so the other ones are read first.
        let letter = session.provider.get_dead_letter(&queue, id, Deadline::default()).await?;
        let mut changed = letter.headers;
        for name in &removed_headers {
            if changed.remove(name).is_none() {
                let (name, known) = (name.escape_debug(), changed.iter().map(|(name, _)| name).collect::<Vec<_>>());
                return Err(Failure::usage(format!(
                    "message {id} has no header '{name}' to remove; it has: {}",
                    if known.is_empty() { "none".into() } else { known.join(", ") }
                )));
            }
        }
        for (name, value) in headers {
            changed.insert(name, value)?;
        }
        Some(changed)
    };
    let edit = DeadLetterEdit { body, content_type, headers };
    let letter = session.provider.edit_dead_letter(&queue, id, edit, Deadline::default()).await?;
    session.out.row(&Record::of(&letter), RecordText(&letter))?;
    session.close().await
}
