//! The configuration of a system: defaults, a file, the environment, flags.
//!
//! **The idea.** One table has every key with its type, its field and its meaning; the loader, the error texts,
//! [`Config::describe`] and the page `docs/configuration.md` are made from it. Every value keeps its origin, so that an
//! error or a row of `describe` can name the line, the variable or the flag.
//!
//! **The invariant.** A [`Config`] is valid: every value is in its range, the retry strategy and the queues' names are
//! consistent, and one store is named. Input that is not understood is an error, never ignored.
//!
//! **What was rejected.** Reading the file into structs with serde: a wrong value would be reported without its key, an
//! unknown key without a suggestion, in serde's words. A framework that merges untyped trees: it loses the source of a
//! value.

mod choice;
mod describe;
mod draft;
mod environment;
mod error;
mod file;
mod keys;
mod kind;
mod origin;
mod reference;
mod retry;
mod secret;
mod server;
mod settings;
mod sources;
mod store;
mod store_settings;
mod store_url;
mod suggestion;
mod value;

use postrider_core::task::{MAX_TASK_TYPE, Post, TaskRoutes, TaskType};
use postrider_core::{DefaultMessageRouter, MessagingError, QueueName};

use crate::endpoint::Endpoint;
use draft::Draft;

pub use describe::Row;
pub use error::{ConfigError, Problem, Setting};
pub use origin::Origin;
pub use postrider_core::ArchivePolicy;
pub use reference::reference_page;
pub use secret::Secret;
pub use server::ServerConfig;
pub use settings::{CommonConfig, DeadLetterConfig, MessagingConfig, TasksConfig};
pub use sources::Sources;
pub use store_settings::{
    HttpConfig, MysqlConfig, PgmqConfig, PostgresConfig, ProviderKind, RabbitMqConfig, RabbitMqQueueType, SpoolConfig,
    SpoolFiles, SpoolWatch, SqliteConfig, SqsConfig, Synchronous,
};
pub use store_url::StoreUrl;
pub use suggestion::nearest;

/// A configuration that has been read and checked.
#[derive(Debug, Clone)]
pub struct Config {
    common: CommonConfig,
    provider: Option<ProviderKind>,
    url: StoreUrl,
    state_url: Result<StoreUrl, Problem>,
    tasks: TasksConfig,
    server: ServerConfig,
    routes: TaskRoutes,
    router: DefaultMessageRouter,
    rows: Vec<Row>,
}

impl Config {
    /// Reads the sources. The error has all their problems.
    pub fn load(sources: &Sources) -> Result<Self, ConfigError> {
        let mut problems = Vec::new();
        let mut draft = sources.read(&mut problems);
        // Values are checked together only when each is valid by itself, to avoid follow-up errors.
        let (retry_is_read, all_is_read) = (!problems.iter().any(concerns_retry), problems.is_empty());
        let retry = if retry_is_read { retry::strategy(&draft) } else { Err(Vec::new()) };
        let retry = retry.map_err(|found| problems.extend(found)).ok();
        if !all_is_read {
            return Err(ConfigError::new(problems));
        }

        ok_or_report(check_batch_sizes(&draft), &mut problems);
        ok_or_report(server::check_tls(&draft), &mut problems);
        ok_or_report(server::check_memory(&draft), &mut problems);
        let router = ok_or_report(router(&draft), &mut problems);
        let routes = ok_or_report(task_routes(&draft), &mut problems);
        let store = ok_or_report(store::choose(&draft, sources), &mut problems);
        if let Some(store) = &store {
            ok_or_report(store::choose_vhost(&mut draft, store), &mut problems);
        }
        let (Some(retry), Some(router), Some(routes), Some(store), []) = (retry, router, routes, store, &problems[..])
        else {
            return Err(ConfigError::new(problems));
        };

        draft.common.retry = retry;
        let state_url = store::choose_state(&draft, &store, sources);
        let rows = describe::rows(&draft, &store, &state_url);
        let Draft { common, tasks, server, .. } = draft;
        Ok(Self { common, provider: store.kind, url: store.url, state_url, tasks, server, routes, router, rows })
    }

