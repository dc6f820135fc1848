//! `postrider demo`

mod acts;
mod narrator;
mod stage;
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
use narrator::Narrator;
use stage::{Pace, Stage};

/// A minute's tour, on a file that is removed afterwards
///
/// Sends messages and handles them: some succeed, some are tried again, one dies and is brought back, and a worker
/// that comes too late is refused. Everything that is told really happens, and is checked; exits with 1 when something
/// did not happen as it should.
///
/// Uses a temporary SQLite file; POSTRIDER_URL and the configuration are not used. With --url it uses that store
/// instead, and a queue of its own there, which is removed afterwards.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Demo {
    /// Do not pause for the reader, and wait only tenths of seconds for retries. So it is anyway when stdout is not a
    /// terminal, and with --json
    #[arg(long)]
    fast: bool,

    /// Keep the file, or the queue of --url
    #[arg(long)]
    keep: bool,
}

const EXAMPLES: &str = "\
Examples:
  postrider demo
  postrider demo --fast --keep
  postrider demo --url sqlite:/tmp/try.db
  postrider --json demo | jq .step";

/// Where the tour takes place.
struct Place {
    endpoint: Endpoint,
    queue: QueueName,
    /// The temporary file's; `None` for a store of the user.
    file_url: Option<String>,
    /// Removed with this value.
    folder: Option<TempDir>,
    /// What a store of the user may be made with.
    new_file: Option<NewFile>,
}

impl Place {
    fn choose(global: &Global) -> Result<Self, Failure> {
        if global.url.is_some() {
            let config = global.config_for(None)?;
            let endpoint = config.endpoint()?;
            // Its end is chance, so that the queue is nobody else's.
            let id = MessageId::generate().to_string();
            let queue = QueueName::new(format!("demo_{}", &id[id.len() - 8..]))?;
            return Ok(Self { endpoint, queue, file_url: None, folder: None, new_file: Some(NewFile::of(&config)) });
        }
        let folder = tempfile::Builder::new()
            .prefix("postrider-demo-")
            .tempdir()
            .map_err(|error| Failure::failed(format!("cannot make a temporary folder: {error}")))?;
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

    let mut place = Place::choose(global)?;
    let paced = !command.fast && !global.json && std::io::stdout().is_terminal();
    let mut stage = Stage {
        narrator: Narrator::new(global.json, paced),
        pace: if paced { Pace::readable() } else { Pace::fast() },
        first: place.endpoint.connect().await?,
        second: place.endpoint.connect().await?,
        queue: place.queue.clone(),
    };
    if let Some(file) = place.new_file.take() {
        file.tell();
    }
    let played = tokio::select! {
        played = acts::play(&mut stage, &place) => Some(played),
        () = signals.next() => None,
    };
    let keep = command.keep && matches!(played, Some(Ok(())));
    let mut left = leave(&stage, &place, keep).await;
    if let Some(folder) = place.folder.take() {
        if keep {
            // From here on it is the user's.
            let _ = folder.keep();
        } else if let Err(error) = folder.close() {
            left = left.and(Err(Failure::failed(format!("cannot remove the temporary folder: {error}"))));
        }
    }
    match played {
        Some(Ok(())) => left?,
        Some(Err(failure)) => {
            // The first failure is the one that matters.
            if let Err(Failure::Failed(why)) = left {
                note(format_args!("what the demo had made may have been left behind: {why}"));
            }
            return Err(failure);
        }
        None => {
            note("interrupted");
            left?;
            return Err(Failure::failed("what the demo had made is removed"));
        }
    }
    acts::farewell(&mut stage.narrator, &place, keep)
}

/// Ends the connections, and removes what is not in the temporary folder.
async fn leave(stage: &Stage, place: &Place, keep: bool) -> Result<(), Failure> {
    if place.folder.is_none() && !keep {
        stage.second.delete_queue(&place.queue, Deadline::default()).await?;
    }
    stage.first.close(Deadline::default()).await?;
    Ok(stage.second.close(Deadline::default()).await?)
}
