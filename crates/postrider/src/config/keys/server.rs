//! A server that this program runs.

use std::time::Duration;

use super::{
    GIB, HOUR, Key, MILLISECOND, SECOND, SERVER_BYTES_IN_FLIGHT, SERVER_REQUEST_BYTES, SERVER_TLS_CERTIFICATE,
    SERVER_TLS_KEY, count, duration,
};
use crate::config::kind::Kind;

/// A request that may not even have this many bytes could not send a message.
const SMALLEST_REQUEST: u32 = 1024;

pub(super) const KEYS: &[Key] = &[
    Key {
        name: "server.listen",
        kind: Kind::Address(|draft| &mut draft.server.listen),
        meaning: "The listening address. One that other machines can reach needs a token.",
    },
    Key {
        name: SERVER_TLS_CERTIFICATE,
        kind: Kind::Path(|draft| &mut draft.server.tls_certificate),
        meaning: "The certificate (PEM) with its chain. With it, the server speaks only `https`.",
    },
    Key {
        name: SERVER_TLS_KEY,
        kind: Kind::Path(|draft| &mut draft.server.tls_key),
        meaning: "The certificate's key (PEM).",
    },
    count(
        SERVER_REQUEST_BYTES,
        |draft| &mut draft.server.max_request_bytes,
        (SMALLEST_REQUEST, GIB),
        "The largest body of a request.",
    ),
    count(
        SERVER_BYTES_IN_FLIGHT,
        |draft| &mut draft.server.max_bytes_in_flight,
        (SMALLEST_REQUEST, u32::MAX),
        "Upper bound of the bytes of request bodies and answers in memory, for all clients together; one client gets \
         at most half. Further requests wait a few seconds and are then answered with 503. The process needs a small \
         multiple of it.",
    ),
    count(
        "server.max_connections",
        |draft| &mut draft.server.max_connections,
        (1, 1_000_000),
        "Upper bound of connections. The last quarter is for addresses that have less than a quarter of all. A new \
         connection replaces an idle one; if all are busy, it waits.",
    ),
    Key {
        name: "server.requests_per_second",
        kind: Kind::Rate(|draft| &mut draft.server.requests_per_second),
        meaning: "Requests per second of each token, or of each address without one. 0 is no limit.",
    },
    duration(
        "server.head_timeout",
        |draft| &mut draft.server.head_timeout,
        (MILLISECOND, HOUR),
        "Time limit of a request's head.",
    ),
    duration(
        "server.body_timeout",
        |draft| &mut draft.server.body_timeout,
        (MILLISECOND, HOUR),
        "Time limit of a request's body.",
    ),
    duration(
        "server.write_timeout",
        |draft| &mut draft.server.write_timeout,
        (MILLISECOND, HOUR),
        "Longest time in which a client reads nothing of its answer before it is disconnected.",
    ),
    duration(
        "server.graceful_timeout",
        |draft| &mut draft.server.graceful_timeout,
        (Duration::ZERO, HOUR),
        "Time for running requests when the server stops.",
    ),
    duration(
        "server.sample_interval",
        |draft| &mut draft.server.sample_interval,
        (SECOND, HOUR),
        "Sampling interval of queues for the charts, the metrics and the live page.",
    ),
    Key {
        name: "server.otlp_endpoint",
        kind: Kind::Url(|draft| &mut draft.server.otlp_endpoint),
        meaning: "Target of traces by OTLP over HTTP, like `http://127.0.0.1:4318`. Without it none are sent.",
    },
];
