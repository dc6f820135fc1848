//! Listens for notifications of other processes on a separate connection.
//!
//! The connection is never in a transaction, so it keeps no dead rows. If it breaks, it is reopened with backoff; then
//! all waiting receivers are woken, because hints may have been missed.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::poll_fn;
use tokio::sync::watch;
use tokio_postgres::AsyncMessage;

use crate::connection::{Database, SILENCE};

const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_millis(500);

/// An event of a listener.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ListenerEvent<'m> {
    /// The connection is new; notifications may have been missed.
    Connected,
    /// A notification.
    Notification {
        /// Its channel.
        channel: &'m str,
        /// Its payload.
        payload: &'m str,
    },
}

/// Listens to channels, to which others may be added. Ends when its sender is dropped.
pub(crate) async fn listen<Q>(
    database: Arc<Database<Q>>,
    mut channels: watch::Receiver<Vec<String>>,
    on_event: impl Fn(ListenerEvent<'_>),
) {
    let mut pause = FIRST_PAUSE;
    loop {
        if listen_once(&database, &mut channels, &on_event).await {
            pause = FIRST_PAUSE;
        }
        tokio::time::sleep(pause.mul_f64(rand::random_range(0.5..1.0))).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// Listens until the connection breaks. Returns whether it was established.
async fn listen_once<Q>(
    database: &Database<Q>,
    channels: &mut watch::Receiver<Vec<String>>,
    on_event: &impl Fn(ListenerEvent<'_>),
) -> bool {
    let Ok((client, mut connection)) = database.connect_apart().await else { return false };
    let mut messages = poll_fn(move |context| connection.poll_message(context));
    let mut has_begun = false;
    // Whether the command contains new channels.
    let mut is_new = true;
    loop {
        let command = commands(&channels.borrow_and_update());
        let mut subscribed = std::pin::pin!(tokio::time::timeout(SILENCE, client.batch_execute(&command)));
        let mut is_subscribed = false;
        loop {
            let message = tokio::select! {
                done = &mut subscribed, if !is_subscribed => {
                    if !matches!(done, Ok(Ok(()))) {
                        return has_begun;
                    }
                    (is_subscribed, has_begun) = (true, true);
                    if is_new {
                        on_event(ListenerEvent::Connected);
                    }
                    continue;
                }
                changed = channels.changed(), if is_subscribed => match changed {
                    Ok(()) => {
                        is_new = true;
                        break;
                    }
                    Err(_) => return has_begun,
                },
                // Repeating `listen` changes nothing and probes the connection.
                () = tokio::time::sleep(SILENCE), if is_subscribed => {
                    is_new = false;
                    break;
                }
                message = messages.next() => message,
            };
            match message {
                Some(Ok(AsyncMessage::Notification(notification))) => {
                    let (channel, payload) = (notification.channel(), notification.payload());
                    on_event(ListenerEvent::Notification { channel, payload });
                }
                Some(Ok(_)) => {}
                Some(Err(_)) | None => return has_begun,
            }
        }
    }
}

/// Returns the commands. Listening twice to a channel is the same as once.
fn commands(channels: &[String]) -> String {
    let listen = |channel: &String| format!("listen \"{}\"", channel.replace('"', "\"\""));
    channels.iter().map(listen).collect::<Vec<_>>().join("; ")
}
