//! A Postrider server.

use super::{HOUR, HTTP_TOKEN, HTTP_URL, Key, MILLISECOND, seconds};
use crate::config::kind::Kind;

pub(super) const KEYS: &[Key] = &[
    Key {
        name: HTTP_URL,
        kind: Kind::Url(|draft| &mut draft.store.http_url),
        meaning: "The server's address, like `http://host:8025` or `https://host/path`. Without it: a server on this \
                  machine.",
    },
    Key {
        name: HTTP_TOKEN,
        kind: Kind::Secret(|draft| &mut draft.common.messaging.http.token),
        meaning: "The token of this program, as printed by `postrider token create`. A server without tokens needs \
                  none.",
    },
    Key {
        name: "common.messaging.http.ca_file",
        kind: Kind::Path(|draft| &mut draft.common.messaging.http.ca_file),
        meaning: "CA certificates (PEM) for an `https` server's certificate. Without it: the system's.",
    },
    seconds(
        "common.messaging.http.connection_timeout_seconds",
        |draft| &mut draft.common.messaging.http.connection_timeout,
        (MILLISECOND, HOUR),
        "Time limit of connecting.",
    ),
];
