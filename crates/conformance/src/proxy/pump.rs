//! One direction of one connection.

use std::io;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use super::Faults;

/// Size of one read.
const CHUNK_SIZE: usize = 16 * 1024;

/// Upper bound of chunks in flight.
const CHUNKS_IN_FLIGHT: usize = 64;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Direction {
    Requests,
    Replies,
}

impl Direction {
    fn delay(self, faults: &Faults) -> Duration {
        match self {
            Self::Requests => faults.request_delay,
            Self::Replies => faults.reply_delay,
        }
    }
}

struct Chunk {
    arrives: Instant,
    bytes: Vec<u8>,
}

/// Forwards bytes until their source ends, then shuts the other side down.
pub(super) async fn carry(
    from: OwnedReadHalf,
    to: OwnedWriteHalf,
    direction: Direction,
    faults: watch::Receiver<Faults>,
    reply_chunks: &watch::Sender<u64>,
) -> io::Result<()> {
    // A channel between the two halves, so that the delays of chunks overlap.
    let (sent, arriving) = mpsc::channel(CHUNKS_IN_FLIGHT);
    let reading = read_chunks(from, sent, direction, faults.clone());
    tokio::try_join!(reading, deliver(arriving, to, direction, faults, reply_chunks)).map(drop)
}

async fn read_chunks(
    mut from: OwnedReadHalf,
    sent: mpsc::Sender<Chunk>,
    direction: Direction,
    faults: watch::Receiver<Faults>,
) -> io::Result<()> {
    let mut buffer = vec![0; CHUNK_SIZE];
    loop {
        let read = from.read(&mut buffer).await?;
        let arrives = Instant::now() + direction.delay(&faults.borrow());
        let chunk = Chunk { arrives, bytes: buffer[..read].to_vec() };
        // An empty chunk is the end. Without a receiver the connection is over.
        if sent.send(chunk).await.is_err() || read == 0 {
            return Ok(());
        }
    }
}

async fn deliver(
    mut arriving: mpsc::Receiver<Chunk>,
    mut to: OwnedWriteHalf,
    direction: Direction,
    mut faults: watch::Receiver<Faults>,
    reply_chunks: &watch::Sender<u64>,
) -> io::Result<()> {
    // A stream has no gaps: after a loss nothing more may arrive.
    let mut loses_rest = false;
    while let Some(chunk) = arriving.recv().await {
        // A sleep until now would still take a tick of the timer.
        if chunk.arrives > Instant::now() {
            tokio::time::sleep_until(chunk.arrives).await;
        }
        let loses_after = match faults.wait_for(|faults| !faults.stalls).await {
            Ok(faults) => faults.loses_after,
            // The proxy is gone.
            Err(_) => return Ok(()),
        };
        if chunk.bytes.is_empty() {
            if loses_rest {
                // The end of the stream is lost too, until the connection is cut.
                std::future::pending::<()>().await;
            }
            to.shutdown().await?;
            continue;
        }
        if let (Direction::Replies, Some(passed)) = (direction, loses_after) {
            reply_chunks.send_modify(|reply_chunks| {
                loses_rest |= *reply_chunks >= passed;
                *reply_chunks += 1;
            });
        }
        if !loses_rest {
            to.write_all(&chunk.bytes).await?;
        }
    }
    Ok(())
}
