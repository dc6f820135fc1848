//! Tasks in the database that the configuration names.

use postrider_core::task::*;
use postrider_core::*;
use postrider_tasks::Tasks;

use crate::config::Config;
use crate::context::{ContextError, SystemContext};
use crate::messaging_provider::MessagingProvider;

/// A task store: a database, or a server with one.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum TaskStorage {
    /// In an SQLite file.
    #[cfg(feature = "sqlite")]
    Sqlite(postrider_sqlite::SqliteTasks),
    /// In a schema of a PostgreSQL database.
    #[cfg(feature = "postgres")]
    Postgres(postrider_postgres::PostgresTasks),
    /// In the store of a Postrider server.
    #[cfg(feature = "http")]
    Http(postrider_http::HttpTasks),
}

impl TaskStorage {
    /// The tasks in a provider's own store. A server uses its own routes instead of `routes`.
    #[cfg_attr(
        not(any(feature = "postgres", feature = "sqlite")),
        expect(unused_variables, reason = "only a server has its own routes")
    )]
    pub fn new(provider: &MessagingProvider, routes: TaskRoutes) -> BoxFuture<'_, Result<Self, MessagingError>> {
        Box::pin(async move {
            match provider {
                #[cfg(feature = "sqlite")]
                MessagingProvider::Sqlite(provider) => {
                    Ok(Self::Sqlite(postrider_sqlite::SqliteTasks::new(provider.clone(), routes)?))
                }
                #[cfg(feature = "postgres")]
                MessagingProvider::Postgres(provider) => {
                    Ok(Self::Postgres(postrider_postgres::PostgresTasks::new(provider.clone(), routes)?))
                }
                #[cfg(feature = "http")]
                MessagingProvider::Http(provider) => {
                    Ok(Self::Http(postrider_http::HttpTasks::open(provider.clone(), Deadline::default()).await?))
                }
                other => Err(MessagingError::invalid(
                    "task store",
                    format!("{} keeps no tasks; set [state] url to SQLite or PostgreSQL", other.provider_name()),
                )),
            }
        })
    }

    /// The tasks of a system whose messages go through `provider`.
    ///
    /// Where tasks and messages are in one database, a transition and its message commit together. Elsewhere the
    /// message goes into an outbox in the transition's transaction and is relayed from there.
    pub fn open<'a>(config: &'a Config, provider: &'a MessagingProvider) -> BoxFuture<'a, Result<Self, ContextError>> {
        Box::pin(async move {
            if config.keeps_state_with_messages() && !matches!(provider, MessagingProvider::Custom(_)) {
                let routes = TaskRoutes { post: Post::Here, ..config.task_routes().clone() };
                return Ok(Self::new(provider, routes).await?);
            }
            let store = config.state_endpoint()?.connect().await?;
            Ok(Self::new(&store, TaskRoutes { post: Post::Outbox, ..config.task_routes().clone() }).await?)
        })
    }

    /// Opens the tasks of a system without its queues: tasks can be made, read and canceled while a broker is down. Also
    /// returns the connection, which the caller closes.
    pub fn connect(config: &Config) -> BoxFuture<'_, Result<(Self, MessagingProvider), ContextError>> {
        Box::pin(async move {
            let (endpoint, post) = match config.keeps_state_with_messages() {
                true => (config.endpoint()?, Post::Here),
                false => (config.state_endpoint()?, Post::Outbox),
            };
            let provider = endpoint.connect().await?;
            let tasks = Self::new(&provider, TaskRoutes { post, ..config.task_routes().clone() }).await?;
            Ok((tasks, provider))
        })
    }

    /// Whether a server runs the keeper's chores for all clients.
    pub fn is_kept_elsewhere(&self) -> bool {
        match self {
            #[cfg(feature = "sqlite")]
            Self::Sqlite(_) => false,
            #[cfg(feature = "postgres")]
            Self::Postgres(_) => false,
            #[cfg(feature = "http")]
            Self::Http(_) => true,
        }
    }
}

impl SystemContext {
    /// Opens the tasks that the configuration names.
    pub fn tasks(
        &self,
    ) -> BoxFuture<'_, Result<Tasks<TaskStorage, crate::breaker::Guarded<MessagingProvider>>, ContextError>> {
        Box::pin(async move {
            let provider = (*self.messaging_provider).clone();
            Ok(Tasks::new(TaskStorage::open(&self.config, provider.inner()).await?, provider))
        })
    }
}

/// Forwards each method to the store.
macro_rules! each {
    ($self:ident, $store:ident => $call:expr) => {
        match $self {
            #[cfg(feature = "sqlite")]
            Self::Sqlite($store) => $call,
            #[cfg(feature = "postgres")]
            Self::Postgres($store) => $call,
            #[cfg(feature = "http")]
            Self::Http($store) => $call,
        }
    };
}

impl TaskStore for TaskStorage {
    hand_on!(TaskStore, each);
}

impl ScheduleStore for TaskStorage {
    hand_on!(ScheduleStore, each);
}
