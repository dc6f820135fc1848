//! Servers that cannot be used: every command prints the reason, and its exit code distinguishes wrong usage from a
//! failure.

use std::io::{Read, Write};
use std::net::TcpListener;

use postrider::mysql::mysql_async::prelude::Queryable;
use postrider::mysql::mysql_async::{Conn, Opts};
use postrider::postgres::tokio_postgres::{self, NoTls};

use crate::scratch::{Run, Scratch, text};
use crate::serving::served::Served;

fn server(variable: &str) -> String {
    std::env::var(variable).unwrap_or_else(|_| {
        panic!(
            "{variable} is not set: start a server with `scripts/services up postgres mysql`, then \
             `eval \"$(scripts/services env)\"`"
        )
    })
}

pub(crate) fn postgres() -> String {
    server("POSTRIDER_POSTGRES_URL")
}

fn mysql() -> String {
    server("POSTRIDER_MYSQL_URL")
}

/// The URL with another user, and another database.
fn other(url: &str, user: &str, database: &str) -> String {
    let (scheme, rest) = url.split_once("://").expect("a scheme");
    let (_, server) = rest.split_once('@').expect("a user");
    let (address, _) = server.split_once('/').expect("a database");
    format!("{scheme}://{user}@{address}/{database}")
}

/// Runs `doctor` and two commands that need the store.
fn all_end(scratch: &Scratch, url: &str, code: i32) -> [Run; 3] {
    [&["doctor", url][..], &["migrate", url], &["stats", "--url", url]].map(|args| {
        let run = scratch.run(args);
        assert_eq!(run.code, code, "{args:?}: {run:?}");
        run
    })
}

/// All of them fail with one line that contains these words.
fn all_fail(scratch: &Scratch, url: &str, words: &str) {
    for run in all_end(scratch, url, 1) {
        // A finding is a result and on stdout; any other failure is on stderr.
        let printed = if run.stdout.is_empty() { &run.stderr } else { &run.stdout };
        let noted = printed.lines().filter(|line| line.contains(words)).count();
        assert_eq!(noted, 1, "'{words}': {run:?}");
    }
}

#[test]
fn an_invalid_url_is_wrong_usage_for_every_command() {
    let scratch = Scratch::bare();
    for (url, words) in [
        ("kafka://host", "scheme 'kafka' is not known"),
        ("postgres://host:port/mail", "invalid URL"),
        ("postgres://", "it names no server"),
        ("postgres://host/mail?sslmode=always", "invalid sslmode"),
        ("postgres://host/mail?sslrootcert=/authority.pem", "of no use without sslmode="),
        ("postgres://host/mail?colour=red", "invalid URL"),
        ("pgmq+postgres://host:port/mail", "invalid URL"),
        ("pgmq+postgres://host/mail?sslrootcert=/authority.pem", "of no use without sslmode="),
        ("mysql://host:port/mail", "invalid URL"),
        ("sqs+http://key:secret@host/", "credentials come from the AWS environment"),
        ("sqs://eu-central-1/a.b", "in its prefix"),
        ("mysql://rider@host", "it names no database"),
        ("mysql://host/mail?ssl-ca=/authority.pem", "of no use without ssl-mode="),
        ("amqp://host:port/mail", "invalid URL"),
    ] {
        for run in all_end(&scratch, url, 2) {
            assert!(run.stdout.is_empty() && run.stderr.contains(words), "{url}: {run:?}");
        }
    }
}

#[test]
fn an_unreachable_or_closed_server_is_a_failure() {
    let scratch = Scratch::bare();
    for (url, scheme) in [(postgres(), "postgres"), (mysql(), "mysql")] {
        all_fail(&scratch, &format!("{scheme}://rider@127.0.0.1:1/mail"), "cannot reach");
        all_fail(
            &scratch,
            &other(&url, "nobody:x", "postrider"),
            "does not accept this user or password; check the URL",
        );
        let (_, rest) = url.split_once("://").unwrap();
        let (user, _) = rest.split_once('@').unwrap();
        all_fail(&scratch, &other(&url, user, "nowhere"), "the database does not exist; create it");
    }
}

/// A server that refuses every client with this code and message.
fn closed_server(code: &str, words: &str) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("postgres://rider@{}/mail?sslmode=disable", listener.local_addr().expect("an address"));
    let fields = format!("SFATAL\0VFATAL\0C{code}\0M{words}\0\0");
    let length = u32::try_from(fields.len() + 4).expect("a short text").to_be_bytes();
    let answer = [b"E", &length[..], fields.as_bytes()].concat();
    // The thread ends with the test process.
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.expect("a client");
            // The client's first message fits into one packet.
            let _ = stream.read(&mut [0; 4096]);
            let _ = stream.write_all(&answer);
        }
    });
    url
}

#[test]
fn a_server_without_a_free_connection_is_not_reported_as_unreachable() {
    let url = closed_server("53300", "sorry, too many clients already");
    all_fail(&Scratch::bare(), &url, "the server has no connection left; raise its max_connections");
    let url = closed_server("57P03", "the database system is starting up");
    all_fail(&Scratch::bare(), &url, "the server is shutting down or starting; try again");
}

#[test]
fn control_characters_of_a_server_are_escaped() {
    let url = closed_server("XX000", "gone\u{1b}]0;title\u{7}\u{1b}[2J\u{9b}31m");
    for args in [&["stats"][..], &["send", "orders", "x"], &["work", "orders", "--", "true"]] {
        let run = Scratch::bare().at(&url).run(args).failed(1);
        let shown = format!("{}{}", run.stdout, run.stderr);
        assert!(shown.contains("gone") && !shown.chars().any(|c| c.is_control() && c != '\n'), "{shown:?}");
    }
}

