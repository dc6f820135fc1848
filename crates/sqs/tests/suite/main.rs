//! SQS, judged from outside, on two emulators.

// What is said of tests goes for the functions that they share: a failure there is the failure of a test.
#![allow(clippy::unwrap_used)]

mod calls;
mod dead_letters;
mod doctor;
mod elsewhere;
mod faults;
mod foreign;
mod lawful;
mod leases;
mod order;
mod partial;
mod queues;
mod stand_in;
mod sweep;
mod throttling;

use std::time::Duration;

use postrider_core::{Deadline, MessagingService, QueueAdmin, QueueName, QueuedMessage, ReceiveOptions};
use postrider_sqs::{SqsOptions, SqsProvider, SqsStore};

/// Who speaks SQS's protocol here.
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

/// Queues of a test's own: their names on the wire begin alike, and all of them are removed afterwards.
struct Place {
    emulator: Emulator,
    prefix: String,
}

impl Place {
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

    /// Removes the queues.
    async fn leave(self) {
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

/// Whether the long runs were asked for.
fn is_long() -> bool {
    std::env::var_os("POSTRIDER_LONG").is_some()
}
