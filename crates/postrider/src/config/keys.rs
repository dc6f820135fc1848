//! The one table of all keys.
//!
//! Reading, error texts, [`describe`](super::Config::describe) and the reference page are made from it, so a key cannot
//! be read and undocumented, or documented and not read. Defaults are not repeated here: they are what the settings
//! have before anything is laid over them.

use std::time::Duration;

use postrider_core::DEAD_LETTER_SUFFIX;
use postrider_core::message::MAX_DURATION;

use super::kind::{At, Kind};

/// A key of the configuration.
#[derive(Debug)]
pub(super) struct Key {
    /// Sections and name, with dots between them.
    pub(super) name: &'static str,
    pub(super) kind: Kind,
    /// What it is for, in a sentence.
    pub(super) meaning: &'static str,
}

/// A section with what its page says about it.
#[derive(Debug)]
pub(super) struct Section {
    pub(super) name: &'static str,
    pub(super) meaning: &'static str,
}

const MILLISECOND: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3600);
const DAY: Duration = Duration::from_secs(24 * 3600);
/// The largest number of seconds that AMQP can say.
const AMQP_HEARTBEAT: Duration = Duration::from_secs(u16::MAX as u64);
const MOST_MESSAGES: u32 = 10_000;
const GIB: u32 = 1 << 30;

pub(super) const PROVIDER: &str = "common.messaging.provider";
pub(super) const URL: &str = "common.messaging.url";
pub(super) const DEFAULT_BATCH_SIZE: &str = "common.messaging.default_batch_size";
pub(super) const MAX_BATCH_SIZE: &str = "common.messaging.max_batch_size";
pub(super) const SQLITE_PATH: &str = "common.messaging.sqlite.path";
pub(super) const POSTGRES_URL: &str = "common.messaging.postgres.url";
pub(super) const MYSQL_URL: &str = "common.messaging.mysql.url";
pub(super) const PGMQ_URL: &str = "common.messaging.pgmq.url";
pub(super) const RABBITMQ_URL: &str = "common.messaging.rabbitmq.url";
pub(super) const STATE_URL: &str = "state.url";

/// The sections, in the order of the reference page.
pub(super) const SECTIONS: &[Section] = &[
    Section {
        name: "common.messaging",
        meaning: "Where messages are kept, and how they are received. A store is named by `url`, or by `provider` \
                  and the address in its own section; both may be there when they mean the same store.",
    },
    Section { name: "common.messaging.dead_letter", meaning: "When a message is given up." },
    Section {
        name: "common.messaging.circuit_breaker",
        meaning: "When calls to a store that keeps failing are held back. Only failures of the connection or of the \
                  server count, never a caller's mistake or a bad message. Calls fail at once then; settles and \
                  extends are kept and carried out when the store is back, unless their lease is over by then.",
    },
    Section { name: "common.messaging.sqlite", meaning: "Read when messages are kept in an embedded SQLite file." },
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
    Section {
        name: "common.queues",
        meaning: "The names of a workflow's queues. A namespace's steps wait in \
                  `{worker_queue_prefix}_{namespace}_queue`.",
    },
    Section { name: "common.queues.orchestration_queues", meaning: "The queues that an orchestrator reads." },
    Section {
        name: "common.retry",
        meaning: "When a failed message is tried again. Which fields there are depends on the strategy. A source that \
                  names a strategy begins this section anew: the fields of the sources below it belong to another one.",
    },
    Section {
        name: "common.retry.limits",
        meaning: "When the strategy gives up. Without this section: after the attempts that the default strategy has. With \
                  it, what is left out has no limit.",
    },
    Section {
        name: "state",
        meaning: "Where everything is to be kept that is no message: tasks and schedules. It has no effect yet: nothing \
                  reads it.",
    },
];

