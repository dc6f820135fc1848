//! A row for each piece of work, on stdout, once it is known what became of it.

use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};

use super::echo::Echo;
use super::stop::Stop;
use crate::output::Output;

/// Rows that may wait for whoever reads stdout, besides one for each worker. No command is begun without a place for its
/// row.
const ROOM: usize = 1000;
/// How long rows may still take to be written when everything shall end at once.
const LAST_PATIENCE: Duration = Duration::from_secs(1);

/// The place of a row that is still to come.
pub(crate) type Place = OwnedSemaphorePermit;

/// Writes rows.
#[derive(Debug)]
pub(crate) struct Rows<R> {
    room: Arc<Semaphore>,
    /// Without a bound of its own: there is a place for each row. `None` ends it.
    waiting: mpsc::UnboundedSender<Option<Waiting<R>>>,
    stop: Stop,
}

#[derive(Debug)]
struct Waiting<R> {
    row: R,
    text: String,
    _place: Place,
}

/// Completes when every row has been written.
#[derive(Debug)]
pub(crate) struct Written(oneshot::Receiver<()>);

impl<R: Serialize + Send + 'static> Rows<R> {
    /// With a `terminal`, stdout is what that draws on.
    pub(crate) fn start(out: Output, workers: usize, terminal: Option<Echo>, stop: Stop) -> (Self, Written) {
        let (waiting, rows) = mpsc::unbounded_channel();
        let (done, is_done) = oneshot::channel();
        let failing = stop.clone();
        // A thread of its own: whoever reads stdout may take as long as they like.
        std::thread::spawn(move || {
            write(rows, out, terminal, &failing);
            let _ = done.send(());
        });
        (Self { room: Arc::new(Semaphore::new(ROOM + workers)), waiting, stop }, Written(is_done))
    }

    /// Waits for the place of a row.
    pub(crate) async fn place(&self) -> Option<Place> {
        self.room.clone().acquire_owned().await.ok()
    }

    pub(crate) fn write(&self, row: R, text: String, place: Place) {
        // Its reader ends only after `finish`.
        let _ = self.waiting.send(Some(Waiting { row, text, _place: place }));
    }

    /// Waits until everything is written or somebody has no patience for that.
    pub(crate) async fn finish(&self, written: Written) {
        let _ = self.waiting.send(None);
        let out_of_patience = async {
            self.stop.killing().await;
            tokio::time::sleep(LAST_PATIENCE).await;
        };
        tokio::select! {
            _ = written.0 => {}
            () = out_of_patience => {}
        }
    }
}

fn write<R: Serialize>(
    mut rows: mpsc::UnboundedReceiver<Option<Waiting<R>>>,
    out: Output,
    terminal: Option<Echo>,
    stop: &Stop,
) {
    while let Some(Some(Waiting { row, text, _place })) = rows.blocking_recv() {
        match &terminal {
            Some(terminal) => terminal.row(text),
            None => {
                if let Err(failure) = out.row(&row, text) {
                    stop.fail(failure);
                }
            }
        }
    }
}
