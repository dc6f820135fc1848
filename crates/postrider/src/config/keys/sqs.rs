//! SQS.

use super::{HOUR, Key, MILLISECOND, SQS_URL, count, seconds};
use crate::config::kind::Kind;

pub(super) const KEYS: &[Key] = &[
    Key {
        name: SQS_URL,
        kind: Kind::Url(|draft| &mut draft.store.sqs_url),
        meaning: "Where the queues are, like `sqs://region/prefix` or `sqs+http://host:port/prefix`. Credentials come \
                  from \
                  the AWS environment, profile or role.",
    },
    count(
        "common.messaging.sqs.parallel_calls",
        |draft| &mut draft.common.messaging.sqs.parallel_calls,
        (1, 1000),
        "Number of concurrent calls, of ten messages each, for one batch.",
    ),
    seconds(
        "common.messaging.sqs.connection_timeout_seconds",
        |draft| &mut draft.common.messaging.sqs.connection_timeout,
        (MILLISECOND, HOUR),
        "Time limit of connecting.",
    ),
    seconds(
        "common.messaging.sqs.call_timeout_seconds",
        |draft| &mut draft.common.messaging.sqs.call_timeout,
        (MILLISECOND, HOUR),
        "Time limit of a call, and of the retries of a throttled call.",
    ),
];