    /// Settings that every part of a system shares.
    pub fn common(&self) -> &CommonConfig {
        &self.common
    }

    /// The kind of the store; `None` when the scheme of its URL belongs to no provider.
    pub fn provider(&self) -> Option<ProviderKind> {
        self.provider
    }

    /// The store of messages.
    pub fn url(&self) -> &StoreUrl {
        &self.url
    }

    /// The store of tasks, schedules and records.
    pub fn state_url(&self) -> Result<&StoreUrl, ConfigError> {
        self.state_url.as_ref().map_err(|problem| problem.clone().into())
    }

    /// How tasks reach their workers, and how long they are kept.
    pub fn tasks(&self) -> &TasksConfig {
        &self.tasks
    }

    /// How a server is run.
    pub fn server(&self) -> &ServerConfig {
        &self.server
    }

    /// [`tasks`](Self::tasks) as a task store takes them; `post` depends on where the store is and is not set here.
    pub fn task_routes(&self) -> &TaskRoutes {
        &self.routes
    }

    /// Whether tasks and messages are in one store.
    pub fn keeps_state_with_messages(&self) -> bool {
        self.provider.is_some_and(ProviderKind::keeps_state)
            && self.state_url.as_ref().is_ok_and(|state| state.is_same_store(&self.url))
    }

    /// The endpoint of the task store.
    pub fn state_endpoint(&self) -> Result<Endpoint, ConfigError> {
        let url = self.state_url()?;
        let row = self.rows.iter().find(|row| row.key == keys::STATE_URL);
        let origin = row.map_or(Origin::Default, |row| row.origin.clone());
        let refuse = |why: String| {
            let (key, value) = (keys::STATE_URL.to_owned(), url.to_string());
            Problem::Refused { key, value, origin: origin.clone(), why }
        };
        let kind = ProviderKind::of(url);
        if kind == Some(ProviderKind::Http) {
            let why = "the tasks of a server go with its messages; name it as common.messaging.url, or use \
                       sqlite:/path/file.db or postgres://user@host/database here";
            return Err(refuse(why.to_owned()).into());
        }
        if !kind.is_some_and(ProviderKind::keeps_state) {
            let why = "tasks, schedules and other records need SQLite or PostgreSQL; use sqlite:/path/file.db or postgres://user@host/database";
            return Err(refuse(why.to_owned()).into());
        }
        match Endpoint::new(url.as_str(), &self.common.messaging) {
            Ok(endpoint) if origin == Origin::Default => Ok(endpoint.in_default_folder()),
            Ok(endpoint) => Ok(endpoint),
            Err(MessagingError::InvalidInput { why, .. }) => Err(refuse(why).into()),
            Err(error) => Err(refuse(error.to_string()).into()),
        }
    }

    /// The router, which names the queues of workflows.
    pub fn router(&self) -> &DefaultMessageRouter {
        &self.router
    }

    /// The endpoint of the message store.
    pub fn endpoint(&self) -> Result<Endpoint, ConfigError> {
        let origin =
            self.rows.iter().find(|row| row.key == keys::URL).map_or(Origin::Default, |row| row.origin.clone());
        match Endpoint::new(self.url.as_str(), &self.common.messaging) {
            Ok(endpoint) if origin == Origin::Default => Ok(endpoint.in_default_folder()),
            Ok(endpoint) => Ok(endpoint),
            Err(_)
                if origin == Origin::Default
                    && let Some(kind) = self.provider
                    && !kind.can_be_used() =>
            {
                // The URL is a default; the user wrote the provider.
                let provider = self.rows.iter().find(|row| row.key == keys::PROVIDER);
                let value = provider.and_then(|row| row.value.clone()).unwrap_or_default();
                let origin = provider.map_or(Origin::Default, |row| row.origin.clone());
                Err(Problem::Refused { key: keys::PROVIDER.into(), value, origin, why: store::cannot_be_used(kind) }
                    .into())
            }
            Err(error) => {
                let why = match error {
                    MessagingError::InvalidInput { why, .. } => why,
                    other => other.to_string(),
                };
                let (key, value) = (keys::URL.to_owned(), self.url.to_string());
                Err(Problem::Refused { key, value, origin, why }.into())
            }
        }
    }

