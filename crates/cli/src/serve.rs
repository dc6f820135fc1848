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
use crate::session::{NewFile, warn_of_readers};
use crate::signals::Signals;
use options::options;

/// Put a store on the network: an HTTP API, a dashboard, metrics, and the chores of tasks
///
/// Workers in any language send, receive and settle by HTTP; this program does, too, with --url http://host:port. The
/// dashboard is at the address that is printed, the API's reference below /reference there.
///
/// Without tokens everybody may do everything, so only this machine can reach it; 'postrider token create' makes one.
/// Tokens, tasks and schedules are kept where state.url says; with --url memory: and no state.url they end with the server.
/// How the server runs is in [server] of the configuration.
///
/// Works until the first Ctrl-C, SIGTERM or SIGHUP, then finishes what runs; a second one ends it at once.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Serve {
    /// Where to listen, like 127.0.0.1:8025; port 0 is any that is free [default: what server.listen says]
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<String>,

    /// The certificate (PEM) of a server with TLS
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_certificate: Option<PathBuf>,

    /// Its key (PEM)
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
    let sources = command.over(global.sources_for(None)?)?;
    let mut config = Config::load(&sources)?;
    if config.provider() == Some(ProviderKind::Http) {
        let url = config.url();
        return Err(Failure::usage(format!("{url} is a server already; name the store that this one shall serve")));
    }
    // What is served ends with this process, and so does what is kept beside it, unless its place is named.
    let temporary = match config.provider() == Some(ProviderKind::Memory) && !names_state(&config) {
        true => Some(temporary_folder()?),
        false => None,
    };
    if let Some(folder) = &temporary {
        let url = format!("sqlite:{}", utf_8(&folder.path().join("state.db"))?);
        config = Config::load(&sources.flag("--url", STATE_URL, url))?;
    }
    let (kept, files) = match temporary {
        Some(_) => (
            format!("serving {}, tasks and tokens included: all of it ends with this process", config.url()),
            Vec::new(),
        ),
        None => (kept(&config)?, new_files(&config)?),
    };
    let options = options(config.server());
    let echo = Echo::start();
    log::start(&echo, global)?;
    let (records, kept_in) = StateStorage::connect(&config).await?;
    let endpoint = config.endpoint()?;
    let context = SystemContext::from_config(config).await?;
    warn_of_readers(&endpoint);
    files.into_iter().for_each(NewFile::tell);
    let open = !Tokens::new(records.clone()).any(Deadline::default()).await?;
    let provider = context.messaging_provider.provider_name();
    let server = Server::bind(context, records, options).await.map_err(failure)?;
    // Before anybody is told that it is there: whoever knows may want it to end.
    let signals = Signals::listen().map_err(|error| Failure::failed(format!("cannot listen to signals: {error}")))?;

    let (url, address) = (server.url(), server.address());
    Output::new(global.json).row(&Row { url: &url, address, provider, open }, format_args!("Postrider is at {url}"))?;
    note(kept);
    if open {
        note(format_args!(
            "everybody on this machine may do everything; 'postrider --url {url} token create NAME --role admin' makes \
             a token, and from then on everybody needs one"
        ));
    }
    let shutdown = Shutdown::new();
    let ended = tokio::select! {
        ended = server.run(shutdown.clone()) => ended.map_err(failure),
        () = until_told_twice(signals, shutdown, &echo) => {
            return Err(Failure::failed("ended at once: requests that were running may or may not have been carried out"));
        }
    };
    let closed = kept_in.close(Deadline::default()).await.map_err(Failure::from);
    echo.flush().await;
    // Removed with everything in it, now that nobody has it open.
    drop(temporary);
    ended.and(closed)
}

/// The key of the place of tasks and tokens.
const STATE_URL: &str = "state.url";

/// Whether somebody has said where tasks and tokens are kept.
fn names_state(config: &Config) -> bool {
    config.describe().iter().any(|row| row.key == STATE_URL && row.origin != Origin::Default)
}

fn temporary_folder() -> Result<TempDir, Failure> {
    let made = tempfile::Builder::new().prefix("postrider-serve-").tempdir();
    made.map_err(|error| Failure::failed(format!("cannot make a temporary folder for tasks and tokens: {error}")))
}

/// Asks the server to stop at the first signal, and completes at the second.
async fn until_told_twice(mut signals: Signals, shutdown: Shutdown, echo: &Echo) {
    signals.next().await;
    echo.note("finishing what runs; once more to end it at once");
    shutdown.request();
    signals.next().await;
}

/// What is served, and where everything is kept that is no message.
fn kept(config: &Config) -> Result<String, Failure> {
    Ok(match config.keeps_state_with_messages() {
        true => format!("serving {}, tasks and tokens included", config.url()),
        false => format!("serving {}; tasks and tokens are in {}", config.url(), config.state_url()?),
    })
}

/// Files that may be made: of the messages, and of the rest where that is another.
fn new_files(config: &Config) -> Result<Vec<NewFile>, Failure> {
    let mut files = vec![NewFile::of(config)];
    if !config.keeps_state_with_messages() {
        files.push(NewFile::at(config.state_url()?));
    }
    Ok(files)
}

impl Serve {
    /// Its options, over everything else that says something.
    fn over(&self, sources: Sources) -> Result<Sources, Failure> {
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
                "{address} is taken, perhaps by another server; choose another address with --listen, like {} or \
                 {} for any port that is free, or end what uses it",
                SocketAddr::new(address.ip(), address.port().wrapping_add(1)),
                SocketAddr::new(address.ip(), 0),
            ))
        }
        other => Failure::failed(other.to_string()),
    }
}
