//! What comes in on stdin.

use std::io::Read;

use postrider::Bytes;

use crate::failure::Failure;

/// A body: all of stdin. No more is read than a message may hold.
pub(crate) async fn body(most: usize) -> Result<Bytes, Failure> {
    all(most, || too_long("the body on stdin", most)).await
}

/// A task's payload, in the same way.
pub(crate) async fn payload(most: usize) -> Result<Bytes, Failure> {
    all(most, || too_long_for_a_task("the payload on stdin", most)).await
}

async fn all(most: usize, too_long: impl Fn() -> String) -> Result<Bytes, Failure> {
    let read = tokio::task::spawn_blocking(move || {
        let mut body = Vec::new();
        std::io::stdin().lock().take(most as u64 + 1).read_to_end(&mut body).map(|_| body)
    });
    let body = read.await.unwrap_or_else(|panic| Err(std::io::Error::other(panic)));
    let body = body.map_err(|error| Failure::failed(format!("cannot read stdin: {error}; nothing was done")))?;
    if body.len() > most {
        return Err(Failure::usage(too_long()));
    }
    Ok(body.into())
}

/// Why a body is refused before it has been read to its end.
pub(crate) fn too_long(what: &str, most: usize) -> String {
    format!(
        "{what} has more than {most} bytes, the most that a message may hold by common.messaging.max_message_bytes and by \
         what the store takes; send a reference to the data instead"
    )
}

/// The same, of a task.
pub(crate) fn too_long_for_a_task(what: &str, most: usize) -> String {
    format!(
        "{what} has more than {most} bytes, the most that a task may hold by common.messaging.max_message_bytes; \
         store a reference to the data instead"
    )
}
