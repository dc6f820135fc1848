//! Which store is meant.
//!
//! Three keys can say it: `provider`, `url`, and the address in the provider's own section. The highest source that
//! says something decides; what a lower source says is overruled, as for every other key. In one and the same source
//! they must mean the same.

use std::path::Path;

use super::choice::{Choice, Named};
use super::draft::Draft;
use super::error::{Problem, Setting};
use super::keys;
use super::origin::Origin;
use super::server::LISTEN;
use super::sources::Sources;
use super::store_settings::ProviderKind;
use super::store_url::StoreUrl;
use crate::endpoint::FORMS;

/// RabbitMQ on this machine, as it is installed.
const LOCAL_RABBITMQ: &str = "amqp://guest:guest@localhost:5672/";

/// The store that was chosen, and who said so.
#[derive(Debug, Clone)]
pub(super) struct Store {
    /// `None` when the URL's scheme belongs to none that can be named.
    pub(super) kind: Option<ProviderKind>,
    pub(super) kind_origin: Origin,
    pub(super) url: StoreUrl,
    pub(super) url_origin: Origin,
}

impl ProviderKind {
    /// What its URLs begin with.
    fn schemes(self) -> &'static [&'static str] {
        match self {
            Self::Memory => &["memory"],
            Self::Sqlite => &["sqlite"],
            Self::Spool => &["spool"],
            Self::Postgres => &["postgres", "postgresql"],
            Self::Mysql => &["mysql", "mariadb"],
            Self::Pgmq => &["pgmq+postgres", "pgmq+postgresql"],
            Self::RabbitMq => &["amqp", "amqps"],
            Self::Sqs => &["sqs", "sqs+http", "sqs+https"],
            Self::Http => &["http", "https"],
        }
    }

    pub(super) fn of(url: &StoreUrl) -> Option<Self> {
        Self::of_scheme(url.scheme()?)
    }

    /// The kind whose URLs begin so.
    pub(crate) fn of_scheme(scheme: &str) -> Option<Self> {
        Self::NAMES.iter().map(|(_, kind)| *kind).find(|kind| kind.schemes().contains(&scheme))
    }

    /// The kind whose own section this is, or that the key stands in.
    pub(super) fn of_section(name: &str) -> Option<Self> {
        let section = name.strip_prefix("common.messaging.")?;
        let section = section.split('.').next()?;
        Self::NAMES.iter().find(|(name, _)| *name == section).map(|(_, kind)| *kind)
    }

    /// Whether this program can keep messages there.
    pub(super) fn can_be_used(self) -> bool {
        let leads_there = |form: &&str| self.schemes().iter().any(|scheme| form.split(':').next() == Some(*scheme));
        FORMS.iter().any(leads_there)
    }

    /// What is said of it where it cannot be used. The feature that adds it has its name.
    pub(crate) fn what_it_lacks(self) -> String {
        let name = self.name().unwrap_or_default();
        format!(
            "needs a provider that this build of postrider lacks; enable the feature '{name}' of the crate postrider"
        )
    }

    /// Whether it can hold what is no message: tasks and schedules.
    pub(crate) fn keeps_state(self) -> bool {
        match self {
            Self::Sqlite | Self::Postgres | Self::Http => true,
            Self::Memory | Self::Mysql | Self::Pgmq | Self::Spool | Self::RabbitMq | Self::Sqs => false,
        }
    }
}

/// Chooses the store that messages are kept in.
pub(super) fn choose(draft: &Draft, sources: &Sources) -> Result<Store, Problem> {
    let (kind, kind_origin) = choose_kind(draft)?;
    let by_url = draft.asked.url.clone().filter(|url| ProviderKind::of(url) == kind).zip(draft.given(keys::URL));
    let by_address = kind.map(|kind| address(kind, draft)).transpose()?.flatten();
    let (url, url_origin) = match (by_url, by_address) {
        (Some((url, said)), Some((address, said_too))) => {
            let (of_url, of_address) = (said.origin.layer(), said_too.origin.layer());
            if of_url == of_address && url != address {
                let why = "both name the store; leave one out";
                return Err(Problem::conflict(said.clone(), said_too.clone(), why));
            }
            if of_url >= of_address { (url, said.origin.clone()) } else { (address, said_too.origin.clone()) }
        }
        (Some((url, said)), None) | (None, Some((url, said))) => (url, said.origin.clone()),
        (None, None) => (default_url(kind, draft, sources)?, Origin::Default),
    };
    Ok(Store { kind, kind_origin, url, url_origin })
}

