//! The log of a subscriber: each retry and each dead letter, and one line when its store fails or recovers.

use std::io::Write;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use postrider_core::{Message, MessagingService, Timestamp};
use postrider_subscriber::{Delivery, HandlerError, Subscriber};
use serde_json::Value;

use crate::fixture::{handler, queue, soon, start, store};
use crate::scripted::{Call, Scripted, Verdict};

/// Everything that is logged on this thread.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Log {
    fn listen(&self) -> tracing::subscriber::DefaultGuard {
        let log = self.clone();
        let listener = tracing_subscriber::fmt().json().flatten_event(true).with_writer(move || log.clone());
        tracing::subscriber::set_default(listener.with_max_level(tracing::Level::WARN).finish())
    }

    fn lines(&self) -> Vec<Value> {
        let text = String::from_utf8(self.0.lock().unwrap().clone()).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    fn with(&self, message: &str) -> Vec<Value> {
        self.lines().into_iter().filter(|line| line["message"] == message).collect()
    }
}

#[tokio::test(start_paused = true)]
async fn each_retry_is_a_warning_and_each_dead_letter_an_error() {
    let log = Log::default();
    let _listens = log.listen();
    let provider = store();
    let message = Message::new("a");
    let id = provider.send_message(&queue(), message, soon()).await.unwrap();
    let fails = handler(|delivery: Delivery| async move {
        match delivery.envelope.attempts_count {
            0 => Err(HandlerError::retry_after(Duration::from_secs(60), "the printer is on fire")),
            _ => Err(HandlerError::permanent("there is no printer")),
        }
    });
    let subscriber = Subscriber::builder(provider, queue()).handler(fails).build().unwrap();
    let running = start(subscriber);
    running.until(|counts| counts.dead == 1).await;
    running.stop().await;
    let lines = log.lines();
    assert_eq!(lines.len(), 2, "{lines:?}");
    let (retry, death) = (&lines[0], &lines[1]);
    for (line, level, attempt, error) in
        [(retry, "WARN", 1, "the printer is on fire"), (death, "ERROR", 2, "there is no printer")]
    {
        assert_eq!((&line["level"], &line["queue"]), (&level.into(), &"orders".into()), "{line}");
        assert_eq!((&line["id"], &line["attempt"]), (&id.to_string().into(), &attempt.into()), "{line}");
        assert_eq!(line["error"], error, "{line}");
    }
    let next: Timestamp = retry["next_attempt_at"].as_str().unwrap().parse().unwrap();
    assert!(next.since(Timestamp::now()) > Duration::from_secs(50), "{retry}");
    assert_eq!(death["reason"], "rejected");
}

#[tokio::test(start_paused = true)]
async fn a_store_that_fails_and_recovers_is_logged_once_each() {
    const AWAY: std::ops::Range<usize> = 2..8;
    let log = Log::default();
    let _listens = log.listen();
    let provider = Scripted::new(store(), |call| match call {
        Call::Receive(number) if AWAY.contains(&number) => Verdict::Fail,
        _ => Verdict::Pass,
    });
    let subscriber = Subscriber::builder(provider.clone(), queue())
        .handler(handler(|_| async { Ok(()) }))
        .max_fetch_interval(Duration::from_secs(1))
        .build()
        .unwrap();
    let running = start(subscriber);
    let mut tries = 0;
    while log.with("the store answers again").is_empty() {
        tokio::time::sleep(Duration::from_secs(1)).await;
        tries += 1;
        assert!(tries < 1_000, "{:?}", log.lines());
    }
    running.stop().await;
    let away = log.with("cannot receive; trying again");
    assert_eq!((away.len(), log.with("the store answers again").len()), (1, 1), "{:?}", log.lines());
    assert_eq!((&away[0]["level"], &away[0]["queues"]), (&"WARN".into(), &"orders".into()));
    assert!(away[0]["error"].as_str().is_some_and(|error| !error.is_empty()), "{away:?}");
}
