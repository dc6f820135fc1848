//! The configuration, the task store, and the queues that may deliver tasks, for one command.

use postrider::config::{Origin, ProviderKind};
use postrider::task::{Created, NewTask, TaskMode};
use postrider::tasks::{TaskClient, TaskKeeperOptions, Tasks};
use postrider::{
    Config, Deadline, MessagingError, MessagingProvider, MessagingService, RowResults, TaskStorage, TaskStore,
};

use crate::args::Global;
use crate::failure::{Failure, explained};
use crate::output::{Output, note};
use crate::session::{NewFile, ends_with_this_process};

/// The client of a task store.
pub(crate) type Client = TaskClient<TaskStorage, MessagingProvider>;

/// A connection to the task store, for one command.
#[derive(Debug)]
pub(crate) struct TaskSession {
    pub(crate) config: Config,
    pub(crate) store: TaskStorage,
    /// The connection of the task store.
    connection: MessagingProvider,
    pub(crate) out: Output,
}

impl Global {
    /// Connects to the task store, but not to queues in another store.
    pub(crate) async fn connect_to_tasks(&self) -> Result<TaskSession, Failure> {
        let config = self.config_for(None)?;
        check_memory(&config)?;
        let file = NewFile::at(config.state_url()?);
        let (store, connection) = TaskStorage::connect(&config).await?;
        file.announce();
        Ok(TaskSession { config, store, connection, out: Output::new(self.json) })
    }
}

/// Refuses messages in memory, unless tasks are stored elsewhere and no messages are sent for them.
fn check_memory(config: &Config) -> Result<(), Failure> {
    if config.provider() != Some(ProviderKind::Memory) {
        return Ok(());
    }
    let state = config.describe().iter().find(|row| row.key == "state.url");
    if state.is_none_or(|row| row.origin == Origin::Default) {
        return Err(ends_with_this_process());
    }
    let routes = config.task_routes();
    if routes.mode == TaskMode::Queue || routes.dead_events.is_some() {
        return Err(Failure::usage(
            "'memory:' ends with this process, and so does every message of a task; tasks.mode = \"queue\" and \
             tasks.dead_events need a database or a broker as --url",
        ));
    }
    Ok(())
}

impl TaskSession {
    /// The client of the store. It cannot create tasks that queues deliver: see [`Self::creator`].
    pub(crate) fn client(&self) -> Client {
        Tasks::new(self.store.clone(), self.connection.clone()).client().clone()
    }

    fn has_queues_elsewhere(&self) -> bool {
        !self.config.keeps_state_with_messages()
    }

    /// Returns the connection to the queues, which may be in another store.
    pub(crate) async fn queues(&self) -> Result<MessagingProvider, Failure> {
        if !self.has_queues_elsewhere() {
            return Ok(self.connection.clone());
        }
        let file = NewFile::of(&self.config);
        let queues = self.config.endpoint()?.connect().await?;
        file.announce();
        Ok(queues)
    }

    /// Returns what creates tasks.
    pub(crate) async fn creator(&self) -> Result<Creator, Failure> {
        if self.store.routes().mode == TaskMode::Polling || !self.has_queues_elsewhere() {
            return Ok(Creator::Client(self.client()));
        }
        match self.config.endpoint()?.connect().await {
            Ok(queues) => Ok(Creator::Client(Tasks::new(self.store.clone(), queues).client().clone())),
            Err(error) if error.is_retryable() => {
                let why = explained(&error);
                note(format_args!(
                    "{why}; created tasks wait in {} until the queues can be reached",
                    self.store.store_name()
                ));
                Ok(Creator::Store(self.store.clone()))
            }
            Err(error) => Err(error.into()),
        }
    }

    /// The options of a keeper from the configuration.
    pub(crate) fn keeper_options(&self) -> TaskKeeperOptions {
        let tasks = self.config.tasks();
        TaskKeeperOptions { grace: tasks.grace, retention: Some(tasks.retention), ..TaskKeeperOptions::default() }
    }

    /// Closes the connection to the queues, if it is another, and this one.
    pub(crate) async fn close_with(self, queues: MessagingProvider) -> Result<(), Failure> {
        let closed = match self.has_queues_elsewhere() {
            true => queues.close(Deadline::default()).await.map_err(Failure::from),
            false => Ok(()),
        };
        self.close().await.and(closed)
    }

    /// Closes the connection. A failure does not undo what the command did.
    pub(crate) async fn close(self) -> Result<(), Failure> {
        Ok(self.connection.close(Deadline::default()).await?)
    }
}

/// Creates tasks.
#[derive(Debug)]
pub(crate) enum Creator {
    /// Checks the queue of the type first.
    Client(Client),
    /// Without that check, because the queues cannot be reached: created tasks wait for them.
    Store(TaskStorage),
}

impl Creator {
    pub(crate) async fn create(&self, tasks: Vec<NewTask>) -> Result<RowResults<Created>, MessagingError> {
        match self {
            Self::Client(client) => client.create_many(tasks, Deadline::default()).await,
            Self::Store(store) => store.create(tasks, Deadline::default()).await,
        }
    }

    pub(crate) async fn create_one(&self, task: NewTask) -> Result<Created, Failure> {
        let lost = || MessagingError::OutcomeUnknown { operation: "create a task", ids: Vec::new(), source: None };
        let created = self.create(vec![task]).await?.into_iter().next();
        Ok(created.unwrap_or_else(|| Err(lost()))?)
    }
}
