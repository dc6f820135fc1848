//! A fake server with answers and connection faults chosen by the test.
//!
//! It writes to the socket itself, because a server library would not let a connection misbehave.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use postrider_core::{Capabilities, LeaseToken, MessageId, NativeRef, QueueName, ReceiptHandle};
use postrider_http::{HttpOptions, HttpProvider, HttpStore};
use postrider_wire::Problem;
use postrider_wire::capabilities::CapabilityTable;
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::sync::{Mutex, mpsc, oneshot};
use tokio::task::JoinSet;

/// A received request.
#[derive(Debug, Clone)]
pub(crate) struct Seen {
    pub(crate) method: String,
    pub(crate) path: String,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Value,
    /// Index of the request on this server, not counting those for capabilities.
    pub(crate) number: usize,
    /// Index of its connection.
    pub(crate) connection: usize,
}

impl Seen {
    pub(crate) fn is(&self, method: &str, path: &str) -> bool {
        self.method == method && self.path == path
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(other, _)| other == name).map(|(_, value)| value.as_str())
    }
}

/// How the server answers a request.
pub(crate) enum Reply {
    /// A JSON answer.
    Json(u16, Value),
    /// An answer, then the connection is closed without notice.
    Last(Value),
    /// Raw bytes, then the connection is closed.
    Bytes(Vec<u8>),
    /// A status with an endless body.
    Endless(&'static str),
    /// No answer; the connection is closed.
    Cut,
    /// No answer; the connection stays open until the client closes it.
    Hang,
    /// An answer once the gate is opened.
    Gate(oneshot::Receiver<()>, Value),
    /// A stream of the events of a channel.
    Events(mpsc::UnboundedReceiver<&'static str>),
}

impl Reply {
    pub(crate) fn ok(value: Value) -> Self {
        Self::Json(200, value)
    }

    pub(crate) fn problem(problem: &Problem) -> Self {
        Self::Json(problem.status, serde_json::to_value(problem).unwrap())
    }
}

pub(crate) struct Fake {
    pub(crate) url: String,
    requests: Mutex<mpsc::UnboundedReceiver<Seen>>,
    gone: Mutex<mpsc::UnboundedReceiver<usize>>,
    task: tokio::task::JoinHandle<()>,
}

struct Shared<A> {
    answer: A,
    capabilities: Value,
    requests: mpsc::UnboundedSender<Seen>,
    gone: mpsc::UnboundedSender<usize>,
    count: AtomicUsize,
}

impl Fake {
    pub(crate) async fn start(answer: impl Fn(&Seen) -> Reply + Send + Sync + 'static) -> Self {
        Self::start_with(Capabilities::native("sqlite"), answer).await
    }

    pub(crate) async fn start_with(
        capabilities: Capabilities,
        answer: impl Fn(&Seen) -> Reply + Send + Sync + 'static,
    ) -> Self {
        Self::run(serde_json::to_value(CapabilityTable::new(&capabilities, "9.9.9")).unwrap(), answer).await
    }

    /// The test answers requests for capabilities as well.
    pub(crate) async fn start_bare(answer: impl Fn(&Seen) -> Reply + Send + Sync + 'static) -> Self {
        Self::run(Value::Null, answer).await
    }

    async fn run(capabilities: Value, answer: impl Fn(&Seen) -> Reply + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let (sender, requests) = mpsc::unbounded_channel();
        let (closed, gone) = mpsc::unbounded_channel();
        let shared =
            Arc::new(Shared { answer, capabilities, requests: sender, gone: closed, count: AtomicUsize::new(0) });
        let task = tokio::spawn(async move {
            // Dropped with the task, which closes the connections.
            let mut connections = JoinSet::new();
            let mut number = 0;
            while let Ok((stream, _)) = listener.accept().await {
                connections.spawn(serve(shared.clone(), stream, number));
                number += 1;
            }
        });
        Self { url, requests: Mutex::new(requests), gone: Mutex::new(gone), task }
    }

    /// The next request.
    pub(crate) async fn seen(&self) -> Seen {
        self.requests.lock().await.recv().await.expect("the server runs")
    }

    /// Waits until the client has closed a connection; returns its index.
    pub(crate) async fn gone(&self) -> usize {
        self.gone.lock().await.recv().await.expect("the server runs")
    }

    /// All received requests that were not read yet.
    pub(crate) async fn rest(&self) -> Vec<Seen> {
        let mut requests = self.requests.lock().await;
        std::iter::from_fn(|| requests.try_recv().ok()).collect()
    }

    pub(crate) async fn connect(&self) -> HttpProvider {
        self.connect_with(HttpOptions::default()).await
    }

    pub(crate) async fn connect_with(&self, options: HttpOptions) -> HttpProvider {
        HttpStore::open(&self.url, options).await.unwrap().connect().unwrap()
    }

    /// Stops the server; its port is closed.
    pub(crate) async fn stop(self) {
        self.task.abort();
        let _ = self.task.await;
    }
}

/// Serves one connection of any kind.
pub(crate) async fn serve_stream<S>(stream: S, answer: impl Fn(&Seen) -> Reply)
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let (requests, _seen) = mpsc::unbounded_channel();
    let (gone, _left) = mpsc::unbounded_channel();
    let capabilities = serde_json::to_value(CapabilityTable::new(&Capabilities::native("sqlite"), "9.9.9")).unwrap();
    let shared = Shared { answer, capabilities, requests, gone, count: AtomicUsize::new(0) };
    serve(Arc::new(shared), stream, 0).await;
}

async fn serve<S, A>(shared: Arc<Shared<A>>, mut stream: S, connection: usize)
where
    S: AsyncRead + AsyncWrite + Unpin,
    A: Fn(&Seen) -> Reply,
{
    let mut buffer = Vec::new();
    while let Some(mut seen) = read_request(&mut stream, &mut buffer).await {
        seen.connection = connection;
        let reply = if seen.is("GET", "/v1/capabilities") && shared.capabilities != Value::Null {
            Reply::ok(shared.capabilities.clone())
        } else {
            seen.number = shared.count.fetch_add(1, Ordering::SeqCst);
            let reply = (shared.answer)(&seen);
            let _ = shared.requests.send(seen);
            reply
        };
        match reply {
            Reply::Json(status, value) => write_json(&mut stream, status, &value).await,
            Reply::Last(value) => {
                write_json(&mut stream, 200, &value).await;
                let _ = stream.shutdown().await;
                break;
            }
            Reply::Bytes(bytes) => {
                let _ = stream.write_all(&bytes).await;
                return;
            }
            Reply::Endless(status) => {
                let head = format!("HTTP/1.1 {status}\r\ncontent-type: application/json\r\n\r\n");
                let _ = stream.write_all(head.as_bytes()).await;
                let piece = vec![b' '; 1024 * 1024];
                while stream.write_all(&piece).await.is_ok() {}
                return;
            }
            Reply::Cut => return,
            Reply::Hang => break,
            Reply::Gate(opened, value) => {
                let _ = opened.await;
                write_json(&mut stream, 200, &value).await;
            }
            Reply::Events(mut events) => {
                let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n: hello\n\n";
                let _ = stream.write_all(head.as_bytes()).await;
                let mut byte = [0];
                loop {
                    tokio::select! {
                        event = events.recv() => match event {
                            Some(event) => {
                                let _ = stream.write_all(format!("event: {event}\ndata: {{}}\n\n").as_bytes()).await;
                            }
                            None => return,
                        },
                        _ = stream.read(&mut byte) => {
                            let _ = shared.gone.send(connection);
                            return;
                        }
                    }
                }
            }
        }
    }
    // Ignores further input until the client closes the connection.
    let mut rest = [0; 1024];
    while let Ok(1..) = stream.read(&mut rest).await {}
    let _ = shared.gone.send(connection);
}

async fn read_request<S: AsyncRead + Unpin>(stream: &mut S, buffer: &mut Vec<u8>) -> Option<Seen> {
    let head_end = loop {
        if let Some(at) = buffer.windows(4).position(|window| window == b"\r\n\r\n") {
            break at + 4;
        }
        if stream.read_buf(buffer).await.ok()? == 0 {
            return None;
        }
    };
    let head = String::from_utf8(buffer[..head_end].to_vec()).unwrap();
    let mut lines = head.lines();
    let mut parts = lines.next().unwrap().split(' ');
    let (method, path) = (parts.next().unwrap().to_owned(), parts.next().unwrap().to_owned());
    let headers: Vec<(String, String)> = lines
        .filter_map(|line| line.split_once(": "))
        .map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned()))
        .collect();
    let length = headers.iter().find(|(name, _)| name == "content-length").map_or(0, |(_, n)| n.parse().unwrap());
    while buffer.len() < head_end + length {
        if stream.read_buf(buffer).await.ok()? == 0 {
            return None;
        }
    }
    let body = serde_json::from_slice(&buffer[head_end..head_end + length]).unwrap_or(Value::Null);
    buffer.drain(..head_end + length);
    Some(Seen { method, path, headers, body, number: 0, connection: 0 })
}

async fn write_json<S: AsyncWrite + Unpin>(stream: &mut S, status: u16, value: &Value) {
    let body = if value.is_null() { String::new() } else { value.to_string() };
    let answer = format!(
        "HTTP/1.1 {status} Status\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    let _ = stream.write_all(answer.as_bytes()).await;
}

pub(crate) fn http_receipt(queue: &str) -> ReceiptHandle {
    let native = NativeRef::Handle(b"opaque".as_slice().into());
    let queue = QueueName::for_reading(queue).unwrap();
    ReceiptHandle::new("http", queue, MessageId::generate(), LeaseToken::generate(), native)
}

/// A delivery as the server writes it.
pub(crate) fn received(receipt: &ReceiptHandle, body: &str) -> Value {
    json!({
        "id": receipt.message_id(), "queue": receipt.queue(), "receipt": receipt, "body": body,
        "content_type": "application/octet-stream", "headers": {}, "priority": 4, "receive_count": 1,
        "attempts_count": 0, "enqueued_at": "2026-01-01T00:00:00Z", "first_attempt_at": "2026-01-01T00:00:00Z",
        "lease_expires_at": "2026-01-01T00:00:30Z", "something_new": true,
    })
}