/// Every key, section by section.
pub(super) const KEYS: &[Key] = &[
    Key {
        name: PROVIDER,
        kind: Kind::Choice(|draft| &mut draft.asked.provider),
        meaning: "Which store. Its address is in its own section, or in `url`.",
    },
    Key {
        name: URL,
        kind: Kind::Url(|draft| &mut draft.asked.url),
        meaning: "Which store, with its address. Without it and `provider`: an embedded file in the user's data \
                  folder.",
    },
    seconds(
        "common.messaging.default_visibility_timeout_seconds",
        |draft| &mut draft.common.messaging.default_visibility_timeout,
        (MILLISECOND, MAX_DURATION),
        "How long a message is leased when the receiver does not say it.",
    ),
    count(
        DEFAULT_BATCH_SIZE,
        |draft| &mut draft.common.messaging.default_batch_size,
        (1, MOST_MESSAGES),
        "How many messages an application's receive asks for that takes its options from the configuration \
         (`receive_options`). The commands of the program do not read it: each has a flag of its own.",
    ),
    count(
        MAX_BATCH_SIZE,
        |draft| &mut draft.common.messaging.max_batch_size,
        (1, MOST_MESSAGES),
        "The most messages that one receive may ask for.",
    ),
    Key {
        name: "common.messaging.create_queues",
        kind: Kind::Flag(|draft| &mut draft.common.messaging.create_queues),
        meaning: "Whether a send creates a queue that is missing.",
    },
    Key {
        name: "common.messaging.auto_migrate",
        kind: Kind::Flag(|draft| &mut draft.common.messaging.auto_migrate),
        meaning: "Whether connecting makes a file and tables that are missing, and brings older ones up to date.",
    },
    count(
        "common.messaging.max_message_bytes",
        |draft| &mut draft.common.messaging.max_message_bytes,
        (1, GIB),
        "The largest body of a message. A store's own limit may be lower.",
    ),
    Key {
        name: "common.messaging.dead_letter.enabled",
        kind: Kind::FixedFlag(true, "nothing is ever dropped without a record, so dead letters cannot be turned off"),
        meaning: "Always on: a message that is given up is never dropped without a record.",
    },
    count(
        "common.messaging.dead_letter.max_receive_count",
        |draft| &mut draft.common.messaging.dead_letter.max_receive_count,
        (1, 1_000_000),
        "How often a message is delivered before it is dead-lettered.",
    ),
    Key {
        name: "common.messaging.dead_letter.queue_suffix",
        kind: Kind::FixedText(
            DEAD_LETTER_SUFFIX,
            "two programs with different suffixes would disagree about which queues hold dead letters",
        ),
        meaning: "What the name of a queue's dead letters ends with. It is the same everywhere.",
    },
    count(
        "common.messaging.circuit_breaker.failure_threshold",
        |draft| &mut draft.common.messaging.circuit_breaker.failure_threshold,
        (1, 1_000_000),
        "How many failures in a row it takes. Calls that fail together are one failure.",
    ),
    count(
        "common.messaging.circuit_breaker.success_threshold",
        |draft| &mut draft.common.messaging.circuit_breaker.success_threshold,
        (1, 1000),
        "How many checks of the store's health must succeed in a row before calls are let through again.",
    ),
    seconds(
        "common.messaging.circuit_breaker.timeout_seconds",
        |draft| &mut draft.common.messaging.circuit_breaker.timeout,
        (MILLISECOND, DAY),
        "How long calls are held back before the store is tried again.",
    ),
    Key {
        name: SQLITE_PATH,
        kind: Kind::Path(|draft| &mut draft.asked.sqlite_path),
        meaning: "The file. A relative path begins at the current folder; without it, the file is in the user's data \
                  folder.",
    },
    Key {
        name: "common.messaging.sqlite.synchronous",
        kind: Kind::Choice(|draft| &mut draft.common.messaging.sqlite.synchronous),
        meaning: "What a commit waits for: `full` survives a loss of power, `normal` can lose the last moments in one.",
    },
    Key {
        name: "common.messaging.sqlite.archive",
        kind: Kind::Choice(|draft| &mut draft.common.messaging.sqlite.archive),
        meaning: "Which messages are kept after their end: `all`, only purged dead letters (`failed`), or `none`.",
    },
    Key {
        name: "common.messaging.sqlite.archive_retention",
        kind: Kind::Duration {
            at: |draft| &mut draft.common.messaging.sqlite.archive_retention,
            range: (SECOND, MAX_DURATION),
        },
        meaning: "How long they are kept.",
    },
    Key {
        name: "common.messaging.sqlite.share_file",
        kind: Kind::Flag(|draft| &mut draft.common.messaging.sqlite.share_file),
        meaning: "Whether the tables may be put into a database that another program made.",
    },
    seconds(
        "common.messaging.sqlite.lock_timeout_seconds",
        |draft| &mut draft.common.messaging.sqlite.lock_timeout,
        (MILLISECOND, HOUR),
        "How long a call waits while other processes write, before it fails with an error that can be retried.",
    ),
    count(
        "common.messaging.sqlite.wal_limit_bytes",
        |draft| &mut draft.common.messaging.sqlite.wal_limit_bytes,
        (64 * 1024, GIB),
        "How large the write-ahead log may grow before it is worked into the file.",
    ),
    Key {
        name: POSTGRES_URL,
        kind: Kind::Url(|draft| &mut draft.asked.postgres_url),
        meaning: "The database's address, like `postgres://user@host/database`.",
    },
    Key {
        name: "common.messaging.postgres.schema",
        kind: Kind::Text(|draft| &mut draft.common.messaging.postgres.schema),
        meaning: "The schema that holds the tables. It is made when it is missing.",
    },
    count(
        "common.messaging.postgres.pool_size",
        |draft| &mut draft.common.messaging.postgres.pool_size,
        (1, 10_000),
        "How many connections are open at most. Listening takes one more.",
    ),
    Key {
        name: "common.messaging.postgres.archive",
        kind: Kind::Choice(|draft| &mut draft.common.messaging.postgres.archive),
        meaning: "Which messages are kept after their end: `all`, only purged dead letters (`failed`), or `none`.",
    },
    Key {
        name: "common.messaging.postgres.archive_retention",
        kind: Kind::Duration {
            at: |draft| &mut draft.common.messaging.postgres.archive_retention,
            range: (SECOND, MAX_DURATION),
        },
        meaning: "How long they are kept.",
    },
    Key {
        name: "common.messaging.postgres.poll_only",
        kind: Kind::Flag(|draft| &mut draft.common.messaging.postgres.poll_only),
        meaning: "Whether nothing is kept in a session: no `LISTEN`, no settings. Needed behind a pooler that hands out \
                  connections for a transaction at a time, such as PgBouncer.",
    },
    seconds(
        "common.messaging.postgres.poll_interval_seconds",
        |draft| &mut draft.common.messaging.postgres.poll_interval,
        (MILLISECOND, HOUR),
        "How long a waiting receiver goes without a look of its own, for what no notification told it of.",
    ),
    seconds(
        "common.messaging.postgres.connection_timeout_seconds",
        |draft| &mut draft.common.messaging.postgres.connection_timeout,
        (MILLISECOND, HOUR),
        "How long connecting may take, and waiting for a free connection.",
    ),
    seconds(
        "common.messaging.postgres.statement_timeout_seconds",
        |draft| &mut draft.common.messaging.postgres.statement_timeout,
        (MILLISECOND, HOUR),
        "How long a statement may take before it is given up.",
    ),
    Key {
        name: MYSQL_URL,
        kind: Kind::Url(|draft| &mut draft.asked.mysql_url),
        meaning: "The database's address, like `mysql://user@host/database`.",
    },
    count(
        "common.messaging.mysql.pool_size",
        |draft| &mut draft.common.messaging.mysql.pool_size,
        (1, 10_000),
        "How many connections are open at most.",
    ),
    Key {
        name: "common.messaging.mysql.archive",
        kind: Kind::Choice(|draft| &mut draft.common.messaging.mysql.archive),
        meaning: "Which messages are kept after their end: `all`, only purged dead letters (`failed`), or `none`.",
    },
    Key {
        name: "common.messaging.mysql.archive_retention",
        kind: Kind::Duration {
            at: |draft| &mut draft.common.messaging.mysql.archive_retention,
            range: (SECOND, MAX_DURATION),
        },
        meaning: "How long they are kept.",
    },
    seconds(
        "common.messaging.mysql.poll_interval_seconds",
        |draft| &mut draft.common.messaging.mysql.poll_interval,
        (MILLISECOND, HOUR),
        "How long a waiting receiver goes without a look of its own, for what other processes send.",
    ),
    seconds(
        "common.messaging.mysql.connection_timeout_seconds",
        |draft| &mut draft.common.messaging.mysql.connection_timeout,
        (MILLISECOND, HOUR),
        "How long connecting may take, and waiting for a free connection.",
    ),
    seconds(
        "common.messaging.mysql.statement_timeout_seconds",
        |draft| &mut draft.common.messaging.mysql.statement_timeout,
        (MILLISECOND, HOUR),
        "How long a step of a transaction may take before it is given up.",
    ),
    Key {
        name: PGMQ_URL,
        kind: Kind::Url(|draft| &mut draft.asked.pgmq_url),
        meaning: "The database's address, like `pgmq+postgres://user@host/database`.",
    },
    Key {
        name: "common.messaging.pgmq.schema",
        kind: Kind::Text(|draft| &mut draft.common.messaging.pgmq.schema),
        meaning: "The schema that holds what PGMQ has no place for: paused queues, dedup keys and long delays.",
    },
    count(
        "common.messaging.pgmq.pool_size",
        |draft| &mut draft.common.messaging.pgmq.pool_size,
        (1, 10_000),
        "How many connections are open at most; listening for wake-ups takes one more.",
    ),
    Key {
        name: "common.messaging.pgmq.archive",
        kind: Kind::Choice(|draft| &mut draft.common.messaging.pgmq.archive),
        meaning: "Which messages are kept after their end, in PGMQ's archives: `all`, only purged dead letters \
                  (`failed`), or `none`.",
    },
    Key {
        name: "common.messaging.pgmq.archive_retention",
        kind: Kind::Duration {
            at: |draft| &mut draft.common.messaging.pgmq.archive_retention,
            range: (SECOND, MAX_DURATION),
        },
        meaning: "How long they are kept. What other clients have archived stays.",
    },
    Key {
        name: "common.messaging.pgmq.enable_pg_notify",
        kind: Kind::Flag(|draft| &mut draft.common.messaging.pgmq.enable_pg_notify),
        meaning: "Whether a send wakes waiting receivers by `NOTIFY`; false for a pooler that hands out connections for \
                  a transaction at a time.",
    },
    seconds(
        "common.messaging.pgmq.notify_throttle_seconds",
        |draft| &mut draft.common.messaging.pgmq.notify_throttle,
        (MILLISECOND, HOUR),
        "How long after one notification of a queue PGMQ sends no other.",
    ),
    seconds(
        "common.messaging.pgmq.poll_interval_seconds",
        |draft| &mut draft.common.messaging.pgmq.poll_interval,
        (MILLISECOND, HOUR),
        "How long a waiting receiver goes without a look of its own, for what others send.",
    ),
    Key {
        name: "common.messaging.pgmq.long_delay",
        kind: Kind::Duration { at: |draft| &mut draft.common.messaging.pgmq.long_delay, range: (SECOND, MAX_DURATION) },
        meaning: "A message without keys that is due later than this waits in a table beside the queue, where it slows \
                  no reader.",
    },
    seconds(
        "common.messaging.pgmq.connection_timeout_seconds",
        |draft| &mut draft.common.messaging.pgmq.connection_timeout,
        (MILLISECOND, HOUR),
        "How long connecting may take, and waiting for a free connection.",
    ),
    seconds(
        "common.messaging.pgmq.statement_timeout_seconds",
        |draft| &mut draft.common.messaging.pgmq.statement_timeout,
        (MILLISECOND, HOUR),
        "How long a statement may take before it is given up.",
    ),
    Key {
        name: RABBITMQ_URL,
        kind: Kind::Url(|draft| &mut draft.asked.rabbitmq_url),
        meaning: "The broker's address. Without it: the one of a broker on this machine, as it is installed.",
    },
    Key {
        name: "common.messaging.rabbitmq.vhost",
        kind: Kind::Text(|draft| &mut draft.common.messaging.rabbitmq.vhost),
        meaning: "The virtual host.",
    },
    count(
        "common.messaging.rabbitmq.prefetch_count",
        |draft| &mut draft.common.messaging.rabbitmq.prefetch_count,
        (1, u16::MAX as u32),
        "How many messages the broker hands over before the first of them is settled.",
    ),
    seconds(
        "common.messaging.rabbitmq.heartbeat_seconds",
        |draft| &mut draft.common.messaging.rabbitmq.heartbeat,
        (SECOND, AMQP_HEARTBEAT),
        "How often the connection shows that it is alive. Parts of a second are rounded up.",
    ),
    seconds(
        "common.messaging.rabbitmq.connection_timeout_seconds",
        |draft| &mut draft.common.messaging.rabbitmq.connection_timeout,
        (MILLISECOND, HOUR),
        "How long connecting may take.",
    ),
    Key {
        name: "common.queues.worker_queue_prefix",
        kind: Kind::Text(|draft| &mut draft.common.queues.worker_queue_prefix),
        meaning: "What the names of step queues begin with.",
    },
    Key {
        name: "common.queues.orchestration_queues.task_requests",
        kind: Kind::Text(|draft| &mut draft.common.queues.orchestration_queues.task_requests),
        meaning: "Where requests to begin a task wait.",
    },
    Key {
        name: "common.queues.orchestration_queues.step_results",
        kind: Kind::Text(|draft| &mut draft.common.queues.orchestration_queues.step_results),
        meaning: "Where workers report what became of their steps.",
    },
    Key {
        name: "common.queues.orchestration_queues.task_finalizations",
        kind: Kind::Text(|draft| &mut draft.common.queues.orchestration_queues.task_finalizations),
        meaning: "Where tasks wait to be brought to their end.",
    },
    Key {
        name: super::retry::STRATEGY,
        kind: Kind::RetryStrategy,
        meaning: "How the delay grows from failure to failure.",
    },
    Key {
        name: "common.retry.delay",
        kind: Kind::RetryDelay,
        meaning: "The delay. Needed by `constant` and `constant_with_jitter`.",
    },
    Key {
        name: "common.retry.jitter",
        kind: Kind::RetryDelay,
        meaning: "The most that chance adds to the delay. Needed by `constant_with_jitter`.",
    },
    Key {
        name: "common.retry.initial_delay",
        kind: Kind::RetryDelay,
        meaning: "The delay after the first failure. For `linear`, `exponential` and `exponential_with_jitter`.",
    },
    Key {
        name: "common.retry.increment",
        kind: Kind::RetryDelay,
        meaning: "What each further failure adds. Needed by `linear`.",
    },
    Key {
        name: "common.retry.multiplier",
        kind: Kind::RetryFactor,
        meaning: "What each further failure multiplies the delay by. For `exponential` and `exponential_with_jitter`.",
    },
    Key {
        name: "common.retry.max_delay",
        kind: Kind::RetryDelay,
        meaning: "No delay is longer. For `linear`, `exponential` and `exponential_with_jitter`.",
    },
    Key {
        name: "common.retry.limits.max_attempts",
        kind: Kind::RetryCount,
        meaning: "Attempts in all, the first included; `\"forever\"` for no limit.",
    },
    Key {
        name: "common.retry.limits.max_total_delay",
        kind: Kind::RetryDelay,
        meaning: "No attempt is begun later than this after the first delivery.",
    },
    Key {
        name: STATE_URL,
        kind: Kind::Url(|draft| &mut draft.asked.state_url),
        meaning: "Without it: the database of the queue when it is one, else an embedded file in the user's data \
                  folder.",
    },
];

