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
        meaning: "Where it listens. Any address that other machines can reach needs a token.",
    },
    Key {
        name: SERVER_TLS_CERTIFICATE,
        kind: Kind::Path(|draft| &mut draft.server.tls_certificate),
        meaning: "The certificate (PEM), and those that vouch for it. With it, the server speaks `https` alone.",
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
        "How many bytes of request bodies and answers are held at once, by all clients together and half of it by one. \
         More wait a few seconds for room and are then answered 503. The process needs a small multiple of it.",
    ),
    count(
        "server.max_connections",
        |draft| &mut draft.server.max_connections,
        (1, 1_000_000),
        "How many connections there are at once. The last quarter is for addresses that have less than a quarter of all. \
         A newcomer takes the place of a connection on which nothing is asked; where all are busy, it waits.",
    ),
    Key {
        name: "server.requests_per_second",
        kind: Kind::Rate(|draft| &mut draft.server.requests_per_second),
        meaning: "How many requests a second each token, or address where there is none, may make. 0 is no limit.",
    },
    duration(
        "server.head_timeout",
        |draft| &mut draft.server.head_timeout,
        (MILLISECOND, HOUR),
        "How long the head of a request may take to arrive.",
    ),
    duration(
        "server.body_timeout",
        |draft| &mut draft.server.body_timeout,
        (MILLISECOND, HOUR),
        "How long the body of a request may take to arrive.",
    ),
    duration(
        "server.write_timeout",
        |draft| &mut draft.server.write_timeout,
        (MILLISECOND, HOUR),
        "How long a client may read nothing of its answer before it is given up.",
    ),
    duration(
        "server.graceful_timeout",
        |draft| &mut draft.server.graceful_timeout,
        (Duration::ZERO, HOUR),
        "How long running requests have when the server stops.",
    ),
    duration(
        "server.sample_interval",
        |draft| &mut draft.server.sample_interval,
        (SECOND, HOUR),
        "How often queues are looked at, for the charts, the metrics and the live page.",
    ),
    Key {
        name: "server.otlp_endpoint",
        kind: Kind::Url(|draft| &mut draft.server.otlp_endpoint),
        meaning: "Where traces are sent to by OTLP over HTTP, like `http://127.0.0.1:4318`. Without it none are sent.",
    },
];
