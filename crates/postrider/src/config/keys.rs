//! The table of all keys.
//!
//! The loader, error texts, [`describe`](super::Config::describe) and the reference page are made from it, so a key cannot
//! be read and undocumented, or documented and not read. Defaults are not repeated here: they are those of the settings
//! structs.

mod http;
mod messaging;
mod mysql;
mod pgmq;
mod postgres;
mod rabbitmq;
mod server;
mod spool;
mod sqlite;
mod sqs;
mod tasks;
mod workflow;

use std::time::Duration;

use super::kind::{At, Kind};

/// A key of the configuration.
#[derive(Debug)]
pub(super) struct Key {
    /// The sections and the name, separated by dots.
    pub(super) name: &'static str,
    pub(super) kind: Kind,
    /// Its meaning, in a sentence.
    pub(super) meaning: &'static str,
}

/// A section and its text on the reference page.
#[derive(Debug)]
pub(super) struct Section {
    pub(super) name: &'static str,
    pub(super) meaning: &'static str,
}

const MILLISECOND: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3600);
const GIB: u32 = 1 << 30;

pub(super) const PROVIDER: &str = "common.messaging.provider";
pub(super) const URL: &str = "common.messaging.url";
pub(super) const DEFAULT_BATCH_SIZE: &str = "common.messaging.default_batch_size";
pub(super) const MAX_BATCH_SIZE: &str = "common.messaging.max_batch_size";
pub(super) const SQLITE_PATH: &str = "common.messaging.sqlite.path";
pub(super) const SPOOL_PATH: &str = "common.messaging.spool.path";
pub(super) const POSTGRES_URL: &str = "common.messaging.postgres.url";
pub(super) const MYSQL_URL: &str = "common.messaging.mysql.url";
pub(super) const PGMQ_URL: &str = "common.messaging.pgmq.url";
pub(super) const RABBITMQ_URL: &str = "common.messaging.rabbitmq.url";
pub(super) const RABBITMQ_VHOST: &str = "common.messaging.rabbitmq.vhost";
pub(super) const SQS_URL: &str = "common.messaging.sqs.url";
pub(super) const HTTP_URL: &str = "common.messaging.http.url";
pub(super) const HTTP_TOKEN: &str = "common.messaging.http.token";
pub(super) const STATE_URL: &str = "state.url";
pub(super) const TASKS_QUEUE_PREFIX: &str = "tasks.queue_prefix";
pub(super) const TASKS_DEAD_EVENTS: &str = "tasks.dead_events";
pub(super) const SERVER_TLS_CERTIFICATE: &str = "server.tls_certificate";
pub(super) const SERVER_TLS_KEY: &str = "server.tls_key";
pub(super) const SERVER_REQUEST_BYTES: &str = "server.max_request_bytes";
pub(super) const SERVER_BYTES_IN_FLIGHT: &str = "server.max_bytes_in_flight";

/// The sections, in the order of the reference page.
pub(super) const SECTIONS: &[Section] = &[
    Section {
        name: "common.messaging",
        meaning: "Where messages are kept, and how they are received. A store is named by `url`, or by `provider` \
                  and the address in its own section; both may be given if they name the same store.",
    },
    Section { name: "common.messaging.dead_letter", meaning: "When a message is given up." },
    Section {
        name: "common.messaging.circuit_breaker",
        meaning: "When calls to a failing store are refused. Only failures of the connection or of the server count, \
                  never invalid input or a bad message. While it is open, calls fail at once; settles and extensions \
                  wait for the store, until their lease is over.",
    },
    Section { name: "common.messaging.sqlite", meaning: "Read when messages are kept in an embedded SQLite file." },
    Section {
        name: "common.messaging.spool",
        meaning: "Read when messages are kept as files of a folder, which other programs may put there.",
    },
    Section {
        name: "common.messaging.postgres",
        meaning: "Read when messages are kept in tables of a PostgreSQL database.",
    },
    Section {
        name: "common.messaging.mysql",
        meaning: "Read when messages are kept in tables of a MariaDB or MySQL database.",
    },
    Section { name: "common.messaging.pgmq", meaning: "Read when messages are kept in queues of PGMQ." },
    Section { name: "common.messaging.rabbitmq", meaning: "Read when messages are kept in RabbitMQ." },
    Section { name: "common.messaging.sqs", meaning: "Read when messages are kept in queues of SQS." },
    Section {
        name: "common.messaging.http",
        meaning: "Read when messages are kept by a Postrider server. Its tasks and schedules are used then \
                  too.",
    },
    Section {
        name: "common.queues",
        meaning: "The names of a workflow's queues. A namespace's steps wait in \
                  `{worker_queue_prefix}_{namespace}_queue`.",
    },
    Section { name: "common.queues.orchestration_queues", meaning: "The queues that an orchestrator reads." },
    Section {
        name: "common.retry",
        meaning: "When a failed message is tried again. The fields depend on the strategy. A source that names a \
                  strategy replaces the fields of lower sources.",
    },
    Section {
        name: "common.retry.limits",
        meaning: "When the strategy gives up. Without this section: after the attempts of the default strategy. With \
                  it, a limit that is left out does not exist.",
    },
    Section { name: "tasks", meaning: "How tasks reach their workers, and how long they are kept." },
    Section { name: "state", meaning: "The store of tasks and schedules." },
    Section { name: "server", meaning: "How `postrider serve` runs." },
];

const SECTIONED: [&[Key]; 12] = [
    messaging::KEYS,
    sqlite::KEYS,
    spool::KEYS,
    postgres::KEYS,
    mysql::KEYS,
    pgmq::KEYS,
    rabbitmq::KEYS,
    sqs::KEYS,
    http::KEYS,
    workflow::KEYS,
    tasks::KEYS,
    server::KEYS,
];

/// Every key, section by section.
pub(super) fn all() -> impl Iterator<Item = &'static Key> {
    SECTIONED.into_iter().flatten()
}

const fn count(name: &'static str, at: At<u32>, range: (u32, u32), meaning: &'static str) -> Key {
    Key { name, kind: Kind::Count { at, range }, meaning }
}

const fn seconds(name: &'static str, at: At<Duration>, range: (Duration, Duration), meaning: &'static str) -> Key {
    Key { name, kind: Kind::Seconds { at, range }, meaning }
}

const fn duration(name: &'static str, at: At<Duration>, range: (Duration, Duration), meaning: &'static str) -> Key {
    Key { name, kind: Kind::Duration { at, range }, meaning }
}

/// The key with that name.
pub(super) fn find(name: &str) -> Option<&'static Key> {
    all().find(|key| key.name == name)
}

/// Whether a section has that name.
pub(super) fn is_section(name: &str) -> bool {
    all().any(|key| key.name.strip_prefix(name).is_some_and(|rest| rest.starts_with('.')))
}

/// The names of all sections and keys.
pub(super) fn paths() -> Vec<&'static str> {
    let mut paths = Vec::new();
    for key in all() {
        let ends = key.name.match_indices('.').map(|(dot, _)| &key.name[..dot]);
        paths.extend(ends.chain([key.name]));
    }
    paths.sort_unstable();
    paths.dedup();
    paths
}

/// The names in a section.
pub(super) fn names_in(section: &str) -> Vec<&'static str> {
    let parent = |path: &'static str| path.rsplit_once('.').unwrap_or(("", path));
    paths().into_iter().map(parent).filter(|(above, _)| *above == section).map(|(_, name)| name).collect()
}
