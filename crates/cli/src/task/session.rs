//! What a command about tasks works with: the configuration, the store that keeps them, and the queues that may deliver
//! them.

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

/// The client of a store of tasks.
pub(crate) type Client = TaskClient<TaskStorage, MessagingProvider>;

/// A connection to the store of tasks, for the length of a command.
#[derive(Debug)]
pub(crate) struct TaskSession {
    pub(crate) config: Config,
    pub(crate) store: TaskStorage,
    /// What the store is reached by.
    kept_in: MessagingProvider,
    pub(crate) out: Output,
}

impl Global {
    /// Connects to the store that keeps tasks. Queues that are elsewhere are not asked for.
    pub(crate) async fn connect_to_tasks(&self) -> Result<TaskSession, Failure> {
        let config = self.config_for(None)?;
        check_memory(&config)?;
        let file = NewFile::at(config.state_url()?);
        let (store, kept_in) = TaskStorage::connect(&config).await?;
        file.tell();
        Ok(TaskSession { config, store, kept_in, out: Output::new(self.json) })
    }
}

/// Messages in memory do no harm to tasks that are kept elsewhere and that no message is sent of.
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
            "'memory:' ends with this process, and with it every message of a task; with tasks.mode = \"queue\" or \
             tasks.dead_events, use queues that last, or name a database as --url",
        ));
    }
    Ok(())
}

impl TaskSession {
    /// What asks the store. It makes no tasks where queues deliver them: see [`Self::maker`].
    pub(crate) fn client(&self) -> Client {
        Tasks::new(self.store.clone(), self.kept_in.clone()).client().clone()
    }

    fn has_queues_elsewhere(&self) -> bool {
        !self.config.keeps_state_with_messages()
    }

    /// Connects to the queues, where these are elsewhere.
    pub(crate) async fn queues(&self) -> Result<MessagingProvider, Failure> {
        if !self.has_queues_elsewhere() {
            return Ok(self.kept_in.clone());
        }
        let file = NewFile::of(&self.config);
        let queues = self.config.endpoint()?.connect().await?;
        file.tell();
        Ok(queues)
    }

    /// What makes tasks.
    pub(crate) async fn maker(&self) -> Result<Maker, Failure> {
        if self.store.routes().mode == TaskMode::Polling || !self.has_queues_elsewhere() {
            return Ok(Maker::Client(self.client()));
        }
        match self.config.endpoint()?.connect().await {
            Ok(queues) => Ok(Maker::Client(Tasks::new(self.store.clone(), queues).client().clone())),
            Err(error) if error.is_retryable() => {
                let why = explained(&error);
                note(format_args!("{why}; what is made waits in {} until the queue is there", self.store.store_name()));
                Ok(Maker::Store(self.store.clone()))
            }
            Err(error) => Err(error.into()),
        }
    }

    /// How a keeper works by the configuration.
    pub(crate) fn keeper_options(&self) -> TaskKeeperOptions {
        let tasks = self.config.tasks();
        TaskKeeperOptions { grace: tasks.grace, retention: Some(tasks.retention), ..TaskKeeperOptions::default() }
    }

    /// Ends both connections, where there are two.
    pub(crate) async fn close_with(self, queues: MessagingProvider) -> Result<(), Failure> {
        let closed = match self.has_queues_elsewhere() {
            true => queues.close(Deadline::default()).await.map_err(Failure::from),
            false => Ok(()),
        };
        self.close().await.and(closed)
    }

    /// Ends the connection. What the command did stands, whatever this answers.
    pub(crate) async fn close(self) -> Result<(), Failure> {
        Ok(self.kept_in.close(Deadline::default()).await?)
    }
}

/// Makes tasks.
#[derive(Debug)]
pub(crate) enum Maker {
    /// After a look at whether the queue of a type can be had.
    Client(Client),
    /// Without: the queues cannot be reached, and what is made waits for them.
    Store(TaskStorage),
}

impl Maker {
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
