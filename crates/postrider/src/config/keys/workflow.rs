//! A workflow's queues, and when a failed message is tried again.

use super::Key;
use crate::config::kind::Kind;
use crate::config::retry;

pub(super) const KEYS: &[Key] = &[
    Key {
        name: "common.queues.worker_queue_prefix",
        kind: Kind::Text(|draft| &mut draft.common.queues.worker_queue_prefix),
        meaning: "Prefix of the names of step queues.",
    },
    Key {
        name: "common.queues.orchestration_queues.task_requests",
        kind: Kind::Text(|draft| &mut draft.common.queues.orchestration_queues.task_requests),
        meaning: "Queue of requests to begin a task.",
    },
    Key {
        name: "common.queues.orchestration_queues.step_results",
        kind: Kind::Text(|draft| &mut draft.common.queues.orchestration_queues.step_results),
        meaning: "Queue of workers' step results.",
    },
    Key {
        name: "common.queues.orchestration_queues.task_finalizations",
        kind: Kind::Text(|draft| &mut draft.common.queues.orchestration_queues.task_finalizations),
        meaning: "Queue of tasks to finish.",
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
        meaning: "Upper bound of the random addition to the delay. Needed by `constant_with_jitter`.",
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
        meaning: "Upper bound of the delay. For `linear`, `exponential` and `exponential_with_jitter`.",
    },
    Key {
        name: "common.retry.limits.max_attempts",
        kind: Kind::RetryCount,
        meaning: "Attempts in all, the first included; `\"forever\"` for no limit.",
    },
    Key {
        name: "common.retry.limits.max_total_delay",
        kind: Kind::RetryDelay,
        meaning: "Longest time from the first delivery to the start of an attempt.",
    },
];