/// The kind that the highest source names: by `provider`, by its URL's scheme, or by an address in one section.
///
/// Sections for several stores may stand side by side, and `provider` or `url` says which is used; where neither does, there
/// must be one.
fn choose_kind(draft: &Draft) -> Result<(Option<ProviderKind>, Origin), Problem> {
    let (kind, origin) = kind_by_name(draft)?;
    let mut highest: Option<(ProviderKind, &Setting)> = None;
    for (_, section) in ProviderKind::NAMES {
        let Some((_, said)) = address(*section, draft)? else { continue };
        match highest {
            Some((_, other)) if other.origin.layer() > said.origin.layer() => {}
            Some((_, other)) if other.origin.layer() == said.origin.layer() && origin.layer() < said.origin.layer() => {
                let why = "say which of them is used with common.messaging.provider";
                return Err(Problem::conflict(other.clone(), said.clone(), why));
            }
            _ => highest = Some((*section, said)),
        }
    }
    match highest {
        Some((section, said)) if Some(section) != kind && said.origin.layer() > origin.layer() => {
            Ok((Some(section), said.origin.clone()))
        }
        _ => Ok((kind, origin)),
    }
}

fn kind_by_name(draft: &Draft) -> Result<(Option<ProviderKind>, Origin), Problem> {
    let by_provider = draft.asked.provider.zip(draft.given(keys::PROVIDER));
    let by_url = draft.asked.url.as_ref().map(ProviderKind::of).zip(draft.given(keys::URL));
    match (by_provider, by_url) {
        (None, None) => Ok((Some(ProviderKind::Sqlite), Origin::Default)),
        (Some((kind, said)), None) => Ok((Some(kind), said.origin.clone())),
        (None, Some((kind, said))) => Ok((kind, said.origin.clone())),
        (Some((kind, said)), Some((url_kind, said_too))) => {
            let (of_provider, of_url) = (said.origin.layer(), said_too.origin.layer());
            if of_provider == of_url && Some(kind) != url_kind {
                return Err(disagreement(kind, said, said_too));
            }
            let provider_decides = of_provider >= of_url;
            Ok(if provider_decides { (Some(kind), said.origin.clone()) } else { (url_kind, said_too.origin.clone()) })
        }
    }
}

fn disagreement(kind: ProviderKind, provider: &Setting, url: &Setting) -> Problem {
    let forms: Vec<_> = kind.schemes().iter().map(|scheme| format!("{scheme}:")).collect();
    let why = format!("leave one out, or use a URL that begins with {}", forms.join(" or "));
    Problem::conflict(provider.clone(), url.clone(), why)
}

/// The address in the provider's own section, when somebody wrote one.
fn address(kind: ProviderKind, draft: &Draft) -> Result<Option<(StoreUrl, &Setting)>, Problem> {
    let asked = &draft.asked;
    let (url, key) = match kind {
        ProviderKind::Sqlite => {
            (asked.sqlite_path.as_deref().map(|path| sqlite_url(path, draft)).transpose()?, keys::SQLITE_PATH)
        }
        ProviderKind::Spool => {
            (asked.spool_path.as_deref().map(|path| spool_url(path, draft)).transpose()?, keys::SPOOL_PATH)
        }
        ProviderKind::Postgres => (asked.postgres_url.clone(), keys::POSTGRES_URL),
        ProviderKind::Mysql => (asked.mysql_url.clone(), keys::MYSQL_URL),
        ProviderKind::Pgmq => (asked.pgmq_url.clone(), keys::PGMQ_URL),
        ProviderKind::RabbitMq => (asked.rabbitmq_url.clone(), keys::RABBITMQ_URL),
        ProviderKind::Sqs => (asked.sqs_url.clone(), keys::SQS_URL),
        ProviderKind::Http => (asked.http_url.clone(), keys::HTTP_URL),
        ProviderKind::Memory => return Ok(None),
    };
    let said = url.zip(draft.given(key));
    match &said {
        Some((url, _)) if ProviderKind::of(url) != Some(kind) => {
            let forms: Vec<_> = kind.schemes().iter().map(|scheme| format!("{scheme}:")).collect();
            Err(draft.refuse(key, format!("it does not begin with {}", forms.join(" or "))))
        }
        _ => Ok(said),
    }
}

