//! A Postrider server.

use super::{HOUR, HTTP_TOKEN, HTTP_URL, Key, MILLISECOND, seconds};
use crate::config::kind::Kind;

pub(super) const KEYS: &[Key] = &[
    Key {
        name: HTTP_URL,
        kind: Kind::Url(|draft| &mut draft.asked.http_url),
        meaning: "The server's address, like `http://host:8025` or `https://host/path`. Without it: the one of a server on \
                  this machine.",
    },
    Key {
        name: HTTP_TOKEN,
        kind: Kind::Secret(|draft| &mut draft.common.messaging.http.token),
        meaning: "The token that the server knows this program by, as `postrider token create` printed it. An open server \
                  needs none.",
    },
    Key {
        name: "common.messaging.http.ca_file",
        kind: Kind::Path(|draft| &mut draft.common.messaging.http.ca_file),
        meaning: "The certificates (PEM) that an `https` server's is checked against. Without it: the system's.",
    },
    seconds(
        "common.messaging.http.connection_timeout_seconds",
        |draft| &mut draft.common.messaging.http.connection_timeout,
        (MILLISECOND, HOUR),
        "How long connecting may take.",
    ),
];
