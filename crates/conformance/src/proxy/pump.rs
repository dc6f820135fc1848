//! One direction of one connection.

use std::io;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use super::Faults;

/// How much is read at a time.
const PIECE: usize = 16 * 1024;

/// How many pieces are on their way at most.
const PIECES: usize = 64;

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

struct Piece {
    arrives: Instant,
    bytes: Vec<u8>,
}

/// Carries bytes until their source ends, then tells the other side so.
pub(super) async fn carry(
    from: OwnedReadHalf,
    to: OwnedWriteHalf,
    direction: Direction,
    faults: watch::Receiver<Faults>,
    said: &watch::Sender<u64>,
) -> io::Result<()> {
    // A channel between the two halves: a delay is each piece's own, and does not add up.
    let (sent, arriving) = mpsc::channel(PIECES);
    let taking = take(from, sent, direction, faults.clone());
    tokio::try_join!(taking, hand_over(arriving, to, direction, faults, said)).map(drop)
}

async fn take(
    mut from: OwnedReadHalf,
    sent: mpsc::Sender<Piece>,
    direction: Direction,
    faults: watch::Receiver<Faults>,
) -> io::Result<()> {
    let mut buffer = vec![0; PIECE];
    loop {
        let read = from.read(&mut buffer).await?;
        let arrives = Instant::now() + direction.delay(&faults.borrow());
        let piece = Piece { arrives, bytes: buffer[..read].to_vec() };
        // An empty piece is the end. Without a receiver the connection is over.
        if sent.send(piece).await.is_err() || read == 0 {
            return Ok(());
        }
    }
}

async fn hand_over(
    mut arriving: mpsc::Receiver<Piece>,
    mut to: OwnedWriteHalf,
    direction: Direction,
    mut faults: watch::Receiver<Faults>,
    said: &watch::Sender<u64>,
) -> io::Result<()> {
    // A stream has no holes: of a connection that has lost something nothing arrives any more.
    let mut is_mute = false;
    while let Some(piece) = arriving.recv().await {
        // Even a sleep until now would take a tick of the timer.
        if piece.arrives > Instant::now() {
            tokio::time::sleep_until(piece.arrives).await;
        }
        let loses_after = match faults.wait_for(|faults| !faults.stalls).await {
            Ok(faults) => faults.loses_after,
            // The proxy is gone.
            Err(_) => return Ok(()),
        };
        if piece.bytes.is_empty() {
            if is_mute {
                // Not even its end is heard, until it is cut.
                std::future::pending::<()>().await;
            }
            to.shutdown().await?;
            continue;
        }
        if let (Direction::Replies, Some(passing)) = (direction, loses_after) {
            said.send_modify(|said| {
                is_mute |= *said >= passing;
                *said += 1;
            });
        }
        if !is_mute {
            to.write_all(&piece.bytes).await?;
        }
    }
    Ok(())
}
