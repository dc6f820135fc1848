//! Memory of a server in its own process, as measured by the kernel.

use std::process::Stdio;
use std::time::Duration;

use axum::http::StatusCode;
use postrider_server::ServerOptions;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpSocket, TcpStream};
use tokio::process::{Child, ChildStdout, Command};
use tokio::task::JoinSet;

use crate::test_server::{TIMEOUT, TestServer, TestStore, eventually};

const MIB: usize = 1024 * 1024;

/// Default upper bound of a request's body.
const LARGEST: usize = 16 * MIB;

/// `max_bytes_in_flight` of these tests.
const BUDGET: usize = 64 * MIB;

/// Marks the server process.
const SERVES: &str = "POSTRIDER_TEST_SERVES";

/// The server process: it runs the test `serves`, which serves until its standard input ends.
struct ServerProcess {
    process: Child,
    address: String,
    _output: BufReader<ChildStdout>,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "it is the server of the other tests, which start it"]
async fn serves() {
    if std::env::var(SERVES).is_err() {
        return;
    }
    let options = ServerOptions {
        max_bytes_in_flight: BUDGET,
        body_timeout: Duration::from_secs(15),
        write_timeout: Duration::from_secs(60),
        ..ServerOptions::default()
    };
    let server = TestServer::on(&TestStore::sqlite(), options).await;
    println!("\nlistening {}", server.address);
    let ends = || std::io::Read::read(&mut std::io::stdin(), &mut [0]);
    let _ = tokio::task::spawn_blocking(ends).await;
    server.stop().await;
}

impl ServerProcess {
    async fn start() -> Self {
        let mut process = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "memory::serves", "--ignored", "--nocapture"])
            .env(SERVES, "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let mut output = BufReader::new(process.stdout.take().unwrap());
        let mut line = String::new();
        let address = loop {
            line.clear();
            let read = tokio::time::timeout(TIMEOUT, output.read_line(&mut line)).await.expect("it starts").unwrap();
            assert!(read > 0, "the server ended");
            if let Some(address) = line.strip_prefix("listening ") {
                break address.trim().to_owned();
            }
        };
        Self { process, address, _output: output }
    }

    /// Reads a number of bytes from the kernel's status of the process.
    fn status_bytes(&self, name: &str) -> usize {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.process.id().unwrap())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        line.trim_start_matches(':').trim().trim_end_matches(" kB").parse::<usize>().unwrap() * 1024
    }

    /// Resets the peak. Returns the current memory.
    fn reset_peak(&self) -> usize {
        std::fs::write(format!("/proc/{}/clear_refs", self.process.id().unwrap()), "5").unwrap();
        self.status_bytes("VmRSS")
    }

    fn peak(&self) -> usize {
        self.status_bytes("VmHWM")
    }

    async fn connect(&self, from: [u8; 4]) -> TcpStream {
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_recv_buffer_size(64 * 1024).unwrap();
        socket.bind((from, 0).into()).unwrap();
        socket.connect(self.address.parse().unwrap()).await.unwrap()
    }

    /// Sends a request and does not read the answer.
    async fn begin(&self, from: [u8; 4], method: &str, path: &str, body: &[u8]) -> TcpStream {
        let mut stream = self.connect(from).await;
        let head = format!(
            "{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: \
             application/json\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        stream.write_all(head.as_bytes()).await.unwrap();
        // A refusing server does not read all of the body.
        let _ = stream.write_all(body).await;
        stream
    }

    async fn ask(&self, from: [u8; 4], method: &str, path: &str, body: &[u8]) -> (StatusCode, String) {
        let stream = self.begin(from, method, path, body).await;
        read(stream).await
    }

    /// Sends many requests without reading the answers. Returns the answered streams and the refused ones.
    async fn unread(&self, many: usize, path: &str) -> (Vec<TcpStream>, Vec<TcpStream>) {
        let mut unread = Vec::new();
        for _ in 0..many {
            unread.push(self.begin(HERE, "GET", path, b"").await);
        }
        // Refusals have a `Retry-After`. The others have an unread answer.
        let mut reading: JoinSet<_> = unread
            .into_iter()
            .map(|stream| async move {
                let mut first = [0; 12];
                let mut stream = stream;
                tokio::time::timeout(TIMEOUT * 2, stream.read_exact(&mut first)).await.expect("in time").unwrap();
                (first, stream)
            })
            .collect();
        let (mut answered, mut refused) = (Vec::new(), Vec::new());
        while let Some(read) = reading.join_next().await {
            let (first, stream) = read.unwrap();
            match &first {
                b"HTTP/1.1 200" => answered.push(stream),
                b"HTTP/1.1 503" => refused.push(stream),
                other => panic!("{}", String::from_utf8_lossy(other)),
            }
        }
        (answered, refused)
    }
}

