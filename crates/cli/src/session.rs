//! The configuration, the connection to its store, and the output of a command.

use std::path::PathBuf;

use postrider::config::{ProviderKind, StoreUrl};
use postrider::{Config, Deadline, Endpoint, Finding, MessagingProvider, MessagingService, Severity, Sources};

use crate::args::Global;
use crate::failure::Failure;
use crate::log;
use crate::output::{Output, note};
use crate::text;

/// The configuration key that `--url` sets.
const URL_KEY: &str = "common.messaging.url";

/// A connection to the store, for one command.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) config: Config,
    pub(crate) provider: MessagingProvider,
    pub(crate) out: Output,
}

impl Global {
    /// Loads the configuration. `store`, an argument of the command, overrides everything else.
    pub(crate) fn config_for(&self, store: Option<&str>) -> Result<Config, Failure> {
        Ok(Config::load(&self.sources_for(store)?)?)
    }

    /// The sources of [`Self::config_for`], for a command that adds its own flags.
    pub(crate) fn sources_for(&self, store: Option<&str>) -> Result<Sources, Failure> {
        let mut sources = Sources::of_this_process();
        if let Some(file) = &self.config {
            sources = sources.file(file);
        }
        let flag = match (store, &self.url) {
            (Some(argument), Some(flag)) if argument != flag => {
                let (argument, flag) = (without_password(argument), without_password(flag));
                return Err(Failure::usage(format!(
                    "two stores are given, '{argument}' and --url '{flag}'; pass only one"
                )));
            }
            (Some(argument), _) => Some(("URL", argument)),
            (None, Some(url)) => Some(("--url", url.as_str())),
            (None, None) => None,
        };
        if let Some((flag, url)) = flag {
            sources = sources.flag(flag, URL_KEY, url);
        }
        Ok(sources)
    }

    /// Loads the configuration and refuses a store in memory, which ends with this process.
    pub(crate) fn lasting_config_for(&self, store: Option<&str>) -> Result<Config, Failure> {
        let config = self.config_for(store)?;
        if config.provider() == Some(ProviderKind::Memory) {
            return Err(ends_with_this_process());
        }
        Ok(config)
    }

    /// Connects to the store; refuses one in memory.
    pub(crate) async fn connect(&self) -> Result<Session, Failure> {
        let config = self.lasting_config_for(None)?;
        let endpoint = config.endpoint()?;
        let file = NewFile::of(&config);
        let provider = endpoint.connect().await?;
        file.announce();
        warn_if_readable(&endpoint);
        Ok(Session { config, provider, out: Output::new(self.json) })
    }
}

/// Warns in the log, if there is one, that other users can read the file. In short commands only `doctor` reports it.
pub(crate) fn warn_if_readable(endpoint: &Endpoint) {
    if let Some(Finding { severity: Severity::Warning, found, fix: Some(fix), .. }) = endpoint.access() {
        tracing::warn!(target: log::PROGRAM, "the embedded file: {found}; {fix}");
    }
}

/// The refusal of a store in memory.
pub(crate) fn ends_with_this_process() -> Failure {
    Failure::usage(
        "'memory:' ends with this process, so another command would find nothing in it; use a file, for example --url \
         sqlite:/tmp/try.db",
    )
}

/// The URL for display.
fn without_password(url: &str) -> String {
    match Config::load(&Sources::none().flag("--url", URL_KEY, url)) {
        Ok(config) => config.url().to_string().escape_debug().to_string(),
        // An invalid URL may have a password anywhere.
        Err(_) => url.split_once(':').map_or("…".into(), |(scheme, _)| format!("{}:…", scheme.escape_debug())),
    }
}

/// The path of a store that does not exist yet. Its creation is announced, because the path may be mistyped.
#[derive(Debug)]
pub(crate) struct NewFile(Option<PathBuf>);

impl NewFile {
    /// Checks the configured store; call it before connecting.
    pub(crate) fn of(config: &Config) -> Self {
        Self::at(config.url())
    }

    /// Checks the store at `url`.
    pub(crate) fn at(url: &StoreUrl) -> Self {
        let url = url.as_str();
        let path = url.strip_prefix("sqlite:").or_else(|| url.strip_prefix("spool:")).map(PathBuf::from);
        Self(path.filter(|path| matches!(path.try_exists(), Ok(false))))
    }

    /// Notes that the path was created since.
    pub(crate) fn announce(self) {
        if let Some(file) = self.0.filter(|file| file.exists()) {
            let file = std::path::absolute(&file).unwrap_or(file);
            note(format_args!("created {}", text::one_line(&file.display().to_string())));
        }
    }
}

impl Session {
    /// Closes the connection. A failure does not undo what the command did.
    pub(crate) async fn close(self) -> Result<(), Failure> {
        Ok(self.provider.close(Deadline::default()).await?)
    }
}
