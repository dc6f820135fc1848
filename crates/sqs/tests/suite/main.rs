//! Tests of the provider against two emulators of SQS.

// A failure in a shared function is the failure of a test.
#![allow(clippy::unwrap_used)]

mod calls;
mod dead_letters;
mod doctor;
mod fake_endpoint;
mod faults;
mod foreign;
mod lawful;
mod leases;
mod order;
mod other_process;
mod partial;
mod queues;
mod sweep;
mod throttling;

use std::time::Duration;

use postrider_core::{Deadline, MessagingService, QueueAdmin, QueueName, QueuedMessage, ReceiveOptions};
use postrider_sqs::{SqsOptions, SqsProvider, SqsStore};

/// An emulator of SQS.
#[derive(Debug, Clone, Copy)]
enum Emulator {
    Ministack,
    Moto,
}

impl Emulator {
    const ALL: [Self; 2] = [Self::Ministack, Self::Moto];

    fn url(self) -> String {
        let (name, service) = match self {
            Self::Ministack => ("POSTRIDER_SQS_URL", "sqs"),
            Self::Moto => ("POSTRIDER_SQS_MOTO_URL", "sqs-moto"),
        };
        std::env::var(name).unwrap_or_else(|_| {
            panic!("{name} is not set: start it with `scripts/services up {service}`, then `eval \"$(scripts/services env)\"`")
        })
    }
}

/// The queues of one test, with a unique prefix.
struct TestStore {
    emulator: Emulator,
    prefix: String,
}

impl TestStore {
    fn new(emulator: Emulator) -> Self {
        Self { emulator, prefix: format!("t{:012x}-", rand::random::<u64>() >> 16) }
    }

    fn url(&self) -> String {
        format!("{}{}", self.emulator.url(), self.prefix)
    }

    async fn connect_with(&self, options: SqsOptions) -> SqsProvider {
        SqsStore::open(&self.url(), options).await.expect("the emulator answers").connect().expect("a connection")
    }

    async fn connect(&self) -> SqsProvider {
        self.connect_with(SqsOptions::default()).await
    }

    /// Deletes the queues.
    async fn delete_queues(self) {
        let provider = self.connect().await;
        for queue in provider.list_queues(soon()).await.unwrap() {
            provider.delete_queue(&queue, soon()).await.unwrap();
        }
    }
}

fn queue(name: &str) -> QueueName {
    QueueName::new(name).expect("a queue's name")
}

fn soon() -> Deadline {
    Deadline::default()
}

/// Waits for a message.
async fn take(provider: &SqsProvider, queue: &QueueName) -> QueuedMessage {
    let options = ReceiveOptions::default().wait(Duration::from_secs(15));
    let received = provider.receive_messages(queue, &options, soon()).await.unwrap();
    received.into_iter().next().expect("a message")
}

/// Whether POSTRIDER_LONG selects the long runs.
fn is_long() -> bool {
    std::env::var_os("POSTRIDER_LONG").is_some()
}
