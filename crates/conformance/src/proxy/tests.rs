use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::Instant;

use super::*;

/// How long anything may take that must happen.
const PATIENCE: Duration = Duration::from_secs(20);

/// A server that answers every byte with the same byte, and counts what it was asked.
struct Echo {
    address: String,
    asked: Arc<AtomicUsize>,
    _serving: JoinSet<()>,
}

impl Echo {
    async fn start() -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let asked = Arc::new(AtomicUsize::new(0));
        let mut serving = JoinSet::new();
        let counted = asked.clone();
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
        Self { address, asked, _serving: serving }
    }

    fn asked(&self) -> usize {
        self.asked.load(Ordering::SeqCst)
    }
}

async fn both() -> (Echo, FaultProxy) {
    let echo = Echo::start().await;
    let proxy = FaultProxy::start(echo.address.clone()).await.unwrap();
    (echo, proxy)
}

/// Waits for what the network does, but not for ever.
async fn soon<F: Future>(future: F) -> F::Output {
    tokio::time::timeout(PATIENCE, future).await.expect("the network stands still")
}

async fn client(proxy: &FaultProxy) -> TcpStream {
    soon(TcpStream::connect(proxy.address())).await.unwrap()
}

/// Whether a question was answered; `false` when the connection ended instead.
async fn is_answered(client: &mut TcpStream) -> bool {
    let mut answer = [0];
    client.write_all(b"?").await.is_ok() && matches!(soon(client.read(&mut answer)).await, Ok(1)) && answer == *b"?"
}

#[tokio::test]
async fn without_faults_everything_arrives_and_an_end_is_passed_on() {
    let (echo, proxy) = both().await;
    let (mut reading, mut writing) = client(&proxy).await.into_split();
    // More than is ever on its way.
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
    assert_eq!(echo.asked(), sent.len());
}

#[tokio::test]
async fn a_cut_ends_every_connection_and_lets_new_ones_be_made() {
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
async fn a_server_that_is_away_ends_connections_until_it_is_back() {
    let (echo, proxy) = both().await;
    let mut before = client(&proxy).await;
    assert!(is_answered(&mut before).await);
    proxy.refuse();
    assert!(!is_answered(&mut before).await);
    for _ in 0..3 {
        assert!(!is_answered(&mut client(&proxy).await).await);
    }
    assert_eq!(echo.asked(), 1);
    proxy.restore();
    assert!(!is_answered(&mut before).await, "what was cut stays cut");
    assert!(is_answered(&mut client(&proxy).await).await);
}

#[tokio::test]
async fn what_the_server_says_can_be_lost_alone() {
    let (echo, proxy) = both().await;
    let mut client = client(&proxy).await;
    assert!(is_answered(&mut client).await);
    proxy.drop_replies();
    client.write_all(b"?").await.unwrap();
    soon(proxy.reply_was_lost()).await;
    assert_eq!(echo.asked(), 2, "the question reached the server");
    proxy.restore();
    client.write_all(b"!").await.unwrap();
    let heard = tokio::time::timeout(Duration::from_millis(50), client.read(&mut [0])).await;
    assert!(heard.is_err(), "a stream has no holes");
    assert!(is_answered(&mut self::client(&proxy).await).await);
}

#[tokio::test]
async fn so_many_replies_pass_before_one_is_lost() {
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
async fn what_is_held_back_arrives_when_the_network_is_restored() {
    let (echo, proxy) = both().await;
    let (mut before, mut after) = (client(&proxy).await, {
        proxy.stall();
        client(&proxy).await
    });
    before.write_all(b"a").await.unwrap();
    after.write_all(b"b").await.unwrap();
    let mut answer = [0];
    let early = tokio::time::timeout(Duration::from_millis(50), before.read(&mut answer)).await;
    assert!(early.is_err() && echo.asked() == 0, "nothing passes");
    proxy.restore();
    soon(before.read_exact(&mut answer)).await.unwrap();
    assert_eq!(answer, *b"a");
    soon(after.read_exact(&mut answer)).await.unwrap();
    assert_eq!(answer, *b"b");
}

#[tokio::test]
async fn each_direction_has_its_delay_and_delays_do_not_add_up() {
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
async fn faults_that_are_given_up_leave_none_behind() {
    let (_echo, proxy) = both().await;
    {
        let _restored = proxy.restored_at_end();
        proxy.refuse();
        proxy.stall();
        proxy.drop_replies();
        proxy.delay(PATIENCE, PATIENCE);
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
async fn a_server_that_is_not_there_ends_what_is_connected() {
    let (echo, proxy) = both().await;
    drop(echo);
    assert!(!is_answered(&mut client(&proxy).await).await);
}

#[tokio::test]
async fn a_url_is_led_through_it() {
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
