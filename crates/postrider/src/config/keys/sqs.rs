//! SQS.

use super::{HOUR, Key, MILLISECOND, SQS_URL, count, seconds};
use crate::config::kind::Kind;

pub(super) const KEYS: &[Key] = &[
    Key {
        name: SQS_URL,
        kind: Kind::Url(|draft| &mut draft.asked.sqs_url),
        meaning: "Where the queues are, like `sqs://region/prefix` or `sqs+http://host:port/prefix`. Credentials come from \
                  the AWS environment, profile or role.",
    },
    count(
        "common.messaging.sqs.parallel_calls",
        |draft| &mut draft.common.messaging.sqs.parallel_calls,
        (1, 1000),
        "How many calls, of ten messages each, are under way at the same time for one batch.",
    ),
    seconds(
        "common.messaging.sqs.connection_timeout_seconds",
        |draft| &mut draft.common.messaging.sqs.connection_timeout,
        (MILLISECOND, HOUR),
        "How long connecting may take.",
    ),
    seconds(
        "common.messaging.sqs.call_timeout_seconds",
        |draft| &mut draft.common.messaging.sqs.call_timeout,
        (MILLISECOND, HOUR),
        "How long SQS may take to answer, and for how long a call that it throttles is tried again.",
    ),
];
