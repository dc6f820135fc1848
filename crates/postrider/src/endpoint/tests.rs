use postrider_core::{Deadline, Message, MessagingService, QueueAdmin, QueueName, ReceiveOptions};

use super::*;

#[tokio::test]
async fn connections_to_one_endpoint_share_its_store() {
    let endpoint: Endpoint = "memory:".parse().unwrap();
    let queue = QueueName::new("orders").unwrap();
    let (a, b) = (endpoint.connect().await.unwrap(), endpoint.connect().await.unwrap());
    a.send_message(&queue, Message::new("one"), Deadline::default()).await.unwrap();
    let options = ReceiveOptions::default();
    assert_eq!(b.receive_messages(&queue, &options, Deadline::default()).await.unwrap().len(), 1);
    let other = connect("memory:").await.unwrap();
    assert!(other.receive_messages(&queue, &options, Deadline::default()).await.unwrap().is_empty());
}

#[tokio::test]
async fn a_file_keeps_what_was_sent_for_the_next_connection() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", folder.path().join("queues.db").display());
    let queue = QueueName::new("orders").unwrap();
    let first = connect(&url).await.unwrap();
    let id = first.send_message(&queue, Message::new("one"), Deadline::default()).await.unwrap();
    first.close(Deadline::default()).await.unwrap();
    let second = connect(&url).await.unwrap();
    let options = ReceiveOptions::default();
    let received = second.receive_messages(&queue, &options, Deadline::default()).await.unwrap();
    assert_eq!(received[0].id(), id);
    second.close(Deadline::default()).await.unwrap();
}

#[tokio::test]
async fn connections_to_a_folder_share_its_index() {
    let folder = tempfile::tempdir().unwrap();
    let endpoint: Endpoint = format!("spool:{}", folder.path().join("new/queues").display()).parse().unwrap();
    assert!(endpoint.is_new());
    assert_eq!(endpoint.pending_migrations().await.unwrap(), []);
    assert_eq!(endpoint.migrate().await.unwrap(), []);
    assert!(endpoint.is_new(), "a check made the folder");
    let found = endpoint.examine(Deadline::default()).await.unwrap();
    assert_eq!(found[0].severity, postrider_core::Severity::Problem, "{found:?}");
    assert!(endpoint.is_new(), "a check made the folder");

    let queue = QueueName::new("orders").unwrap();
    let (a, b) = (endpoint.connect().await.unwrap(), endpoint.absolute().connect().await.unwrap());
    assert!(!endpoint.is_new());
    let Kind::Spool { store, .. } = &endpoint.0 else { panic!("{endpoint}") };
    assert!(store.initialized());
    let id = a.send_message(&queue, Message::new("one"), Deadline::default()).await.unwrap();
    a.close(Deadline::default()).await.unwrap();
    let received = b.receive_messages(&queue, &ReceiveOptions::default(), Deadline::default()).await.unwrap();
    assert_eq!(received[0].id(), id);
    drop(received);
    b.close(Deadline::default()).await.unwrap();
    let other = connect(&endpoint.to_string()).await.unwrap();
    assert_eq!(other.list_queues(Deadline::default()).await.unwrap(), [queue]);
    other.close(Deadline::default()).await.unwrap();
}

#[tokio::test]
async fn missing_migrations_are_listed_and_applied() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("deep/er/queues.db");
    let endpoint: Endpoint = format!("sqlite:{}", file.display()).parse().unwrap();
    assert!(endpoint.migrate().await.unwrap_err().to_string().contains("does not exist; create it"));

    let endpoint = endpoint.in_default_folder();
    let pending = endpoint.pending_migrations().await.unwrap();
    assert!(pending[0].sql.contains("create table") && !file.exists());
    assert!(!folder.path().join("deep").exists(), "a check made the folder");
    assert!(endpoint.is_new());
    assert_eq!(endpoint.migrate().await.unwrap(), pending);
    assert_eq!(endpoint.pending_migrations().await.unwrap(), []);
    assert!(!endpoint.is_new());
    assert_eq!("memory:".parse::<Endpoint>().unwrap().migrate().await.unwrap(), []);
}

