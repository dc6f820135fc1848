//! What a command learns about its message from its environment.

use std::path::{Path, PathBuf};

use postrider::Envelope;
use tokio::process::Command;

/// Linux takes no longer string than 128 KiB, and one that is too long would keep the command from starting.
const LONGEST: usize = 96 * 1024;

const HEADER: &str = "POSTRIDER_HEADER_";
const OMITTED: &str = "POSTRIDER_OMITTED";
/// Variables that not every message has: those of an outer handler must not shine through.
const OPTIONAL: &[&str] =
    &[OMITTED, "POSTRIDER_HEADERS", "POSTRIDER_ORDERING_KEY", "POSTRIDER_DEDUP_KEY", "POSTRIDER_EXPIRES_AT"];

/// Where a command finds the store that its message came from, when it was named.
#[derive(Debug, Clone, Default)]
pub(super) struct Store {
    pub(super) url: Option<String>,
    pub(super) config: Option<PathBuf>,
}

impl Store {
    /// What `--url` and `--config` say, or their variables. Paths are made absolute: a command may change its folder.
    pub(super) fn of(url: Option<&str>, config: Option<&Path>) -> Self {
        let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty());
        let url = url.map(str::to_owned).or_else(|| variable("POSTRIDER_URL")?.into_string().ok());
        let config = config.map(Path::to_owned).or_else(|| variable("POSTRIDER_CONFIG").map(PathBuf::from));
        Self { url: url.map(absolute_url), config: config.map(|file| std::path::absolute(&file).unwrap_or(file)) }
    }
}

fn absolute_url(url: String) -> String {
    let Some((scheme @ ("sqlite" | "spool"), path)) = url.split_once(':') else { return url };
    let absolute = Some(path).filter(|path| !path.is_empty()).and_then(|path| std::path::absolute(path).ok());
    // A folder whose name is no text cannot be in a URL.
    match absolute.as_deref().and_then(Path::to_str) {
        Some(path) => format!("{scheme}:{path}"),
        None => url,
    }
}

/// Sets what the command learns.
pub(super) fn prepare(command: &mut Command, envelope: &Envelope, store: &Store) {
    for (name, _) in std::env::vars_os() {
        if name.to_str().is_some_and(|name| name.starts_with(HEADER) || OPTIONAL.contains(&name)) {
            command.env_remove(name);
        }
    }
    if let Some(url) = &store.url {
        command.env("POSTRIDER_URL", url);
    }
    if let Some(config) = &store.config {
        command.env("POSTRIDER_CONFIG", config);
    }
    command.envs(variables(envelope));
}

fn variables(envelope: &Envelope) -> Vec<(String, String)> {
    let mut all = vec![
        ("POSTRIDER_MESSAGE_ID".to_owned(), envelope.id.to_string()),
        ("POSTRIDER_QUEUE".to_owned(), envelope.queue.to_string()),
        ("POSTRIDER_CONTENT_TYPE".to_owned(), envelope.content_type.to_string()),
        ("POSTRIDER_PRIORITY".to_owned(), envelope.priority.get().to_string()),
        ("POSTRIDER_ENQUEUED_AT".to_owned(), envelope.enqueued_at.to_string()),
        ("POSTRIDER_RECEIVE_COUNT".to_owned(), envelope.receive_count.to_string()),
        ("POSTRIDER_ATTEMPT".to_owned(), envelope.attempts_count.saturating_add(1).to_string()),
    ];
    let mut optional = |name: &str, value: Option<String>| all.extend(value.map(|value| (name.to_owned(), value)));
    optional("POSTRIDER_ORDERING_KEY", envelope.ordering_key.as_ref().map(|key| key.as_str().to_owned()));
    optional("POSTRIDER_DEDUP_KEY", envelope.dedup_key.as_ref().map(|key| key.as_str().to_owned()));
    optional("POSTRIDER_EXPIRES_AT", envelope.expires_at.map(|time| time.to_string()));
    // Headers are text with text names, which always can be written as JSON.
    optional("POSTRIDER_HEADERS", serde_json::to_string(&envelope.headers).ok());
    all.extend(envelope.headers.iter().map(|(name, value)| (variable_of(name), value.to_owned())));

    let (fitting, omitted): (Vec<_>, Vec<_>) =
        all.into_iter().partition(|(_, value)| value.len() <= LONGEST && !value.contains('\0'));
    let mut variables = fitting;
    if !omitted.is_empty() {
        let names: Vec<_> = omitted.into_iter().map(|(name, _)| name).collect();
        variables.push((OMITTED.to_owned(), names.join(",")));
    }
    variables
}

/// `trace-id` is `POSTRIDER_HEADER_TRACE_ID`.
fn variable_of(header: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_uppercase() } else { '_' };
    HEADER.chars().chain(header.chars().map(plain)).collect()
}

#[cfg(test)]
mod tests {
    use postrider::{ContentType, Headers, MessageId, Priority, QueueName, Timestamp};

    use super::*;

    #[test]
    fn only_paths_of_files_are_made_absolute() {
        let here = std::env::current_dir().unwrap();
        assert_eq!(absolute_url("sqlite:shop.db".into()), format!("sqlite:{}", here.join("shop.db").display()));
        assert_eq!(absolute_url("spool:shop".into()), format!("spool:{}", here.join("shop").display()));
        for url in ["sqlite:/shop.db", "spool:/shop", "sqlite:", "postgres://host/shop", "memory:"] {
            assert_eq!(absolute_url(url.into()), url);
        }
        let store = Store::of(Some("sqlite:/a.db"), Some(Path::new("postrider.toml")));
        assert_eq!(store.config, Some(here.join("postrider.toml")));
    }

    #[test]
    fn what_does_not_fit_is_left_out_and_named() {
        let mut headers = Headers::new();
        headers.insert("trace-id", "t").unwrap();
        headers.insert("long", "\n".repeat(LONGEST - 1)).unwrap();
        let envelope = Envelope {
            id: MessageId::generate(),
            queue: QueueName::new("orders").unwrap(),
            content_type: ContentType::JSON,
            headers,
            ordering_key: None,
            dedup_key: None,
            priority: Priority::default(),
            expires_at: None,
            receive_count: 4,
            attempts_count: 2,
            enqueued_at: Timestamp::EPOCH,
            first_attempt_at: Timestamp::EPOCH,
            lease_expires_at: Timestamp::EPOCH,
        };
        let variables = variables(&envelope);
        let get = |name: &str| variables.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str());
        assert_eq!(get("POSTRIDER_HEADER_TRACE_ID"), Some("t"));
        assert_eq!(get("POSTRIDER_ATTEMPT"), Some("3"));
        assert_eq!(get("POSTRIDER_RECEIVE_COUNT"), Some("4"));
        assert_eq!(get("POSTRIDER_ORDERING_KEY"), None);
        assert_eq!(get("POSTRIDER_HEADER_LONG").map(str::len), Some(LONGEST - 1));
        // As JSON every line end is two characters.
        assert_eq!((get("POSTRIDER_HEADERS"), get(OMITTED)), (None, Some("POSTRIDER_HEADERS")));
    }
}