const fn count(name: &'static str, at: At<u32>, range: (u32, u32), meaning: &'static str) -> Key {
    Key { name, kind: Kind::Count { at, range }, meaning }
}

const fn seconds(name: &'static str, at: At<Duration>, range: (Duration, Duration), meaning: &'static str) -> Key {
    Key { name, kind: Kind::Seconds { at, range }, meaning }
}

/// The key of that name.
pub(super) fn find(name: &str) -> Option<&'static Key> {
    KEYS.iter().find(|key| key.name == name)
}

/// Whether keys begin with that name.
pub(super) fn is_section(name: &str) -> bool {
    KEYS.iter().any(|key| key.name.strip_prefix(name).is_some_and(|rest| rest.starts_with('.')))
}

/// The name of every section and key.
pub(super) fn paths() -> Vec<&'static str> {
    let mut paths = Vec::new();
    for key in KEYS {
        let ends = key.name.match_indices('.').map(|(dot, _)| &key.name[..dot]);
        paths.extend(ends.chain([key.name]));
    }
    paths.sort_unstable();
    paths.dedup();
    paths
}

/// The names of what a section holds.
pub(super) fn names_in(section: &str) -> Vec<&'static str> {
    let parent = |path: &'static str| path.rsplit_once('.').unwrap_or(("", path));
    paths().into_iter().map(parent).filter(|(above, _)| *above == section).map(|(_, name)| name).collect()
}
