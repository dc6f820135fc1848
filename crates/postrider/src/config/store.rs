//! The choice of the store.
//!
//! Three keys can name it: `provider`, `url`, and the address in the provider's own section. The highest source that has
//! one of them decides over lower sources, as for every other key. Within one source they must agree.

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

/// A default installation of RabbitMQ on this machine.
const LOCAL_RABBITMQ: &str = "amqp://guest:guest@localhost:5672/";

/// The chosen store, and the origin of the choice.
#[derive(Debug, Clone)]
pub(super) struct Store {
    /// `None` when the URL's scheme belongs to no provider.
    pub(super) kind: Option<ProviderKind>,
    pub(super) kind_origin: Origin,
    pub(super) url: StoreUrl,
    pub(super) url_origin: Origin,
}

impl ProviderKind {
    /// The schemes of its URLs.
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

    /// The kind with that scheme.
    pub(crate) fn of_scheme(scheme: &str) -> Option<Self> {
        Self::NAMES.iter().map(|(_, kind)| *kind).find(|kind| kind.schemes().contains(&scheme))
    }

    /// The kind of a section, or of a key in it.
    pub(super) fn of_section(name: &str) -> Option<Self> {
        let section = name.strip_prefix("common.messaging.")?;
        let section = section.split('.').next()?;
        Self::NAMES.iter().find(|(name, _)| *name == section).map(|(_, kind)| *kind)
    }

    /// Whether this build has the provider.
    pub(super) fn can_be_used(self) -> bool {
        let leads_there = |form: &&str| self.schemes().iter().any(|scheme| form.split(':').next() == Some(*scheme));
        FORMS.iter().any(leads_there)
    }

    /// Error text for a build without the provider.
    pub(crate) fn missing_feature(self) -> String {
        let name = self.name().unwrap_or_default();
        format!(
            "needs a provider that this build of postrider lacks; enable the feature '{name}' of the crate postrider"
        )
    }

    /// Whether it can keep tasks and schedules.
    pub(crate) fn keeps_state(self) -> bool {
        match self {
            Self::Sqlite | Self::Postgres | Self::Http => true,
            Self::Memory | Self::Mysql | Self::Pgmq | Self::Spool | Self::RabbitMq | Self::Sqs => false,
        }
    }
}

/// Chooses the store of messages.
pub(super) fn choose(draft: &Draft, sources: &Sources) -> Result<Store, Problem> {
    let (kind, kind_origin) = choose_kind(draft)?;
    let by_url = draft.store.url.clone().filter(|url| ProviderKind::of(url) == kind).zip(draft.given(keys::URL));
    let by_address = kind.map(|kind| address(kind, draft)).transpose()?.flatten();
    let (url, url_origin) = match (by_url, by_address) {
        (Some((url, setting)), Some((address, other_setting))) => {
            let (of_url, of_address) = (setting.origin.layer(), other_setting.origin.layer());
            if of_url == of_address && url != address {
                let why = "both name the store; leave one out";
                return Err(Problem::conflict(setting.clone(), other_setting.clone(), why));
            }
            if of_url >= of_address { (url, setting.origin.clone()) } else { (address, other_setting.origin.clone()) }
        }
        (Some((url, setting)), None) | (None, Some((url, setting))) => (url, setting.origin.clone()),
        (None, None) => (default_url(kind, draft, sources)?, Origin::Default),
    };
    Ok(Store { kind, kind_origin, url, url_origin })
}

/// The kind that the highest source names: by `provider`, by the scheme of `url`, or by an address in one section.
///
/// There may be sections for several stores if `provider` or `url` says which is used; without these there must be only
/// one.
fn choose_kind(draft: &Draft) -> Result<(Option<ProviderKind>, Origin), Problem> {
    let (kind, origin) = kind_by_name(draft)?;
    let mut highest: Option<(ProviderKind, &Setting)> = None;
    for (_, section) in ProviderKind::NAMES {
        let Some((_, setting)) = address(*section, draft)? else { continue };
        match highest {
            Some((_, other)) if other.origin.layer() > setting.origin.layer() => {}
            Some((_, other))
                if other.origin.layer() == setting.origin.layer() && origin.layer() < setting.origin.layer() =>
            {
                let why = "say which of them is used with common.messaging.provider";
                return Err(Problem::conflict(other.clone(), setting.clone(), why));
            }
            _ => highest = Some((*section, setting)),
        }
    }
    match highest {
        Some((section, setting)) if Some(section) != kind && setting.origin.layer() > origin.layer() => {
            Ok((Some(section), setting.origin.clone()))
        }
        _ => Ok((kind, origin)),
    }
}