const HERE: [u8; 4] = [127, 0, 0, 1];
const ELSEWHERE: [u8; 4] = [127, 0, 0, 2];

async fn read(mut stream: TcpStream) -> (StatusCode, String) {
    let mut answer = Vec::new();
    // A reset after the answer is an end, too.
    let _ = tokio::time::timeout(TIMEOUT * 3, stream.read_to_end(&mut answer)).await.expect("in time");
    let text = String::from_utf8_lossy(&answer).into_owned();
    let status = text.get(9..12).unwrap_or_else(|| panic!("no answer: {text}"));
    (status.parse().unwrap(), text)
}

/// A body of the largest size, with as many pieces as fit.
fn full_of(begin: &str, piece: &str, end: &str) -> Vec<u8> {
    let many = (LARGEST - begin.len() - end.len()) / (piece.len() + 1);
    let mut body = begin.to_owned();
    for at in 0..many {
        if at > 0 {
            body.push(',');
        }
        body.push_str(piece);
    }
    body.push_str(end);
    body.into_bytes()
}

#[tokio::test]
async fn a_request_takes_memory_of_a_few_times_its_size() {
    let server = ServerProcess::start().await;
    let headers: Vec<_> = (0..1000).map(|number| format!("\"{number}\":\"\"")).collect();
    let message = format!("{{\"body\":\"\",\"headers\":{{{}}}}}", headers.join(","));
    let task = format!("{{\"type\":\"a\",\"payload\":\"\",\"tags\":[{}]}}", vec!["\"\""; 1000].join(","));
    let error = "e".repeat(LARGEST / 2);
    for (path, body) in [
        ("/v1/queues/orders/messages/batch", full_of("{\"messages\":[", "{}", "]}")),
        ("/v1/queues/orders/messages/batch", full_of("{\"messages\":[", &message, "]}")),
        ("/v1/tasks/batch", full_of("{\"tasks\":[", "{\"type\":\"\"}", "]}")),
        ("/v1/tasks/batch", full_of("{\"tasks\":[", &task, "]}")),
        ("/v1/tasks/finish", full_of("{\"finish\":[", "{\"lease\":\"\",\"outcome\":\"dead\"}", "]}")),
        ("/v1/tasks/heartbeat", full_of("{\"extend\":\"1s\",\"heartbeats\":[", "{\"lease\":\"\"}", "]}")),
        ("/v1/tasks/standings", full_of("{\"leases\":[", "\"\"", "]}")),
        ("/v1/tasks/claim", full_of("{\"lease\":\"1s\",\"worker\":\"w\",\"types\":[", "\"a\"", "]}")),
        ("/v1/tasks/replay", full_of("{\"tag\":[", "\"\"", "]}")),
        ("/v1/tasks/cancel-job", full_of("{\"state\":[", "\"DEAD\"", "]}")),
        ("/v1/tasks/cancel-job", full_of("{\"type\":[", "\"a\"", "]}")),
        ("/v1/tasks/retry-job", full_of("{\"tag\":[", "\"\"", "]}")),
        ("/v1/messages/ack", full_of("{\"receipts\":[", "\"\"", "]}")),
        ("/v1/messages/extend", full_of("{\"visibility\":\"1s\",\"receipts\":[", "\"\"", "]}")),
        ("/v1/messages/settle", full_of("{\"settlements\":[", "{\"receipt\":\"\",\"outcome\":\"ack\"}", "]}")),
        ("/v1/receive", full_of("{\"queues\":[", "\"a\"", "]}")),
        ("/v1/queues/verify", full_of("{\"queues\":[", "\"a\"", "]}")),
    ] {
        let before = server.reset_peak();
        let (status, answer) = server.ask(HERE, "POST", path, &body).await;
        assert_eq!(status, 400, "{path}: {answer}");
        let grown = server.peak().saturating_sub(before);
        assert!(grown < 8 * LARGEST, "{path} took {} MiB for {} MiB", grown / MIB, body.len() / MIB);
    }
    // The error text is not copied for each refused lease.
    let receipts = vec!["\"\""; 9000].join(",");
    let body = format!("{{\"error\":\"{error}\",\"receipts\":[{receipts}]}}").into_bytes();
    let before = server.reset_peak();
    let (status, _) = server.ask(HERE, "POST", "/v1/messages/nack", &body).await;
    let grown = server.peak().saturating_sub(before);
    assert_eq!(status, 200);
    assert!(grown < 8 * LARGEST, "{} MiB for {} MiB", grown / MIB, body.len() / MIB);
}

