//! `postrider serve`

mod options;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use postrider::config::{Origin, ProviderKind};
use postrider::tasks::Shutdown;
use postrider::{Config, Deadline, MessagingService, Sources, StateStorage, SystemContext};
use postrider_server::{ServeError, Server, Tokens};
use serde::Serialize;
use tempfile::TempDir;

use crate::args::Global;
use crate::command::Echo;
use crate::failure::Failure;
use crate::log;
use crate::output::{Output, note};
use crate::session::{NewFile, warn_if_readable};
use crate::signals::Signals;
use options::options;

/// Serve a store over HTTP, with a dashboard, metrics and the chores of tasks
///
/// The dashboard is at the printed address and the API's reference at /reference there; this program is a client with
/// --url http://host:port. Runs until Ctrl-C, SIGTERM or SIGHUP, then finishes running requests; a second signal stops it
/// at once.
///
/// Without tokens every client may do everything, so the server listens only on this machine; 'postrider token create'
/// creates a token. Tokens, tasks and schedules are stored where state.url says; with --url memory: and no state.url they
/// are lost when the server ends.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Serve {
    /// Address to listen on, like 127.0.0.1:8025; port 0 selects a free one [default: server.listen of the configuration]
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<String>,

    /// TLS certificate, a PEM file [default: no TLS]
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_certificate: Option<PathBuf>,

    /// Private key of the certificate, a PEM file
    #[arg(long, value_name = "FILE", requires = "tls_certificate")]
    tls_key: Option<PathBuf>,
}

const EXAMPLES: &str = "\
Examples:
  postrider serve
  postrider serve --url memory: --listen 127.0.0.1:0
  postrider serve --url amqp://user@host/vhost --listen 0.0.0.0:443 \\
      --tls-certificate server.pem --tls-key server.key";

/// The line of `--json`.
#[derive(Serialize)]
struct Row<'a> {
    url: &'a str,
    address: SocketAddr,
    provider: &'static str,
    open: bool,
}

pub(crate) async fn run(global: &Global, command: Serve) -> Result<(), Failure> {
    let sources = command.add_to(global.sources_for(None)?)?;
    let mut config = Config::load(&sources)?;
    if config.provider() == Some(ProviderKind::Http) {
        let url = config.url();
        return Err(Failure::usage(format!("{url} is a server itself; pass the URL of the store to serve")));
    }
    // A store in memory ends with this process, and so do its tasks and tokens, unless state.url is set.
    let temporary = match config.provider() == Some(ProviderKind::Memory) && !is_state_url_set(&config) {
        true => Some(temporary_folder()?),
        false => None,
    };
    if let Some(folder) = &temporary {
        let url = format!("sqlite:{}", utf_8(&folder.path().join("state.db"))?);
        config = Config::load(&sources.flag("--url", STATE_URL, url))?;
    }
    let (serving, files) = match temporary {
        Some(_) => {
            (format!("serving {}, tasks and tokens included; all is lost when this process ends", config.url()), vec![])
        }
        None => (serving(&config)?, new_files(&config)?),
    };
    let options = options(config.server());
    let echo = Echo::start();
    log::start(&echo, global)?;
    let (records, state) = StateStorage::connect(&config).await?;
    let endpoint = config.endpoint()?;
    let context = SystemContext::from_config(config).await?;
    warn_if_readable(&endpoint);
    files.into_iter().for_each(NewFile::announce);
    let open = !Tokens::new(records.clone()).any(Deadline::default()).await?;
    let provider = context.messaging_provider.provider_name();
    let server = Server::bind(context, records, options).await.map_err(failure)?;
    // Before the address is printed: a reader of that line may signal at once.
    let signals = Signals::listen().map_err(|error| Failure::failed(format!("cannot listen to signals: {error}")))?;

    let (url, address) = (server.url(), server.address());
    Output::new(global.json).row(&Row { url: &url, address, provider, open }, format_args!("Postrider is at {url}"))?;
    note(serving);
    if open {
        note(format_args!(
            "there is no token, so every client on this machine may do everything; 'postrider --url {url} token create \
             NAME --role admin' creates one, and from then on every client needs a token"
        ));
    }
    let shutdown = Shutdown::new();
    let ended = tokio::select! {
        ended = server.run(shutdown.clone()) => ended.map_err(failure),
        () = second_signal(signals, shutdown, &echo) => {
            return Err(Failure::failed("stopped at once: the outcome of running requests is unknown"));
        }
    };
    let closed = state.close(Deadline::default()).await.map_err(Failure::from);
    echo.flush().await;
    // Removed only after the state in it is closed.
    drop(temporary);
    ended.and(closed)
}