/// A name that no other test uses.
pub(crate) fn unique(prefix: &str) -> String {
    format!("{prefix}_{}", &postrider::MessageId::generate().as_uuid().simple().to_string()[20..])
}

#[tokio::test]
async fn a_schema_that_is_too_new_or_forbidden_in_postgres_is_a_failure() {
    let (url, schema) = (postgres(), unique("cli"));
    let (client, connection) = tokio_postgres::connect(&url, NoTls).await.unwrap();
    tokio::spawn(connection);
    let at_schema = |name: &str| Scratch::bare().with("POSTRIDER__COMMON__MESSAGING__POSTGRES__SCHEMA", name);
    // A schema of the server: every user may read it, and only an administrator may create tables in it.
    let own = at_schema("information_schema");
    for args in [&["migrate", &url][..], &["stats", "--url", &url]] {
        let run = own.run(args).failed(1);
        assert!(run.stderr.contains("the user lacks a right"), "{run:?}");
    }
    let scratch = at_schema(&schema);
    scratch.run(&["migrate", &url]).done();
    let newer = format!("insert into {schema}.postrider_migration (version, name, works_since) values (999, 'x', 999)");
    client.batch_execute(&newer).await.unwrap();
    all_fail(&scratch, &url, "has version 999 and this program supports version");
    client.batch_execute(&format!("drop schema {schema} cascade")).await.unwrap();
}

#[tokio::test]
async fn a_schema_that_is_too_new_or_forbidden_in_mariadb_is_a_failure() {
    let (url, name) = (mysql(), unique("postrider_cli"));
    let mut client = Conn::new(Opts::from_url(&url).unwrap()).await.unwrap();
    client.query_drop(format!("create database {name}")).await.unwrap();
    client.query_drop(format!("create user {name}@'%' identified by 'x7'")).await.unwrap();
    let (_, rest) = url.split_once("://").unwrap();
    let own = other(&url, rest.split_once('@').unwrap().0, &name);
    let scratch = Scratch::bare();
    scratch.run(&["migrate", &own]).done();
    let users = other(&url, &format!("{name}:x7"), &name);
    all_fail(&scratch, &users, "the user lacks a right");
    client.query_drop(format!("grant all on {name}.* to {name}@'%' with max_user_connections 1")).await.unwrap();
    let only = Conn::new(Opts::from_url(&users).unwrap()).await.unwrap();
    all_fail(&scratch, &users, "the server has no connection left");
    only.disconnect().await.unwrap();
    let newer = format!(
        "insert into {name}.postrider_migration (version, name, works_since, applied_at) values \
         (999, 'x', 999, utc_timestamp(6))"
    );
    client.query_drop(newer).await.unwrap();
    all_fail(&scratch, &own, "has schema version 999 and this program supports version");
    client.query_drop(format!("drop user {name}@'%'")).await.unwrap();
    client.query_drop(format!("drop database {name}")).await.unwrap();
}

/// Queues with a unique prefix on the emulator, which accepts any credentials.
fn on_sqs() -> Scratch {
    let url = std::env::var("POSTRIDER_SQS_URL").expect("`scripts/services up sqs` starts it");
    Scratch::bare()
        .at(format!("{url}cli-{}-", postrider::MessageId::generate().as_uuid().simple()))
        .with("AWS_ACCESS_KEY_ID", "test")
        .with("AWS_SECRET_ACCESS_KEY", "test")
        .with("AWS_REGION", "us-east-1")
}

#[test]
fn an_extended_lease_on_sqs_has_a_new_receipt_valid_in_every_process() {
    let scratch = on_sqs();
    scratch.run_with(&["send", "orders", "--lines"], b"1\n2\n").done();
    let leased = ["receive", "orders", "--wait", "10s", "--visibility", "10s"];
    let [one, two] = [scratch.receive(&leased[1..]), scratch.receive(&leased[1..])];
    let received = std::time::Instant::now();
    let row = scratch.row(&["extend", &one, "5m"]);
    assert_eq!((&row["outcome"], &row["receipt"]), (&"extended".into(), &one.clone().into()));
    let [new_one, printed] = [text(&row["new_receipt"]), scratch.run(&["extend", &two, "5m"]).done().stdout];
    let (_, new_two) = printed.trim().rsplit_once("extended; from now on use ").expect("the new receipt");
    // Until the leases of the first receipts have ended.
    std::thread::sleep(std::time::Duration::from_secs(10).saturating_sub(received.elapsed()));
    assert_eq!(scratch.run(&["--json", "ack", &one]).failed(1).outcomes(), ["expired"]);
    assert_eq!(scratch.run(&["--json", "ack", &new_one, new_two]).done().outcomes(), ["acked", "acked"]);
    scratch.run(&["queues", "delete", "orders", "--yes"]).done();
}

#[test]
fn a_server_on_sqs_returns_the_new_receipt() {
    let served = Served::start(on_sqs());
    served.scratch.send(&["orders", "hello"]);
    let receipt = served.scratch.receive(&["orders", "--wait", "10s"]);
    let new = text(&served.scratch.row(&["extend", &receipt, "5m"])["new_receipt"]);
    assert_ne!(new, receipt);
    assert_eq!(served.scratch.run(&["--json", "ack", &new]).done().outcomes(), ["acked"]);
    assert_eq!(served.scratch.run(&["--json", "ack", &receipt]).failed(1).outcomes(), ["expired"]);
    served.scratch.run(&["queues", "delete", "orders", "--yes"]).done();
}
