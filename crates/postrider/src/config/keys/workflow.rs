//! A workflow's queues, and when a failed message is tried again.

use super::Key;
use crate::config::kind::Kind;
use crate::config::retry;

pub(super) const KEYS: &[Key] = &[
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
    Key { name: retry::STRATEGY, kind: Kind::RetryStrategy, meaning: "How the delay grows from failure to failure." },
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
];
