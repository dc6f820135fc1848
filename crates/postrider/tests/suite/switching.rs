//! The same program on every store, changed only by its configuration.

use std::time::{Duration, Instant};

use postrider::config::{Config, Sources};
use postrider::{
    DeadLetterQuery, DeadLetters, Deadline, Feature, Message, MessagingProvider, MessagingService, Nack, QueueAdmin,
    QueueName, QueuedMessage, ReceiveOptions, Redrive, Settlement,
};
use tempfile::TempDir;

use crate::server::{postgres_client, server_url};

/// A store as named in a configuration.
struct Store {
    provider: &'static str,
    /// Its URL; `None` for memory.
    url: Option<String>,
    /// Further lines of its section.
    settings: String,
}

impl Store {
    fn at(provider: &'static str, variable: &str) -> Self {
        Self { provider, url: Some(server_url(variable)), settings: String::new() }
    }

    fn with(self, settings: impl Into<String>) -> Self {
        Self { settings: settings.into(), ..self }
    }

    /// Every store.
    fn all(folder: &TempDir, schema: &str) -> Vec<Self> {
        let file = format!("sqlite:{}", folder.path().join("switched.db").display());
        let spool = format!("spool:{}", folder.path().join("switched").display());
        let management = std::env::var("POSTRIDER_AMQP_MANAGEMENT_URL").unwrap_or_default();
        vec![
            Self { provider: "memory", url: None, settings: String::new() },
            Self { provider: "sqlite", url: Some(file), settings: String::new() },
            Self { provider: "spool", url: Some(spool), settings: String::new() },
            Self::at("postgres", "POSTRIDER_POSTGRES_URL").with(format!("schema = '{schema}'")),
            Self::at("mysql", "POSTRIDER_MYSQL_URL"),
            Self::at("pgmq", "POSTRIDER_PGMQ_URL").with(format!("schema = '{schema}'")),
            Self::at("rabbitmq", "POSTRIDER_AMQP_URL").with(format!("management_url = '{management}'")),
            Self::at("sqs", "POSTRIDER_SQS_URL"),
        ]
    }

    /// Named by `url` alone.
    fn by_url(&self) -> String {
        let url = self.url.as_deref().unwrap_or("memory:");
        format!("[common.messaging]\nurl = '{url}'\n{}", self.section(String::new()))
    }

    /// Named by `provider`, with the address in its section.
    fn by_provider(&self) -> String {
        let address = match (self.provider, &self.url) {
            (_, None) => String::new(),
            ("sqlite", Some(url)) => format!("path = '{}'", url.trim_start_matches("sqlite:")),
            ("spool", Some(url)) => format!("path = '{}'", url.trim_start_matches("spool:")),
            (_, Some(url)) => format!("url = '{url}'"),
        };
        format!("[common.messaging]\nprovider = '{}'\n{}", self.provider, self.section(address))
    }

    fn section(&self, address: String) -> String {
        match self.provider {
            "memory" => String::new(),
            provider => format!("[common.messaging.{provider}]\n{address}\n{}\n", self.settings),
        }
    }
}

fn soon() -> Deadline {
    Deadline::default()
}

/// A program that does not depend on a store.
struct Program {
    provider: MessagingProvider,
    queue: QueueName,
}

impl Program {
    async fn configured(toml: &str, folder: &TempDir) -> Self {
        let file = folder.path().join("postrider.toml");
        std::fs::write(&file, toml).unwrap();
        let config = Config::load(&Sources::none().file(file)).unwrap();
        let provider = config.endpoint().unwrap().connect().await.unwrap();
        let name = format!("sw_{}", &postrider::MessageId::generate().as_uuid().simple().to_string()[20..]);
        Self { provider, queue: QueueName::new(name).unwrap() }
    }

    async fn send(&self, message: Message) {
        self.provider.send_message(&self.queue, message, soon()).await.unwrap();
    }

    /// The next messages, waited for.
    async fn receive(&self, count: usize) -> Vec<QueuedMessage> {
        let mut received = Vec::new();
        while received.len() < count {
            let options = ReceiveOptions::batch(count - received.len()).wait(Duration::from_secs(20));
            let more = self.provider.receive_messages(&self.queue, &options, soon()).await.unwrap();
            assert!(!more.is_empty(), "{} of {count} messages came", received.len());
            received.extend(more);
        }
        received
    }

    async fn one(&self) -> QueuedMessage {
        self.receive(1).await.remove(0)
    }