#[tokio::test]
async fn unread_answers_do_not_fill_the_memory() {
    let server = ServerProcess::start().await;
    let body = format!("{{\"body\":\"{}\"}}", "x".repeat(MIB));
    for _ in 0..16 {
        assert_eq!(server.ask(HERE, "POST", "/v1/queues/orders/messages", body.as_bytes()).await.0, 201);
    }
    assert_eq!(server.ask(HERE, "GET", "/v1/queues/orders/messages?limit=1000", b"").await.0, 200);
    let before = server.reset_peak();
    let (answered, mut refused) = server.unread(60, "/v1/queues/orders/messages?limit=1000").await;
    let grown = server.peak().saturating_sub(before);
    assert!(grown < 4 * BUDGET, "{} MiB for {} answers", grown / MIB, answered.len());
    assert!(!answered.is_empty() && refused.len() > 30, "{} and {}", answered.len(), refused.len());
    let mut found = String::new();
    refused.remove(0).read_to_string(&mut found).await.unwrap();
    assert!(found.contains("retry-after: ") && found.contains("application/problem+json"), "{found}");
    assert!(found.contains("\"code\":\"server_busy\""), "{found}");
    // Other callers have the other half.
    assert_eq!(server.ask(ELSEWHERE, "GET", "/v1/queues/orders/messages?limit=2", b"").await.0, 200);
    // Answers that are read free their bytes, and so do closed connections.
    drop(answered);
    eventually(async || {
        let (status, _) = server.ask(HERE, "GET", "/v1/queues/orders/messages?limit=16", b"").await;
        (status == 200).then_some(())
    })
    .await;
}

/// Sends and receives a message of one mebibyte of a character. Returns its id and receipt.
async fn received(server: &ServerProcess, character: &str) -> (String, String) {
    let body = format!("{{\"body\":\"{}\"}}", character.repeat(MIB));
    let of = |answer: &str, field: &str| {
        let begin = answer.find(&format!("\"{field}\":\"")).unwrap() + field.len() + 4;
        answer[begin..].split('"').next().unwrap().to_owned()
    };
    let (status, sent) = server.ask(HERE, "POST", "/v1/queues/orders/messages", body.as_bytes()).await;
    assert_eq!(status, 201, "{sent}");
    let (status, got) = server.ask(HERE, "POST", "/v1/queues/orders/receive", b"{\"visibility\":\"10m\"}").await;
    assert_eq!(status, 200);
    (of(&sent, "id"), of(&got, "receipt"))
}

