use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::Instant;

use super::*;

/// Time limit of an expected event.
const TIME_LIMIT: Duration = Duration::from_secs(20);

/// A server that echoes every byte and counts the requests.
struct Echo {
    address: String,
    requests: Arc<AtomicUsize>,
    _serving: JoinSet<()>,
}

impl Echo {
    async fn start() -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let requests = Arc::new(AtomicUsize::new(0));
        let mut serving = JoinSet::new();
        let counted = requests.clone();
        serving.spawn(async move {
            let mut clients = JoinSet::new();
            loop {
                let (mut client, _) = listener.accept().await.unwrap();
                let counted = counted.clone();
                clients.spawn(async move {
                    let mut buffer = [0; 4096];
                    while let Ok(read @ 1..) = client.read(&mut buffer).await {
                        counted.fetch_add(read, Ordering::SeqCst);
                        client.write_all(&buffer[..read]).await.unwrap();
                    }
                });
            }
        });
        Self { address, requests, _serving: serving }
    }

    fn requests(&self) -> usize {
        self.requests.load(Ordering::SeqCst)
    }
}

async fn both() -> (Echo, FaultProxy) {
    let echo = Echo::start().await;
    let proxy = FaultProxy::start(echo.address.clone()).await.unwrap();
    (echo, proxy)
}

/// Awaits with the time limit.
async fn soon<F: Future>(future: F) -> F::Output {
    tokio::time::timeout(TIME_LIMIT, future).await.expect("no traffic within the time limit")
}

async fn client(proxy: &FaultProxy) -> TcpStream {
    soon(TcpStream::connect(proxy.address())).await.unwrap()
}

/// Whether a request was answered; `false` when the connection ended instead.
async fn is_answered(client: &mut TcpStream) -> bool {
    let mut answer = [0];
    client.write_all(b"?").await.is_ok() && matches!(soon(client.read(&mut answer)).await, Ok(1)) && answer == *b"?"
}

#[tokio::test]
async fn without_faults_all_bytes_and_the_end_arrive() {
    let (echo, proxy) = both().await;
    let (mut reading, mut writing) = client(&proxy).await.into_split();
    // More than the bound of bytes in flight.
    let sent: Vec<u8> = (0..3_000_000_u32).map(|n| n as u8).collect();
    let copy = sent.clone();
    let writer = tokio::spawn(async move {
        writing.write_all(&copy).await.unwrap();
        writing.shutdown().await.unwrap();
    });
    let mut received = Vec::new();
    soon(reading.read_to_end(&mut received)).await.unwrap();
    writer.await.unwrap();
    assert!(received == sent);
    assert_eq!(echo.requests(), sent.len());
}

#[tokio::test]
async fn a_cut_ends_every_connection_and_allows_new_ones() {
    let (_echo, proxy) = both().await;
    let mut clients = [client(&proxy).await, client(&proxy).await];
    for client in &mut clients {
        assert!(is_answered(client).await);
    }
    proxy.cut();
    for client in &mut clients {
        assert!(!is_answered(client).await);
    }
    assert!(is_answered(&mut client(&proxy).await).await);
}

#[tokio::test]
async fn an_unreachable_server_ends_connections_until_it_is_back() {
    let (echo, proxy) = both().await;
    let mut before = client(&proxy).await;
    assert!(is_answered(&mut before).await);
    proxy.refuse();
    assert!(!is_answered(&mut before).await);
    for _ in 0..3 {
        assert!(!is_answered(&mut client(&proxy).await).await);
    }
    assert_eq!(echo.requests(), 1);
    proxy.restore();
    assert!(!is_answered(&mut before).await, "what was cut stays cut");
    assert!(is_answered(&mut client(&proxy).await).await);
}

#[tokio::test]
async fn replies_can_be_lost_alone() {
    let (echo, proxy) = both().await;
    let mut client = client(&proxy).await;
    assert!(is_answered(&mut client).await);
    proxy.drop_replies();
    client.write_all(b"?").await.unwrap();
    soon(proxy.reply_was_lost()).await;
    assert_eq!(echo.requests(), 2, "the request reached the server");
    proxy.restore();
    client.write_all(b"!").await.unwrap();
    let heard = tokio::time::timeout(Duration::from_millis(50), client.read(&mut [0])).await;
    assert!(heard.is_err(), "a stream has no gaps");
    assert!(is_answered(&mut self::client(&proxy).await).await);
}