#[tokio::test]
async fn an_unreachable_server_is_reported_by_every_check() {
    // No process listens on a port that was free a moment ago.
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let endpoint: Endpoint = format!("http://{free}").parse().unwrap();
    assert!(!endpoint.is_new());
    assert_eq!(endpoint.absolute().to_string(), format!("http://{free}"));
    let away = |error: MessagingError| assert!(matches!(error, MessagingError::Connection { .. }), "{error:?}");
    away(endpoint.connect().await.unwrap_err());
    away(endpoint.migrate().await.unwrap_err());
    away(endpoint.pending_migrations().await.unwrap_err());
    let found = endpoint.examine(Deadline::default()).await.unwrap();
    assert_eq!((found.len(), found[0].severity), (1, postrider_core::Severity::Problem), "{found:?}");
}

#[test]
fn the_password_of_a_database_is_not_shown() {
    for scheme in
        ["postgres", "postgresql", "mysql", "mariadb", "pgmq+postgres", "pgmq+postgresql", "amqp", "amqps", "https"]
    {
        let endpoint: Endpoint = format!("{scheme}://rider:secret@host/mail").parse().unwrap();
        assert_eq!(endpoint.to_string(), format!("{scheme}://rider:***@host/mail"));
        assert!(!format!("{endpoint:?}").contains("secret"));
    }
}

#[test]
fn a_file_has_its_url_and_an_absolute_one() {
    let shown = |url: &str| url.parse::<Endpoint>().unwrap().to_string();
    assert_eq!(shown("sqlite:/srv/queues.db"), "sqlite:/srv/queues.db");
    assert_eq!(shown("sqlite:///srv/queues.db"), "sqlite:/srv/queues.db");
    assert_eq!(shown("sqlite:queues.db"), "sqlite:queues.db");
    let absolute = "sqlite:a/queues.db".parse::<Endpoint>().unwrap().absolute().to_string();
    assert_eq!(absolute, format!("sqlite:{}/a/queues.db", std::env::current_dir().unwrap().display()));
    assert_eq!(absolute.parse::<Endpoint>().unwrap().to_string(), absolute);
    assert_eq!(shown("spool:/srv/queues"), "spool:/srv/queues");
    assert_eq!(shown("spool:///srv/queues"), "spool:/srv/queues");
    let absolute = "spool:a/queues".parse::<Endpoint>().unwrap().absolute().to_string();
    assert_eq!(absolute, format!("spool:{}/a/queues", std::env::current_dir().unwrap().display()));
}

#[test]
fn the_error_of_an_unusable_url_names_usable_forms() {
    let forms = "use memory: or sqlite:/path/file.db or spool:/path or postgres://user@host/database or \
                 mysql://user@host/database or pgmq+postgres://user@host/database or amqp://user@host/vhost or \
                 sqs://region/prefix or http://host:port";
    for (url, text) in [
        ("orders", &*format!("'orders' has no scheme; {forms}")),
        ("host=x password=secret", &*format!("'host=x password=***' has no scheme; {forms}")),
        ("shop.db", "'shop.db' has no scheme; did you mean 'sqlite:shop.db'?"),
        ("data/shop", "'data/shop' has no scheme; did you mean 'sqlite:data/shop'?"),
        ("/", "'/' has no scheme; did you mean 'spool:/'?"),
        ("kafka://host", &*format!("scheme 'kafka' is not known; {forms}")),
        ("sqlite:", &*format!("'sqlite:' names no file; {forms}")),
        (
            "sqlite://queues.db",
            "'sqlite://queues.db' has a host, and a file has none; use sqlite:queues.db or \
             sqlite:/path/queues.db",
        ),
        ("sqlite::memory:", "'sqlite::memory:' is no file; use memory: for a store in this process"),
        (
            "sqlite:/queues.db?mode=ro",
            "'sqlite:/queues.db?mode=ro' has parameters, and there are none; name the file alone, like \
             sqlite:/path/file.db, and write settings into [common.messaging.sqlite]",
        ),
        ("spool:", &*format!("'spool:' names no folder; {forms}")),
        (
            "spool://queues",
            "'spool://queues' has a host, and a folder has none; use spool:queues or spool:/path/queues",
        ),
        (
            "spool:/queues?watch=poll",
            "'spool:/queues?watch=poll' has parameters, and there are none; name the folder alone, like spool:/path, and \
             write settings into [common.messaging.spool]",
        ),
        ("memory:x", "'memory:x' has text after 'memory:'; use memory: alone"),
    ] {
        let error = url.parse::<Endpoint>().unwrap_err();
        assert_eq!(error.to_string(), format!("invalid URL: {text}"));
    }
}
