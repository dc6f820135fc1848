//! Hears on a connection of its own what other processes tell.
//!
//! The connection is never in a transaction, so it keeps no old row alive. When it breaks it is opened again, a little
//! later each time; whoever waits is woken then, because nobody knows what was missed.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::poll_fn;
use postrider_core::QueueName;
use tokio_postgres::AsyncMessage;

use crate::connection::Database;
use crate::wakes::Wakes;

const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// Listens for ever.
pub(crate) async fn listen(database: Arc<Database>, wakes: Arc<Wakes>) {
    let mut pause = FIRST_PAUSE;
    loop {
        if hear(&database, &wakes).await {
            pause = FIRST_PAUSE;
        }
        tokio::time::sleep(pause.mul_f64(rand::random_range(0.5..1.0))).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// Listens until the connection breaks. Answers whether there was one.
async fn hear(database: &Database, wakes: &Wakes) -> bool {
    let Ok((client, mut connection)) = database.connect_apart().await else { return false };
    let mut messages = poll_fn(move |context| connection.poll_message(context));
    let command = format!("listen {}", database.schema.channel());
    let mut subscribed = std::pin::pin!(client.batch_execute(&command));
    let mut is_subscribed = false;
    loop {
        let message = tokio::select! {
            done = &mut subscribed, if !is_subscribed => {
                if done.is_err() {
                    return false;
                }
                is_subscribed = true;
                wakes.tell_all();
                continue;
            }
            message = messages.next() => message,
        };
        match message {
            Some(Ok(AsyncMessage::Notification(told))) => {
                if let Ok(queue) = QueueName::for_reading(told.payload()) {
                    wakes.tell([&queue]);
                }
            }
            Some(Ok(_)) => {}
            Some(Err(_)) | None => return is_subscribed,
        }
    }
}