    async fn settle(&self, settlement: Settlement) {
        self.provider.settle(vec![settlement], soon()).await.unwrap().remove(0).unwrap();
    }

    async fn run(self) {
        // Plain.
        self.send(Message::new("plain").header("kind", "first").unwrap()).await;
        let plain = self.one().await;
        assert_eq!((&plain.message[..], plain.envelope.receive_count), (&b"plain"[..], 1));
        assert_eq!(plain.envelope.headers.get("kind"), Some("first"));
        self.settle(Settlement::ack(plain)).await;

        // Delayed.
        let (before, delay) = (Instant::now(), Duration::from_millis(300));
        self.send(Message::new("late").delay(delay)).await;
        let late = self.one().await;
        assert_eq!(&late.message[..], b"late");
        assert!(before.elapsed() >= delay, "it came after {:?}", before.elapsed());
        self.settle(Settlement::ack(late)).await;

        let at_once = ReceiveOptions::batch(1);
        // Keyed: one at a time, in order, and a retry blocks its key.
        for body in ["a", "b"] {
            self.send(Message::new(body).ordering_key("customer").unwrap()).await;
        }
        let first = self.one().await;
        assert_eq!(&first.message[..], b"a");
        assert!(self.provider.receive_messages(&self.queue, &at_once, soon()).await.unwrap().is_empty());
        self.settle(Settlement::nack(
            first.into_receipt(),
            Nack::retry_after(Duration::from_millis(50)).with_error("again"),
        ))
        .await;
        for body in ["a", "b"] {
            let next = self.one().await;
            assert_eq!(next.message, body.as_bytes());
            self.settle(Settlement::ack(next)).await;
        }

        // Retried, dead-lettered, redriven.
        self.send(Message::new("poison")).await;
        let poison = self.one().await;
        let id = poison.id();
        self.settle(Settlement::nack(poison.into_receipt(), Nack::retry_after(Duration::ZERO).with_error("broke")))
            .await;
        let poison = self.one().await;
        assert_eq!((poison.id(), poison.envelope.attempts_count), (id, 1));
        self.settle(Settlement::nack(poison.into_receipt(), Nack::dead_letter("poison").with_error("broke again")))
            .await;
        let letter = self.provider.get_dead_letter(&self.queue, id, soon()).await.unwrap();
        assert_eq!((letter.reason.as_str(), letter.error.as_deref()), ("poison", Some("broke again")));
        let page = self.provider.list_dead_letters(&self.queue, &DeadLetterQuery::default(), soon()).await.unwrap();
        assert_eq!(page.letters.len(), 1);
        assert_eq!(self.counts().await, (0, 1));
        let redriven = self.provider.redrive_dead_letters(&self.queue, &Redrive::default(), soon()).await.unwrap();
        assert_eq!((redriven.redriven, redriven.skipped.len()), (vec![id], 0));
        let again = self.one().await;
        assert_eq!((again.id(), again.envelope.receive_count), (id, 1));
        self.settle(Settlement::ack(again)).await;
        assert_eq!(self.counts().await, (0, 0));

        // A store refuses what it does not support.
        let urgent = Message::new("urgent").priority(postrider::Priority::new(9).unwrap());
        let sent = self.provider.send_message(&self.queue, urgent, soon()).await;
        assert_eq!(sent.is_ok(), self.provider.capabilities().offers(Feature::Priority));

        self.provider.delete_queue(&self.queue, soon()).await.unwrap();
        self.provider.close(soon()).await.unwrap();
    }

    /// The numbers of ready and dead messages. Brokers count with a delay.
    async fn counts(&self) -> (u64, u64) {
        let stats = self.provider.queue_stats(&self.queue, soon()).await.unwrap();
        (stats.ready.value().unwrap(), stats.dead.value().unwrap())
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_program_runs_on_every_store_that_the_configuration_names() {
    let folder = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
    let schema = format!("switched_{}", std::process::id());
    for store in Store::all(&folder, &schema) {
        for toml in [store.by_url(), store.by_provider()] {
            let program = Program::configured(&toml, &folder).await;
            assert_eq!(program.provider.provider_name(), store.provider);
            tokio::time::timeout(Duration::from_secs(60), program.run())
                .await
                .unwrap_or_else(|_| panic!("{} took too long", store.provider));
        }
    }
    for variable in ["POSTRIDER_POSTGRES_URL", "POSTRIDER_PGMQ_URL"] {
        let client = postgres_client(&server_url(variable)).await;
        client.batch_execute(&format!("drop schema {schema} cascade")).await.unwrap();
    }
}
