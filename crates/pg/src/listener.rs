//! Hears on a connection of its own what other processes tell.
//!
//! The connection is never in a transaction, so it keeps no old row alive. When it breaks it is opened again, a little
//! later each time; whoever waits is told then, because nobody knows what was missed.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::poll_fn;
use tokio::sync::watch;
use tokio_postgres::AsyncMessage;

use crate::connection::{Database, SILENCE};

const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_millis(500);

/// What a listener hears.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Heard<'m> {
    /// The connection is new: anything may have been missed.
    Anything,
    /// A notification.
    Told {
        /// The channel it was sent on.
        channel: &'m str,
        /// What it says.
        payload: &'m str,
    },
}

/// Listens for ever, on channels to which others may be added. Ends when nobody can add any more.
pub(crate) async fn listen<Q>(
    database: Arc<Database<Q>>,
    mut channels: watch::Receiver<Vec<String>>,
    heard: impl Fn(Heard<'_>),
) {
    let mut pause = FIRST_PAUSE;
    loop {
        if hear(&database, &mut channels, &heard).await {
            pause = FIRST_PAUSE;
        }
        tokio::time::sleep(pause.mul_f64(rand::random_range(0.5..1.0))).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// Listens until the connection breaks. Answers whether there was one.
async fn hear<Q>(
    database: &Database<Q>,
    channels: &mut watch::Receiver<Vec<String>>,
    heard: &impl Fn(Heard<'_>),
) -> bool {
    let Ok((client, mut connection)) = database.connect_apart().await else { return false };
    let mut messages = poll_fn(move |context| connection.poll_message(context));
    let mut has_begun = false;
    // Whether channels are listened to that were not before.
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
                        heard(Heard::Anything);
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
                // To listen again changes nothing, and shows whether anybody is there.
                () = tokio::time::sleep(SILENCE), if is_subscribed => {
                    is_new = false;
                    break;
                }
                message = messages.next() => message,
            };
            match message {
                Some(Ok(AsyncMessage::Notification(told))) => {
                    heard(Heard::Told { channel: told.channel(), payload: told.payload() });
                }
                Some(Ok(_)) => {}
                Some(Err(_)) | None => return has_begun,
            }
        }
    }
}

/// To listen twice to a channel is to listen once.
fn commands(channels: &[String]) -> String {
    let listen = |channel: &String| format!("listen \"{}\"", channel.replace('"', "\"\""));
    channels.iter().map(listen).collect::<Vec<_>>().join("; ")
}
