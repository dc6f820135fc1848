//! What is compared.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use postrider_bench::Workload;
use postrider_sqlite::ArchivePolicy;

use crate::http::HttpTask;
use crate::server::{Bar, Server, Task};
use crate::spool::SpoolTask;
use crate::tasks::TaskCase;

/// A process that sends and drains a backlog stays below this.
pub(crate) const MOST_MEGABYTES: f64 = 100.0;

/// What is compared.
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
    /// The same in a folder.
    Spool(SpoolTask),
    /// The same on a server.
    On(Server, Task),
    /// Tasks, from their creation to their end.
    Tasks(TaskCase),
    /// Over HTTP.
    Http(HttpTask),
}

impl Case {
    /// Those that need nothing but a disk.
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

    /// The server that must be there.
    pub(crate) fn server(self) -> Option<Server> {
        match self {
            Self::On(server, _) => Some(server),
            Self::Tasks(task) => task.server(),
            _ => None,
        }
    }

    /// The workload of the library that it is.
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

    /// The part of its bar that a check asks for.
    pub(crate) fn margin(self) -> f64 {
        match self {
            // The bar itself is not reached: the store does a message in less than a microsecond, and to lease, hand
            // over, guard and settle it costs as much again.
            Self::HandleMemory => 0.25,
            // Nor here: client and server share two cores, and what a bare request costs on both sides of the loopback is
            // more than what the library needs for a message whose commit 64 callers share.
            Self::Http(HttpTask::Send) => 0.25,
            _ => 0.5,
        }
    }

    /// What its ratio is a ratio to.
    pub(crate) fn beside(self) -> &'static str {
        match self {
            Self::HandleMemory | Self::HandleSqlite => "the provider's own drain",
            Self::Spool(_) => "the bare file system",
            Self::Tasks(task) => task.baseline(),
            Self::Http(_) => "the library",
            _ => "the driver",
        }
    }

    /// The most memory that it may need, where that is asked for.
    pub(crate) fn most_megabytes(self) -> f64 {
        match self {
            Self::Http(_) => HttpTask::MOST_MEGABYTES,
            _ => MOST_MEGABYTES,
        }
    }

    pub(crate) fn archive(self) -> ArchivePolicy {
        match self {
            Self::DrainNone => ArchivePolicy::None,
            _ => ArchivePolicy::All,
        }
    }

    /// What it must reach. A lone caller's send may cost 1.3 times what a transaction costs.
    pub(crate) fn bar(self) -> Option<Bar> {
        match self {
            Self::SendOne => Some(Bar::Rate(8.0)),
            Self::Lone => Some(Bar::Rate(0.77)),
            Self::SendBatch => Some(Bar::Rate(0.6)),
            Self::DrainNone => Some(Bar::Rate(0.5)),
            Self::DrainAll => Some(Bar::Rate(0.38)),
            Self::HandleMemory | Self::HandleSqlite => Some(Bar::Rate(0.8)),
            Self::Latency | Self::Backlog => None,
            Self::Spool(task) => task.bar(),
            Self::On(server, task) => Some(server.bar(task)),
            Self::Tasks(task) => task.bar(),
            Self::Http(task) => task.bar(),
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
