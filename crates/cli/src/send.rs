//! `postrider send`

mod lines;

use std::ffi::OsString;
use std::io::IsTerminal;
use std::os::unix::ffi::OsStringExt;
use std::time::Duration;

use postrider::{
    Bytes, ContentType, Deadline, Headers, Key, Message, MessageId, MessagingService, Priority, QueueName,
};
use serde::Serialize;

use crate::args::Global;
use crate::failure::Failure;
use crate::input;
use crate::lines::create_from_stdin;
use crate::values;
use lines::Sender;

/// Send a message
///
/// Prints the message's id once it is durable. A missing queue is created.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Send {
    /// The queue
    #[arg(value_parser = values::queue)]
    queue: QueueName,

    /// The body [default: read from stdin, as with '-']
    body: Option<OsString>,

    /// Send each line of stdin as a message, without its newline (LF or CR LF); an empty line is an empty message
    #[arg(long, conflicts_with_all = ["body", "id", "dedup_key"])]
    lines: bool,

    #[command(flatten)]
    options: MessageOptions,

    /// The message's id [default: a new one]. Two sends with one id make two messages; use --dedup-key to send a message
    /// only once
    #[arg(long, value_name = "UUID", value_parser = values::id)]
    id: Option<MessageId>,

    /// Send only if no living message has this key; otherwise print that message's id
    #[arg(long, value_name = "KEY", value_parser = values::key)]
    dedup_key: Option<Key>,
}

/// Options that all messages of a call share.
#[derive(Debug, Clone, clap::Args)]
struct MessageOptions {
    /// A header; repeatable, each name once
    #[arg(long = "header", value_name = "NAME=VALUE", value_parser = values::header)]
    headers: Vec<(String, String)>,

    /// Deliver the message no earlier than after this time, like 500ms, 5s, 2m, 1h30m or 3d [default: 0s]
    #[arg(long, value_name = "DURATION", value_parser = values::duration, allow_hyphen_values = true)]
    delay: Option<Duration>,

    /// Ordering key: messages with one key are handled one at a time, in send order
    #[arg(long, value_name = "KEY", value_parser = values::key)]
    key: Option<Key>,

    /// Priority from 0 to 9; 9 is the most urgent [default: 4]
    #[arg(long, value_name = "N", value_parser = values::priority, allow_hyphen_values = true)]
    priority: Option<Priority>,

    /// Dead-letter the message if it is not handled within this time, like 500ms, 5s, 2m, 1h30m or 3d [default: never]
    #[arg(long, value_name = "DURATION", value_parser = values::duration, allow_hyphen_values = true)]
    expires_in: Option<Duration>,

    /// Content type of the body, like 'application/json' [default: application/octet-stream]
    #[arg(long, value_name = "TYPE", value_parser = values::content_type)]
    content_type: Option<ContentType>,
}

const EXAMPLES: &str = "\
Examples:
  postrider send orders '{\"id\": 7}'
  postrider send orders --header tenant=acme --key customer-7 --delay 5s < order.json
  seq 1000 | postrider send orders --lines";

/// One line of `--json`.
#[derive(Debug, Serialize)]
struct Sent<'a> {
    id: MessageId,
    queue: &'a str,
}

impl MessageOptions {
    fn message(&self, body: impl Into<Bytes>) -> Result<Message, Failure> {
        let mut message = Message::new(body);
        message.headers = self.headers()?;
        message.ordering_key.clone_from(&self.key);
        message.priority = self.priority.unwrap_or_default();
        message.delay = self.delay.unwrap_or_default();
        if let Some(content_type) = &self.content_type {
            message.content_type = content_type.clone();
        }
        Ok(match self.expires_in {
            Some(lifetime) => message.expires_in(lifetime),
            None => message,
        })
    }

    fn headers(&self) -> Result<Headers, Failure> {
        let mut headers = Headers::new();
        for (name, value) in &self.headers {
            if headers.get(name).is_some() {
                return Err(Failure::usage(format!("header '{name}' is given twice; a message has each name once")));
            }
            headers.insert(name, value)?;
        }
        Ok(headers)
    }
}

pub(crate) async fn run(global: &Global, command: Send) -> Result<(), Failure> {
    if command.body.is_none() && !command.lines && std::io::stdin().is_terminal() {
        return Err(Failure::usage(
            "there is no body; pass it after the queue, or pass '-' to type it and end it with Ctrl-D",
        ));
    }
    // Checked before anything is created.
    command.options.headers()?;
    let session = global.connect().await?;
    if command.lines {
        let sender = Sender { session: &session, queue: &command.queue, options: &command.options };
        let result = create_from_stdin(&sender, session.out).await;
        let closed = session.close().await;
        return result.and(closed);
    }
    let body = match command.body {
        Some(body) if body != "-" => Bytes::from(body.into_vec()),
        _ => input::body(session.provider.capabilities().limits.max_body_bytes).await?,
    };
    let mut message = command.options.message(body)?;
    message.dedup_key = command.dedup_key;
    if let Some(id) = command.id {
        message.id = id;
    }
    let id = session.provider.send_message(&command.queue, message, Deadline::default()).await?;
    let printed = session.out.row(&Sent { id, queue: command.queue.as_str() }, id);
    let closed = session.close().await;
    printed.map_err(|failure| failure.after(format_args!("message {id} was sent")))?;
    closed
}