#[tokio::test]
async fn replies_pass_up_to_a_number_before_one_is_lost() {
    let (_echo, proxy) = both().await;
    let mut client = client(&proxy).await;
    proxy.drop_replies_after(2);
    for _ in 0..2 {
        assert!(is_answered(&mut client).await);
    }
    client.write_all(b"?").await.unwrap();
    soon(proxy.reply_was_lost()).await;
    proxy.cut();
    assert!(matches!(soon(client.read(&mut [0])).await, Ok(0) | Err(_)));
}

#[tokio::test]
async fn stalled_bytes_arrive_when_the_network_is_restored() {
    let (echo, proxy) = both().await;
    let (mut before, mut after) = (client(&proxy).await, {
        proxy.stall();
        client(&proxy).await
    });
    before.write_all(b"a").await.unwrap();
    after.write_all(b"b").await.unwrap();
    let mut answer = [0];
    let early = tokio::time::timeout(Duration::from_millis(50), before.read(&mut answer)).await;
    assert!(early.is_err() && echo.requests() == 0, "nothing passes");
    proxy.restore();
    soon(before.read_exact(&mut answer)).await.unwrap();
    assert_eq!(answer, *b"a");
    soon(after.read_exact(&mut answer)).await.unwrap();
    assert_eq!(answer, *b"b");
}

#[tokio::test]
async fn each_direction_has_its_delay_and_delays_overlap() {
    const THERE: Duration = Duration::from_millis(60);
    const BACK: Duration = Duration::from_millis(40);
    let (_echo, proxy) = both().await;
    proxy.delay(THERE, BACK);
    let mut clients = Vec::new();
    for _ in 0..200 {
        clients.push(client(&proxy).await);
    }
    let began = Instant::now();
    for client in &mut clients {
        client.write_all(b"?").await.unwrap();
    }
    for client in &mut clients {
        soon(client.read_exact(&mut [0])).await.unwrap();
        assert!(began.elapsed() >= THERE + BACK);
    }
    assert!(began.elapsed() < (THERE + BACK) * 100, "{:?} for all of them together", began.elapsed());
    proxy.delay(THERE, Duration::ZERO);
    let began = Instant::now();
    assert!(is_answered(&mut clients[0]).await);
    assert!(began.elapsed() >= THERE);
}

#[tokio::test]
async fn cancelled_faults_are_restored() {
    let (_echo, proxy) = both().await;
    {
        let _restored = proxy.restored_at_end();
        proxy.refuse();
        proxy.stall();
        proxy.drop_replies();
        proxy.delay(TIME_LIMIT, TIME_LIMIT);
    }
    assert!(is_answered(&mut client(&proxy).await).await);
}

#[tokio::test]
async fn connections_end_with_the_proxy() {
    let (_echo, proxy) = both().await;
    let mut client = client(&proxy).await;
    assert!(is_answered(&mut client).await);
    drop(proxy);
    assert!(!is_answered(&mut client).await);
}

#[tokio::test]
async fn a_missing_server_ends_its_connections() {
    let (echo, proxy) = both().await;
    drop(echo);
    assert!(!is_answered(&mut client(&proxy).await).await);
}

#[tokio::test]
async fn a_url_is_rewritten_to_the_proxy() {
    for (before, after) in [
        ("postgres://me:p@ss@127.0.0.1:1/db?x=y", "postgres://me:p@ss@PROXY/db?x=y"),
        ("mysql://127.0.0.1:1/db", "mysql://PROXY/db"),
        ("amqp://me:secret@127.0.0.1:1", "amqp://me:secret@PROXY"),
    ] {
        let proxy = FaultProxy::before(before).await.unwrap();
        assert_eq!(proxy.url(), after.replace("PROXY", &proxy.address().to_string()));
    }
    for no_port in ["127.0.0.1:1", "postgres://me:secret@localhost/db"] {
        assert!(FaultProxy::before(no_port).await.is_err(), "{no_port}");
    }
}
