//! Connections over TLS.

use std::time::{Duration, Instant};

use postrider_conformance::processes::WorkerProcess;
use postrider_core::{
    DeadLetters, Message, MessagingError, MessagingService, Nack, QueueAdmin, QueueName, ReceiveOptions,
};
use postrider_rabbitmq::{RabbitmqOptions, RabbitmqProvider, RabbitmqStore};

use crate::{options, prefix, setting, soon, url};

fn encrypted() -> String {
    setting("POSTRIDER_AMQPS_URL")
}

/// Options that trust the authority of the broker's certificate, and use the management interface over TLS too.
fn trusting() -> RabbitmqOptions {
    RabbitmqOptions {
        ca_file: Some(setting("POSTRIDER_AMQPS_AUTHORITY")),
        management_url: Some(setting("POSTRIDER_AMQPS_MANAGEMENT_URL")),
        ..RabbitmqOptions::default()
    }
}

/// The URL with another host, and with the port of another URL.
fn elsewhere(url: &str, host: &str, port_of: &str) -> String {
    let mut url = url::Url::parse(url).unwrap();
    url.set_host(Some(host)).unwrap();
    url.set_port(url::Url::parse(port_of).unwrap().port()).unwrap();
    url.into()
}

fn other_authority() -> tempfile::NamedTempFile {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), OTHER_AUTHORITY).unwrap();
    file
}

async fn connect(url: &str, options: RabbitmqOptions) -> Result<RabbitmqProvider, MessagingError> {
    RabbitmqStore::new(url, options)?.connect().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_are_sent_settled_and_dead_lettered_over_tls() {
    let provider = connect(&encrypted(), trusting()).await.unwrap();
    let queue = QueueName::new(format!("{}_tls", prefix())).unwrap();
    let acked = provider.send_message(&queue, Message::new("to be acked"), soon()).await.unwrap();
    let dead = provider.send_message(&queue, Message::new("to die"), soon()).await.unwrap();
    for _ in 0..2 {
        let options = ReceiveOptions::default().wait(Duration::from_secs(15));
        let message = provider.receive_messages(&queue, &options, soon()).await.unwrap().pop().unwrap();
        match message.id() == acked {
            true => provider.ack_message(&queue, message, soon()).await.unwrap(),
            false => provider.nack_message(&queue, message, Nack::dead_letter("rejected"), soon()).await.unwrap(),
        }
    }
    assert_eq!(provider.get_dead_letter(&queue, dead, soon()).await.unwrap().reason.as_str(), "rejected");
    assert!(provider.list_queues(soon()).await.unwrap().contains(&queue));
    provider.delete_queue(&queue, soon()).await.unwrap();
    provider.close(soon()).await.unwrap();
}

#[tokio::test]
async fn a_certificate_that_is_not_trusted_is_refused_with_the_remedy() {
    let other = other_authority();
    let ca_file = Some(other.path().to_str().unwrap().to_owned());
    let by_address = elsewhere(&encrypted(), "127.0.0.1", &encrypted());
    for (url, options) in [
        (encrypted(), RabbitmqOptions { ca_file, ..trusting() }),
        // This machine does not trust its authority.
        (encrypted(), RabbitmqOptions { ca_file: None, ..trusting() }),
        (by_address, trusting()),
    ] {
        let begun = Instant::now();
        let error = connect(&url, options).await.unwrap_err();
        assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
        assert!(!error.is_retryable(), "{error:?}");
        let text = error.to_string();
        assert!(text.contains("not trusted") && text.contains("ca_file"), "{text}");
    }
    let missing = RabbitmqOptions { ca_file: Some("/no/such.pem".into()), ..trusting() };
    let text = connect(&encrypted(), missing).await.unwrap_err().to_string();
    assert!(text.contains("ca_file") && text.contains("/no/such.pem"), "{text}");
}

/// Set in a process whose machine trusts the broker's authority.
const IS_KNOWN: &str = "POSTRIDER_TEST_AUTHORITY_IS_KNOWN";

#[tokio::test]
async fn a_ca_file_replaces_the_authorities_of_the_machine() {
    // SSL_CERT_FILE names the file of the machine's authorities.
    let variables = [("SSL_CERT_FILE", setting("POSTRIDER_AMQPS_AUTHORITY")), (IS_KNOWN, "yes".to_owned())];
    let worker = WorkerProcess::start("tls::connects_where_the_authority_is_known", &variables).unwrap();
    let ended_well = tokio::task::spawn_blocking(|| worker.wait()).await.unwrap().unwrap();
    assert!(ended_well, "see above");
}

/// Runs in the other process; does nothing as a test of its own.
#[tokio::test]
async fn connects_where_the_authority_is_known() {
    if std::env::var_os(IS_KNOWN).is_none() {
        return;
    }
    let of_machine = RabbitmqOptions { ca_file: None, ..trusting() };
    let provider = connect(&encrypted(), of_machine.clone()).await.unwrap();
    // The management interface uses the same authorities.
    provider.list_queues(soon()).await.unwrap();
    provider.close(soon()).await.unwrap();
    let other = other_authority();
    let of_file = RabbitmqOptions { ca_file: Some(other.path().to_str().unwrap().to_owned()), ..of_machine };
    let error = connect(&encrypted(), of_file).await.unwrap_err();
    assert!(error.to_string().contains("not trusted"), "{error}");
}

#[tokio::test]
async fn a_wrong_scheme_for_a_port_fails_fast_and_names_the_right_one() {
    for (url, options, told) in [
        (elsewhere(&url(), "localhost", &encrypted()), options(), "amqps://"),
        (elsewhere(&encrypted(), "localhost", &url()), trusting(), "amqp://"),
    ] {
        let begun = Instant::now();
        let error = connect(&url, options).await.unwrap_err();
        assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
        assert!(error.to_string().contains(told), "{error}");
    }
}

/// An authority that has signed nothing; its key was not kept.
const OTHER_AUTHORITY: &str = "\
-----BEGIN CERTIFICATE-----
MIIBjzCCATWgAwIBAgIUQmDf8le6EprbWDEAzQSyQDGiEiswCgYIKoZIzj0EAwIw
HDEaMBgGA1UEAwwRQW5vdGhlciBhdXRob3JpdHkwIBcNMjYxMTE2MTYwNzAxWhgP
MjEyNjEwMjMxNjA3MDFaMBwxGjAYBgNVBAMMEUFub3RoZXIgYXV0aG9yaXR5MFkw
EwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAESenda5o6zkM1WJ2JAT/DkaWSqoUjsXwI
J4xbn1nk5iYkWIIxqnlYqwnV913CkxYtwtFjUdyED28SzXaC6PDiqqNTMFEwHQYD
VR0OBBYEFOOaCOJmJo+5dPLyJhA3zQWBjt9gMB8GA1UdIwQYMBaAFOOaCOJmJo+5
dPLyJhA3zQWBjt9gMA8GA1UdEwEB/wQFMAMBAf8wCgYIKoZIzj0EAwIDSAAwRQIg
YowLjbY098/F1/Sw7qz7qj3kg4foAHqeo1+Rmlwb0gsCIQD3Cmk7DnZq7AQ6RNGl
QS2snnjSMCtqyFc9eHsRft/PnA==
-----END CERTIFICATE-----
";
