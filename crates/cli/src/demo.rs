//! `postrider demo`

mod steps;
mod tour;
mod transcript;
mod worker;

use std::io::IsTerminal;

use postrider::config::MessagingConfig;
use postrider::{Deadline, Endpoint, MessageId, MessagingService, QueueAdmin, QueueName};
use tempfile::TempDir;

use crate::args::Global;
use crate::failure::Failure;
use crate::output::note;
use crate::session::NewFile;
use crate::signals::Signals;
use tour::{Pace, Tour};
use transcript::Transcript;

/// A one-minute tour on a temporary file
///
/// Sends messages and handles them: some succeed, some are retried, one becomes a dead letter and is redriven, and a
/// late acknowledgement is refused. Every printed line is checked; exits with 1 if one is wrong.
///
/// Uses a temporary SQLite file and ignores POSTRIDER_URL and the configuration. With --url, uses a new queue of that
/// store and deletes it afterwards.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Demo {
    /// Do not pause between lines, and retry after tenths of a second. The default if stdout is not a terminal, and with
    /// --json
    #[arg(long)]
    fast: bool,

    /// Keep the temporary file, or the queue in the store of --url
    #[arg(long)]
    keep: bool,
}

const EXAMPLES: &str = "\
Examples:
  postrider demo
  postrider demo --fast --keep
  postrider demo --url sqlite:/tmp/try.db
  postrider --json demo | jq .step";

/// The store and the queue of the tour.
struct Location {
    endpoint: Endpoint,
    queue: QueueName,
    /// URL of the temporary file; `None` for the user's store.
    file_url: Option<String>,
    /// The temporary folder, removed on drop.
    folder: Option<TempDir>,
    /// The file of the user's store, if connecting creates it.
    new_file: Option<NewFile>,
}

impl Location {
    fn choose(global: &Global) -> Result<Self, Failure> {
        if global.url.is_some() {
            let config = global.config_for(None)?;
            let endpoint = config.endpoint()?;
            // A random suffix, so that no other program uses the queue.
            let id = MessageId::generate().to_string();
            let queue = QueueName::new(format!("demo_{}", &id[id.len() - 8..]))?;
            return Ok(Self { endpoint, queue, file_url: None, folder: None, new_file: Some(NewFile::of(&config)) });
        }
        let folder = tempfile::Builder::new()
            .prefix("postrider-demo-")
            .tempdir()
            .map_err(|error| Failure::failed(format!("cannot create a temporary folder: {error}")))?;
        let url = format!("sqlite:{}", folder.path().join("demo.db").display());
        let endpoint = Endpoint::new(&url, &MessagingConfig::default())?;
        Ok(Self {
            endpoint,
            queue: QueueName::new("orders")?,
            file_url: Some(url),
            folder: Some(folder),
            new_file: None,
        })
    }
}

pub(crate) async fn run(global: &Global, command: Demo) -> Result<(), Failure> {
    let cannot_listen = |error| Failure::failed(format!("cannot listen to signals: {error}"));
    let mut signals = Signals::listen().map_err(cannot_listen)?;

    let mut location = Location::choose(global)?;
    let paced = !command.fast && !global.json && std::io::stdout().is_terminal();
    let mut tour = Tour {
        transcript: Transcript::new(global.json, paced),
        pace: if paced { Pace::readable() } else { Pace::fast() },
        first: location.endpoint.connect().await?,
        second: location.endpoint.connect().await?,
        queue: location.queue.clone(),
    };
    if let Some(file) = location.new_file.take() {
        file.announce();
    }
    let result = tokio::select! {
        result = steps::run(&mut tour, &location) => Some(result),
        () = signals.next() => None,
    };
    let keep = command.keep && matches!(result, Some(Ok(())));
    let mut cleaned = clean_up(&tour, &location, keep).await;
    if let Some(folder) = location.folder.take() {
        if keep {
            let _ = folder.keep();
        } else if let Err(error) = folder.close() {
            cleaned = cleaned.and(Err(Failure::failed(format!("cannot remove the temporary folder: {error}"))));
        }
    }
    match result {
        Some(Ok(())) => cleaned?,
        Some(Err(failure)) => {
            if let Err(Failure::Failed(why)) = cleaned {
                note(format_args!("files or queues of the demo may be left behind: {why}"));
            }
            return Err(failure);
        }
        None => {
            note("interrupted");
            cleaned?;
            return Err(Failure::failed("the files and queues of the demo were removed"));
        }
    }
    steps::show_next(&mut tour.transcript, &location, keep)
}

/// Deletes the queue in the user's store and closes the connections.
async fn clean_up(tour: &Tour, location: &Location, keep: bool) -> Result<(), Failure> {
    if location.folder.is_none() && !keep {
        tour.second.delete_queue(&location.queue, Deadline::default()).await?;
    }
    tour.first.close(Deadline::default()).await?;
    Ok(tour.second.close(Deadline::default()).await?)
}
