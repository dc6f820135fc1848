//! The comparisons.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use postrider_bench::Workload;
use postrider_sqlite::ArchivePolicy;

use crate::http::HttpTask;
use crate::server::{Server, Target, Task};
use crate::spool::SpoolTask;
use crate::tasks::TaskCase;

/// Memory limit of the backlog process.
pub(crate) const MAX_MEGABYTES: f64 = 100.0;

/// A workload and its baseline.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Case {
    SendOne,
    Lone,
    SendBatch,
    DrainNone,
    DrainAll,
    HandleMemory,
    HandleSqlite,
    Latency,
    Backlog,
    /// In a folder.
    Spool(SpoolTask),
    /// On a server.
    On(Server, Task),
    /// Tasks, from creation to success.
    Tasks(TaskCase),
    /// Over HTTP.
    Http(HttpTask),
}

impl Case {
    /// Cases that need no server.
    const LOCAL: [Self; 9] = [
        Self::SendOne,
        Self::Lone,
        Self::SendBatch,
        Self::DrainNone,
        Self::DrainAll,
        Self::HandleMemory,
        Self::HandleSqlite,
        Self::Latency,
        Self::Backlog,
    ];

    pub(crate) fn all() -> Vec<Self> {
        let on_servers =
            Server::ALL.into_iter().flat_map(|server| server.tasks().iter().map(move |task| Self::On(server, *task)));
        Self::LOCAL
            .into_iter()
            .chain(SpoolTask::ALL.map(Self::Spool))
            .chain(on_servers)
            .chain(TaskCase::ALL.map(Self::Tasks))
            .chain(HttpTask::ALL.map(Self::Http))
            .collect()
    }

    pub(crate) fn name(self) -> Cow<'static, str> {
        let name = match self {
            Self::SendOne => "send-one",
            Self::Lone => "lone",
            Self::SendBatch => "send-batch",
            Self::DrainNone => "drain-none",
            Self::DrainAll => "drain-all",
            Self::HandleMemory => "handle-memory",
            Self::HandleSqlite => "handle-sqlite",
            Self::Latency => "latency",
            Self::Backlog => "backlog",
            Self::Spool(task) => task.name(),
            Self::Tasks(task) => task.name(),
            Self::Http(task) => task.name(),
            Self::On(server, task) => return format!("{}-{}", server.name(), task.name()).into(),
        };
        name.into()
    }

    /// The server that it needs.
    pub(crate) fn server(self) -> Option<Server> {
        match self {
            Self::On(server, _) => Some(server),
            Self::Tasks(task) => task.server(),
            _ => None,
        }
    }

    /// Its workload.
    pub(crate) fn workload(self) -> Workload {
        match self {
            Self::SendOne | Self::Lone => Workload::SendOne,
            Self::SendBatch => Workload::SendBatch,
            Self::DrainNone | Self::DrainAll | Self::Backlog => Workload::Drain,
            Self::HandleMemory | Self::HandleSqlite => Workload::Handle,
            Self::Latency => Workload::Latency,
            Self::Spool(task) => task.workload(),
            Self::On(_, task) => task.workload(),
            Self::Tasks(_) => Workload::Handle,
            Self::Http(task) => task.workload(),
        }
    }

    /// The part of its target that `--check` requires.
    pub(crate) fn margin(self) -> f64 {
        match self {
            // The target is not reached: the store takes less than a microsecond for a message, and the subscriber takes
            // as much again.
            Self::HandleMemory => 0.25,
            // The same: client and server share two cores, and a bare request over loopback costs more than a message
            // of the library, whose commit is shared by 64 callers.
            Self::Http(HttpTask::Send) => 0.25,
            _ => 0.5,
        }
    }

    /// Name of its baseline.
    pub(crate) fn baseline_name(self) -> &'static str {
        match self {
            Self::HandleMemory | Self::HandleSqlite => "the provider's own drain",
            Self::Spool(_) => "the bare file system",
            Self::Tasks(task) => task.baseline(),
            Self::Http(_) => "the library",
            _ => "the driver",
        }
    }

    /// Its memory limit.
    pub(crate) fn max_megabytes(self) -> f64 {
        match self {
            Self::Http(_) => HttpTask::MAX_MEGABYTES,
            _ => MAX_MEGABYTES,
        }
    }

    pub(crate) fn archive(self) -> ArchivePolicy {
        match self {
            Self::DrainNone => ArchivePolicy::None,
            _ => ArchivePolicy::All,
        }
    }

    /// Its target. A send of a lone caller may take 1.3 times as long as a transaction.
    pub(crate) fn target(self) -> Option<Target> {
        match self {
            Self::SendOne => Some(Target::Rate(8.0)),
            Self::Lone => Some(Target::Rate(0.77)),
            Self::SendBatch => Some(Target::Rate(0.6)),
            Self::DrainNone => Some(Target::Rate(0.5)),
            Self::DrainAll => Some(Target::Rate(0.38)),
            Self::HandleMemory | Self::HandleSqlite => Some(Target::Rate(0.8)),
            Self::Latency | Self::Backlog => None,
            Self::Spool(task) => task.target(),
            Self::On(server, task) => Some(server.target(task)),
            Self::Tasks(task) => task.target(),
            Self::Http(task) => task.target(),
        }
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.name())
    }
}

impl FromStr for Case {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::all().into_iter().find(|case| case.name() == text).ok_or_else(|| {
            let names: Vec<_> = Self::all().iter().map(|case| case.name()).collect();
            format!("use one of {}", names.join(", "))
        })
    }
}
