//! Prints a row on stdout for each message or task, once its outcome is known.

use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};

use super::echo::Echo;
use super::stop::Stop;
use crate::output::Output;

/// Rows that may wait for a slow reader of stdout, besides one for each worker. No command starts without a permit for
/// its row.
const CAPACITY: usize = 1000;
/// Time for the last rows to be written after a forced stop.
const LAST_WRITE_TIMEOUT: Duration = Duration::from_secs(1);

/// The permit of a row that is still to come.
pub(crate) type RowPermit = OwnedSemaphorePermit;

/// Writes rows.
#[derive(Debug)]
pub(crate) struct Rows<R> {
    permits: Arc<Semaphore>,
    /// Unbounded, because each row holds a permit. `None` ends the writer.
    waiting: mpsc::UnboundedSender<Option<Waiting<R>>>,
    stop: Stop,
}

#[derive(Debug)]
struct Waiting<R> {
    row: R,
    text: String,
    _permit: RowPermit,
}

/// Completes when every row has been written.
#[derive(Debug)]
pub(crate) struct Written(oneshot::Receiver<()>);

impl<R: Serialize + Send + 'static> Rows<R> {
    /// Starts the thread that writes rows. `terminal` draws them if stdout is the terminal that it draws on.
    pub(crate) fn start(out: Output, workers: usize, terminal: Option<Echo>, stop: Stop) -> (Self, Written) {
        let (waiting, rows) = mpsc::unbounded_channel();
        let (done, is_done) = oneshot::channel();
        let failing = stop.clone();
        // A separate thread, because a slow reader may block stdout for any time.
        std::thread::spawn(move || {
            write(rows, out, terminal, &failing);
            let _ = done.send(());
        });
        (Self { permits: Arc::new(Semaphore::new(CAPACITY + workers)), waiting, stop }, Written(is_done))
    }

    /// Waits for the permit of a row.
    pub(crate) async fn permit(&self) -> Option<RowPermit> {
        self.permits.clone().acquire_owned().await.ok()
    }

    pub(crate) fn write(&self, row: R, text: String, permit: RowPermit) {
        // The writer thread ends only after `finish`.
        let _ = self.waiting.send(Some(Waiting { row, text, _permit: permit }));
    }

    /// Waits until every row is written, or shortly after a forced stop.
    pub(crate) async fn finish(&self, written: Written) {
        let _ = self.waiting.send(None);
        let forced = async {
            self.stop.killing().await;
            tokio::time::sleep(LAST_WRITE_TIMEOUT).await;
        };
        tokio::select! {
            _ = written.0 => {}
            () = forced => {}
        }
    }
}

fn write<R: Serialize>(
    mut rows: mpsc::UnboundedReceiver<Option<Waiting<R>>>,
    out: Output,
    terminal: Option<Echo>,
    stop: &Stop,
) {
    while let Some(Some(Waiting { row, text, _permit })) = rows.blocking_recv() {
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