/// The configuration key of the database of tasks and tokens.
const STATE_URL: &str = "state.url";

fn is_state_url_set(config: &Config) -> bool {
    config.describe().iter().any(|row| row.key == STATE_URL && row.origin != Origin::Default)
}

fn temporary_folder() -> Result<TempDir, Failure> {
    let folder = tempfile::Builder::new().prefix("postrider-serve-").tempdir();
    folder.map_err(|error| Failure::failed(format!("cannot create a temporary folder for tasks and tokens: {error}")))
}

/// Requests a shutdown at the first signal and completes at the second.
async fn second_signal(mut signals: Signals, shutdown: Shutdown, echo: &Echo) {
    signals.next().await;
    echo.note("finishing running work; a second signal ends it at once");
    shutdown.request();
    signals.next().await;
}

/// Describes the served store and where its tasks and tokens are.
fn serving(config: &Config) -> Result<String, Failure> {
    Ok(match config.keeps_state_with_messages() {
        true => format!("serving {}, tasks and tokens included", config.url()),
        false => format!("serving {}; tasks and tokens are in {}", config.url(), config.state_url()?),
    })
}

/// The files that connecting may create: of the messages, and of tasks and tokens if that is another.
fn new_files(config: &Config) -> Result<Vec<NewFile>, Failure> {
    let mut files = vec![NewFile::of(config)];
    if !config.keeps_state_with_messages() {
        files.push(NewFile::at(config.state_url()?));
    }
    Ok(files)
}

impl Serve {
    /// Adds the options of the command line to the configuration's sources.
    fn add_to(&self, sources: Sources) -> Result<Sources, Failure> {
        let listen = self.listen.clone().map(|listen| ("--listen", "server.listen", listen));
        let certificate = self.tls_certificate.as_deref().map(utf_8).transpose()?;
        let key = self.tls_key.as_deref().map(utf_8).transpose()?;
        let certificate = certificate.map(|file| ("--tls-certificate", "server.tls_certificate", file));
        let key = key.map(|file| ("--tls-key", "server.tls_key", file));
        let given = [listen, certificate, key].into_iter().flatten();
        Ok(given.fold(sources, |sources, (flag, key, value)| sources.flag(flag, key, value)))
    }
}

fn utf_8(path: &Path) -> Result<String, Failure> {
    let why = || Failure::usage(format!("the name of '{}' is not UTF-8; rename the file", path.display()));
    path.to_str().map(str::to_owned).ok_or_else(why)
}

fn failure(error: ServeError) -> Failure {
    match error {
        ServeError::Config(error) => error.into(),
        ServeError::Messaging(error) => error.into(),
        ServeError::Context(error) => error.into(),
        ServeError::Listen { address, source } if source.kind() == std::io::ErrorKind::AddrInUse => {
            Failure::failed(format!(
                "{address} is in use, perhaps by another server; stop that one, or choose another address with --listen, \
                 like {} or {} for any free port",
                SocketAddr::new(address.ip(), address.port().wrapping_add(1)),
                SocketAddr::new(address.ip(), 0),
            ))
        }
        other => Failure::failed(other.to_string()),
    }
}