    /// Every key with its effective value and its origin, secrets masked.
    pub fn describe(&self) -> &[Row] {
        &self.rows
    }
}

/// Whether this problem may make the retry strategy invalid.
fn concerns_retry(problem: &Problem) -> bool {
    match problem {
        Problem::Unknown { key, .. } | Problem::Refused { key, .. } => retry::is_field(key),
        Problem::Conflict { first, .. } => retry::is_field(&first.key),
        Problem::Unreadable { .. } | Problem::Syntax { .. } | Problem::NoDataFolder { .. } => true,
    }
}

/// The value; an error is added to the problems.
fn ok_or_report<T>(result: Result<T, Problem>, problems: &mut Vec<Problem>) -> Option<T> {
    result.map_err(|problem| problems.push(problem)).ok()
}

fn check_batch_sizes(draft: &Draft) -> Result<(), Problem> {
    let messaging = &draft.common.messaging;
    if messaging.default_batch_size <= messaging.max_batch_size {
        return Ok(());
    }
    let (first, second) = (draft.setting(keys::DEFAULT_BATCH_SIZE), draft.setting(keys::MAX_BATCH_SIZE));
    Err(Problem::conflict(first, second, "lower the first, or raise the second"))
}

fn router(draft: &Draft) -> Result<DefaultMessageRouter, Problem> {
    const SECTION: &str = "common.queues";
    DefaultMessageRouter::from_config(&draft.common.queues).map_err(|error| match error {
        MessagingError::InvalidInput { what, why } => {
            let names = [format!("{SECTION}.{what}"), format!("{SECTION}.orchestration_queues.{what}")];
            let key = names.into_iter().find(|name| keys::find(name).is_some());
            refuse_queue(draft, &key.unwrap_or_else(|| SECTION.into()), why)
        }
        other => draft.refuse(SECTION, other.to_string()),
    })
}

fn task_routes(draft: &Draft) -> Result<TaskRoutes, Problem> {
    let TasksConfig { mode, queue_prefix, dead_events, .. } = &draft.tasks;
    let why = |error: MessagingError| match error {
        MessagingError::InvalidInput { why, .. } => why,
        other => other.to_string(),
    };
    let dead_events = dead_events.as_ref().map(QueueName::new).transpose();
    let dead_events = dead_events.map_err(|error| draft.refuse(keys::TASKS_DEAD_EVENTS, why(error)))?;
    let routes = TaskRoutes { mode: *mode, post: Post::Here, queue_prefix: queue_prefix.clone(), dead_events };
    let longest = TaskType::new("t".repeat(MAX_TASK_TYPE)).and_then(|longest| routes.queue(&longest));
    longest.map_err(|error| draft.refuse(keys::TASKS_QUEUE_PREFIX, why(error)))?;
    Ok(routes)
}

/// The router reports two queues of one name at the second; the user may have written the first.
fn refuse_queue(draft: &Draft, key: &str, why: String) -> Problem {
    let value = |key: &keys::Key| key.value(&mut draft.clone());
    let same = keys::all().filter(|other| other.name != key && other.name.starts_with("common.queues."));
    let same =
        same.filter(|other| value(other) == keys::find(key).and_then(value)).find_map(|key| draft.given(key.name));
    match (draft.given(key), same) {
        (None, Some(written)) => Problem::conflict(written.clone(), draft.setting(key), why),
        _ => draft.refuse(key, why),
    }
}

#[cfg(test)]
mod tests;
