//! Input from stdin.

use std::io::Read;

use postrider::Bytes;

use crate::failure::Failure;

/// Reads a message body: all of stdin, up to `max` bytes.
pub(crate) async fn body(max: usize) -> Result<Bytes, Failure> {
    all(max, || too_long("the body on stdin", max)).await
}

/// Reads a task payload: all of stdin, up to `max` bytes.
pub(crate) async fn payload(max: usize) -> Result<Bytes, Failure> {
    all(max, || too_long_for_a_task("the payload on stdin", max)).await
}

async fn all(max: usize, too_long: impl Fn() -> String) -> Result<Bytes, Failure> {
    let read = tokio::task::spawn_blocking(move || {
        let mut body = Vec::new();
        std::io::stdin().lock().take(max as u64 + 1).read_to_end(&mut body).map(|_| body)
    });
    let body = read.await.unwrap_or_else(|panic| Err(std::io::Error::other(panic)));
    let body = body.map_err(|error| Failure::failed(format!("cannot read stdin: {error}; nothing was done")))?;
    if body.len() > max {
        return Err(Failure::usage(too_long()));
    }
    Ok(body.into())
}

/// The error of a body that is too long.
pub(crate) fn too_long(what: &str, max: usize) -> String {
    format!(
        "{what} has more than {max} bytes, the limit of common.messaging.max_message_bytes and of the store; send a \
         reference to the data instead"
    )
}

/// The error of a task payload that is too long.
pub(crate) fn too_long_for_a_task(what: &str, max: usize) -> String {
    format!(
        "{what} has more than {max} bytes, the limit of common.messaging.max_message_bytes; store a reference to the \
         data instead"
    )
}