fn default_url(kind: Option<ProviderKind>, draft: &Draft, sources: &Sources) -> Result<StoreUrl, Problem> {
    match kind {
        Some(ProviderKind::Memory) => Ok(StoreUrl::new("memory:")),
        Some(ProviderKind::Sqlite) | None => embedded_url(keys::URL, draft, sources),
        Some(ProviderKind::Spool) => {
            let why =
                "there is no home folder to keep it in; name the folder in common.messaging.spool.path, or in url";
            spool_url(&sources.spool_folder().ok_or_else(|| draft.refuse(keys::PROVIDER, why))?, draft)
        }
        Some(ProviderKind::RabbitMq) => Ok(StoreUrl::new(LOCAL_RABBITMQ)),
        Some(ProviderKind::Http) => Ok(StoreUrl::new(format!("http://{LISTEN}"))),
        Some(ProviderKind::Postgres) => {
            Err(draft.refuse(keys::PROVIDER, "name the server in common.messaging.postgres.url, or in url"))
        }
        Some(ProviderKind::Mysql) => {
            Err(draft.refuse(keys::PROVIDER, "name the server in common.messaging.mysql.url, or in url"))
        }
        Some(ProviderKind::Pgmq) => {
            Err(draft.refuse(keys::PROVIDER, "name the server in common.messaging.pgmq.url, or in url"))
        }
        Some(ProviderKind::Sqs) => {
            Err(draft.refuse(keys::PROVIDER, "name the region in common.messaging.sqs.url, or in url"))
        }
    }
}

/// The virtual host that a broker's URL names is the one that is used; a key in the same source, or in one above it, must
/// name the same.
pub(super) fn choose_vhost(draft: &mut Draft, store: &Store) -> Result<(), Problem> {
    let named = (store.kind == Some(ProviderKind::RabbitMq)).then(|| store.url.path()).flatten();
    let Some(named) = named else { return Ok(()) };
    let by_key = draft.given(keys::RABBITMQ_VHOST).cloned();
    if let Some(by_key) = by_key.filter(|by_key| by_key.origin.layer() >= store.url_origin.layer())
        && draft.common.messaging.rabbitmq.vhost.as_ref() != Some(&named)
    {
        let url = Setting { key: keys::URL.into(), value: store.url.to_string(), origin: store.url_origin.clone() };
        let why = format!("the URL names the virtual host '{}'; leave one out", named.escape_debug());
        return Err(Problem::conflict(url, by_key, why));
    }
    draft.common.messaging.rabbitmq.vhost = Some(named);
    draft.take_from(keys::RABBITMQ_VHOST, &store.url_origin);
    Ok(())
}

/// What is said of a provider that the configuration knows and this build does not have.
pub(super) fn cannot_be_used(kind: ProviderKind) -> String {
    let usable = ProviderKind::NAMES.iter().filter(|(_, kind)| kind.can_be_used()).map(|(name, _)| *name);
    format!("it {}, or use {}", kind.what_it_lacks(), usable.collect::<Vec<_>>().join(" or "))
}

/// The embedded file that is used when `key` has no value.
fn embedded_url(key: &'static str, draft: &Draft, sources: &Sources) -> Result<StoreUrl, Problem> {
    sqlite_url(&sources.embedded_file().ok_or(Problem::NoDataFolder { key })?, draft)
}

fn sqlite_url(path: &Path, draft: &Draft) -> Result<StoreUrl, Problem> {
    match path.to_str() {
        Some(path) => Ok(StoreUrl::new(format!("sqlite:{path}"))),
        None => Err(draft.refuse(keys::SQLITE_PATH, "the path of the embedded file is not UTF-8; name another")),
    }
}

fn spool_url(path: &Path, draft: &Draft) -> Result<StoreUrl, Problem> {
    match path.to_str() {
        Some(path) => Ok(StoreUrl::new(format!("spool:{path}"))),
        None => Err(draft.refuse(keys::SPOOL_PATH, "the path of the folder is not UTF-8; name another")),
    }
}

/// Chooses the store of everything that is no message: the queue's own database when it is one, else an embedded file.
pub(super) fn choose_state(draft: &Draft, store: &Store, sources: &Sources) -> Result<StoreUrl, Problem> {
    match &draft.asked.state_url {
        Some(url) => Ok(url.clone()),
        None if store.kind.is_some_and(ProviderKind::keeps_state) => Ok(store.url.clone()),
        // The same database, beside its queues of PGMQ.
        None if store.kind == Some(ProviderKind::Pgmq) => {
            Ok(StoreUrl::new(store.url.as_str().strip_prefix("pgmq+").unwrap_or(store.url.as_str())))
        }
        None => embedded_url(keys::STATE_URL, draft, sources),
    }
}

impl Store {
    pub(super) fn kind_name(&self) -> Option<&'static str> {
        self.kind.as_ref().and_then(Choice::name)
    }
}
