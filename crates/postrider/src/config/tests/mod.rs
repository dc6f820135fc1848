use std::num::NonZeroU32;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use postrider_core::RetryStrategy;

use super::reference::EXAMPLE;
use super::*;

mod precedence;
mod refused;
mod sections;
mod stores;
mod strategies;

/// A temporary folder, removed on drop.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let name = format!("postrider-config-{}-{}", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn write(&self, name: &str, text: impl AsRef<[u8]>) -> PathBuf {
        let path = self.0.join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, text).unwrap();
        path
    }

    /// The text without the folder's path, which differs in every run.
    fn without(&self, text: impl ToString) -> String {
        text.to_string().replace(&format!("{}/", self.0.display()), "")
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn defaults() -> Sources {
    Sources::none().data_folder("/home/ann/.local/share/postrider")
}

fn load(toml: &str) -> Result<Config, ConfigError> {
    let folder = Folder::new();
    Config::load(&defaults().file(folder.write("postrider.toml", toml)))
}

#[test]
fn without_any_source_everything_has_its_default() {
    let config = Config::load(&defaults()).unwrap();
    assert_eq!(config.url().as_str(), "sqlite:/home/ann/.local/share/postrider/postrider.db");
    assert_eq!(config.state_url().unwrap(), config.url());
    assert_eq!(config.provider(), Some(ProviderKind::Sqlite));
    assert_eq!(*config.common(), CommonConfig::default());
    let options = config.common().messaging.receive_options();
    assert_eq!((options.max, options.visibility, options.max_receive_count), (10, Duration::from_secs(30), 3));
}

#[test]
fn what_is_in_use_can_be_shown_without_its_secrets() {
    let folder = Folder::new();
    let file = folder.write(
        "postrider.toml",
        "[common.messaging]\nprovider = 'rabbitmq'\nrabbitmq.url = 'amqp://rider:secret@broker/'\n\
         [common.retry]\nstrategy = 'constant'\ndelay = '90s'\n",
    );
    let sources = defaults()
        .file(file)
        .environment([("POSTRIDER__STATE__URL", "postgres://rider:secret@host/state?sslpassword=secret")])
        .flag("--visibility", "common.messaging.default_visibility_timeout_seconds", "0.25");
    let config = Config::load(&sources).unwrap();
    let row = |row: &Row| {
        format!("{} = {} ({})\n", row.key, row.value.as_deref().unwrap_or("-"), folder.without(&row.origin))
    };
    let shown: String = config.describe().iter().map(row).collect();
    assert!(!shown.contains("secret") && !format!("{config:?} {sources:?}").contains("secret"));
    assert!(config.describe().iter().all(|row| !row.meaning.is_empty()));
    insta::assert_snapshot!(shown);
}

#[test]
fn a_value_that_belongs_to_another_store_is_shown_to_have_no_effect() {
    let config = load("[common.messaging]\nrabbitmq.vhost = 'mail'\n").unwrap();
    let of = |config: &Config, key: &str| {
        config.describe().iter().find(|row| row.key == key).and_then(|row| row.without_effect.clone())
    };
    let rabbitmq = match cfg!(feature = "rabbitmq") {
        true => "takes effect when messages are kept in rabbitmq",
        false => "takes effect when messages are kept in rabbitmq, which this program cannot do",
    };
    assert_eq!(of(&config, "common.messaging.rabbitmq.vhost").as_deref(), Some(rabbitmq));
    if cfg!(feature = "http") {
        let http = of(&config, keys::HTTP_TOKEN);
        assert_eq!(http.as_deref(), Some("takes effect when messages are kept by a server"));
    }
    assert_eq!(of(&config, "common.messaging.max_message_bytes"), None);
    assert_eq!(of(&config, "common.messaging.dead_letter.enabled"), None);
    let memory = load("[common.messaging]\nprovider = 'memory'\n").unwrap();
    let archive = "common.messaging.sqlite.archive";
    if cfg!(feature = "sqlite") {
        assert_eq!(of(&config, archive), None);
        assert_eq!(of(&memory, archive), None, "tasks are in the embedded file");
        let server = load("[common.messaging]\nurl = 'postgres://host/mail'\n").unwrap();
        assert_eq!(of(&server, archive).as_deref(), Some("takes effect when messages or tasks are kept in sqlite"));
    }
}

#[test]
fn one_receive_may_not_ask_for_more_than_is_configured() {
    let messaging = MessagingConfig::default();
    assert_eq!(messaging.receive_options_for(100).unwrap().max, 100);
    let text = messaging.receive_options_for(101).unwrap_err().to_string();
    assert!(text.contains("common.messaging.max_batch_size, 100"), "{text}");
}

#[test]
fn the_example_of_the_page_can_be_read() {
    let config = load(EXAMPLE).unwrap();
    assert_eq!(config.url().as_str(), "sqlite:/var/lib/postrider/mail.db");
    assert_eq!(config.common().retry.max_attempts(), NonZeroU32::new(5));
}