#[tokio::test]
async fn unread_archived_messages_do_not_fill_the_memory() {
    let server = ServerProcess::start().await;
    for _ in 0..16 {
        let (_, receipt) = received(&server, "x").await;
        let ack = format!("{{\"receipts\":[\"{receipt}\"]}}");
        assert_eq!(server.ask(HERE, "POST", "/v1/messages/ack", ack.as_bytes()).await.0, 200);
    }
    const PATH: &str = "/v1/queues/orders/archive?limit=1000";
    assert_eq!(server.ask(HERE, "GET", PATH, b"").await.0, 200);
    let before = server.reset_peak();
    let (answered, refused) = server.unread(60, PATH).await;
    let grown = server.peak().saturating_sub(before);
    assert!(grown < 4 * BUDGET, "{} MiB for {} answers", grown / MIB, answered.len());
    assert!(!answered.is_empty() && refused.len() > 30, "{} and {}", answered.len(), refused.len());
}

#[tokio::test]
async fn unread_single_dead_letters_do_not_fill_the_memory() {
    let server = ServerProcess::start().await;
    // Each character takes six bytes in the answer, which is more than the socket buffers.
    let (id, receipt) = received(&server, "\\u0001").await;
    let bury = format!("{{\"reason\":\"odd\",\"receipts\":[\"{receipt}\"]}}");
    assert_eq!(server.ask(HERE, "POST", "/v1/messages/dead-letter", bury.as_bytes()).await.0, 200);
    let path = format!("/v1/queues/orders/dead-letters/{id}");
    assert_eq!(server.ask(HERE, "GET", &path, b"").await.0, 200);
    let before = server.reset_peak();
    let (answered, refused) = server.unread(100, &path).await;
    let grown = server.peak().saturating_sub(before);
    assert!(grown < 4 * BUDGET, "{} MiB for {} answers", grown / MIB, answered.len());
    assert!(!answered.is_empty() && refused.len() > 50, "{} and {}", answered.len(), refused.len());
    assert_eq!(server.ask(ELSEWHERE, "GET", &path, b"").await.0, 200);
}

#[tokio::test]
async fn endless_bodies_do_not_fill_the_memory() {
    let server = ServerProcess::start().await;
    let before = server.reset_peak();
    let body = vec![b' '; 15 * MIB];
    let mut sending = JoinSet::new();
    for _ in 0..30 {
        let mut stream = server.connect(HERE).await;
        let body = body.clone();
        sending.spawn(async move {
            let head = format!(
                "POST /v1/queues/orders/messages HTTP/1.1\r\nhost: localhost\r\ncontent-type: \
                 application/json\r\ncontent-length: {LARGEST}\r\n\r\n"
            );
            stream.write_all(head.as_bytes()).await.unwrap();
            let _ = stream.write_all(&body).await;
            read(stream).await
        });
    }
    // Meanwhile others have room: small requests always, and large ones of other callers.
    assert_eq!(server.ask(HERE, "POST", "/v1/queues/orders/messages", b"{\"body\":\"a\"}").await.0, 201);
    let large = format!("{{\"body\":\"{}\"}}", "x".repeat(MIB));
    assert_eq!(server.ask(ELSEWHERE, "POST", "/v1/queues/orders/messages", large.as_bytes()).await.0, 201);
    let mut statuses = Vec::new();
    while let Some(read) = sending.join_next().await {
        let (status, answer) = read.unwrap();
        assert!(answer.contains("application/problem+json"), "{answer}");
        statuses.push(status.as_u16());
    }
    let grown = server.peak().saturating_sub(before);
    assert!(grown < 4 * BUDGET, "{} MiB", grown / MIB);
    // Those with room timed out in the end, and the others were refused with `Retry-After`.
    assert!(statuses.contains(&408) && statuses.contains(&503), "{statuses:?}");
    assert!(statuses.iter().all(|status| [408, 503].contains(status)), "{statuses:?}");
    assert_eq!(server.ask(HERE, "POST", "/v1/queues/orders/messages", large.as_bytes()).await.0, 201);
}
