//! What a command works with: the configuration, the store that it names, the output.

use std::path::PathBuf;

use postrider::config::{ProviderKind, StoreUrl};
use postrider::{Config, Deadline, Endpoint, Finding, MessagingProvider, MessagingService, Severity, Sources};

use crate::args::Global;
use crate::failure::Failure;
use crate::log;
use crate::output::{Output, note};
use crate::text;

/// The key that `--url` stands for.
const URL_KEY: &str = "common.messaging.url";

/// A connection to the store, for the length of a command.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) config: Config,
    pub(crate) provider: MessagingProvider,
    pub(crate) out: Output,
}

impl Global {
    /// The configuration, with `store` (a command's own argument) over everything else.
    pub(crate) fn config_for(&self, store: Option<&str>) -> Result<Config, Failure> {
        Ok(Config::load(&self.sources_for(store)?)?)
    }

    /// What [`Self::config_for`] reads, for a command that has flags of its own for some keys.
    pub(crate) fn sources_for(&self, store: Option<&str>) -> Result<Sources, Failure> {
        let mut sources = Sources::of_this_process();
        if let Some(file) = &self.config {
            sources = sources.file(file);
        }
        let flag = match (store, &self.url) {
            (Some(argument), Some(flag)) if argument != flag => {
                let (argument, flag) = (without_password(argument), without_password(flag));
                return Err(Failure::usage(format!("two stores are named, '{argument}' and --url '{flag}'; name one")));
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

    /// The same, for a command that makes no sense on a store that ends with this process.
    pub(crate) fn lasting_config_for(&self, store: Option<&str>) -> Result<Config, Failure> {
        let config = self.config_for(store)?;
        if config.provider() == Some(ProviderKind::Memory) {
            return Err(ends_with_this_process());
        }
        Ok(config)
    }

    /// Connects to a store that outlives this process.
    pub(crate) async fn connect(&self) -> Result<Session, Failure> {
        let config = self.lasting_config_for(None)?;
        let endpoint = config.endpoint()?;
        let file = NewFile::of(&config);
        let provider = endpoint.connect().await?;
        file.tell();
        warn_of_readers(&endpoint);
        Ok(Session { config, provider, out: Output::new(self.json) })
    }
}

/// Says in the log, where there is one, that others may read the file. Commands that end at once leave that to `doctor`.
pub(crate) fn warn_of_readers(endpoint: &Endpoint) {
    if let Some(Finding { severity: Severity::Warning, found, fix: Some(fix), .. }) = endpoint.access() {
        tracing::warn!(target: log::PROGRAM, "the embedded file: {found}; {fix}");
    }
}

/// Why a store in memory is refused.
pub(crate) fn ends_with_this_process() -> Failure {
    Failure::usage(
        "'memory:' ends with this process, so no other command would find anything in it; \
         use a file, for instance --url sqlite:/tmp/try.db",
    )
}

/// The URL as it may be shown.
fn without_password(url: &str) -> String {
    match Config::load(&Sources::none().flag("--url", URL_KEY, url)) {
        Ok(config) => config.url().to_string().escape_debug().to_string(),
        // Nobody knows where a password would be in what is no URL of a store.
        Err(_) => url.split_once(':').map_or("…".into(), |(scheme, _)| format!("{}:…", scheme.escape_debug())),
    }
}

/// The file or folder of a store that is not there yet. Whoever wrote its name wrongly shall see that it was made.
#[derive(Debug)]
pub(crate) struct NewFile(Option<PathBuf>);

impl NewFile {
    /// Looks before the store is connected to.
    pub(crate) fn of(config: &Config) -> Self {
        Self::at(config.url())
    }

    /// The same, of any store.
    pub(crate) fn at(url: &StoreUrl) -> Self {
        let url = url.as_str();
        let path = url.strip_prefix("sqlite:").or_else(|| url.strip_prefix("spool:")).map(PathBuf::from);
        Self(path.filter(|path| matches!(path.try_exists(), Ok(false))))
    }

    /// Tells what was made since.
    pub(crate) fn tell(self) {
        if let Some(file) = self.0.filter(|file| file.exists()) {
            let file = std::path::absolute(&file).unwrap_or(file);
            note(format_args!("made {}", text::one_line(&file.display().to_string())));
        }
    }
}

impl Session {
    /// Ends the connection. What the command did stands, whatever this answers.
    pub(crate) async fn close(self) -> Result<(), Failure> {
        Ok(self.provider.close(Deadline::default()).await?)
    }
}