fn kind_by_name(draft: &Draft) -> Result<(Option<ProviderKind>, Origin), Problem> {
    let by_provider = draft.store.provider.zip(draft.given(keys::PROVIDER));
    let by_url = draft.store.url.as_ref().map(ProviderKind::of).zip(draft.given(keys::URL));
    match (by_provider, by_url) {
        (None, None) => Ok((Some(ProviderKind::Sqlite), Origin::Default)),
        (Some((kind, setting)), None) => Ok((Some(kind), setting.origin.clone())),
        (None, Some((kind, setting))) => Ok((kind, setting.origin.clone())),
        (Some((kind, setting)), Some((url_kind, other_setting))) => {
            let (of_provider, of_url) = (setting.origin.layer(), other_setting.origin.layer());
            if of_provider == of_url && Some(kind) != url_kind {
                return Err(disagreement(kind, setting, other_setting));
            }
            let provider_decides = of_provider >= of_url;
            Ok(if provider_decides {
                (Some(kind), setting.origin.clone())
            } else {
                (url_kind, other_setting.origin.clone())
            })
        }
    }
}

fn disagreement(kind: ProviderKind, provider: &Setting, url: &Setting) -> Problem {
    let forms: Vec<_> = kind.schemes().iter().map(|scheme| format!("{scheme}:")).collect();
    let why = format!("leave one out, or use a URL that begins with {}", forms.join(" or "));
    Problem::conflict(provider.clone(), url.clone(), why)
}

/// The address in the provider's own section, if any.
fn address(kind: ProviderKind, draft: &Draft) -> Result<Option<(StoreUrl, &Setting)>, Problem> {
    let store = &draft.store;
    let (url, key) = match kind {
        ProviderKind::Sqlite => {
            (store.sqlite_path.as_deref().map(|path| sqlite_url(path, draft)).transpose()?, keys::SQLITE_PATH)
        }
        ProviderKind::Spool => {
            (store.spool_path.as_deref().map(|path| spool_url(path, draft)).transpose()?, keys::SPOOL_PATH)
        }
        ProviderKind::Postgres => (store.postgres_url.clone(), keys::POSTGRES_URL),
        ProviderKind::Mysql => (store.mysql_url.clone(), keys::MYSQL_URL),
        ProviderKind::Pgmq => (store.pgmq_url.clone(), keys::PGMQ_URL),
        ProviderKind::RabbitMq => (store.rabbitmq_url.clone(), keys::RABBITMQ_URL),
        ProviderKind::Sqs => (store.sqs_url.clone(), keys::SQS_URL),
        ProviderKind::Http => (store.http_url.clone(), keys::HTTP_URL),
        ProviderKind::Memory => return Ok(None),
    };
    let setting = url.zip(draft.given(key));
    match &setting {
        Some((url, _)) if ProviderKind::of(url) != Some(kind) => {
            let forms: Vec<_> = kind.schemes().iter().map(|scheme| format!("{scheme}:")).collect();
            Err(draft.refuse(key, format!("it does not begin with {}", forms.join(" or "))))
        }
        _ => Ok(setting),
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

/// Takes the virtual host from the broker's URL if it names one; a key in the same or a higher source must name the same.
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
    draft.set_origin(keys::RABBITMQ_VHOST, &store.url_origin);
    Ok(())
}

/// Error text for a known provider that this build lacks.
pub(super) fn cannot_be_used(kind: ProviderKind) -> String {
    let usable = ProviderKind::NAMES.iter().filter(|(_, kind)| kind.can_be_used()).map(|(name, _)| *name);
    format!("it {}, or use {}", kind.missing_feature(), usable.collect::<Vec<_>>().join(" or "))
}

/// The URL of the embedded file, the default of `key`.
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

/// Chooses the store of tasks, schedules and records: the message store if it is a database, else an embedded file.
pub(super) fn choose_state(draft: &Draft, store: &Store, sources: &Sources) -> Result<StoreUrl, Problem> {
    match &draft.store.state_url {
        Some(url) => Ok(url.clone()),
        None if store.kind.is_some_and(ProviderKind::keeps_state) => Ok(store.url.clone()),
        // The database of the PGMQ queues.
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
