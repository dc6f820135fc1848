//! Signals that end the program.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// SIGINT, SIGTERM and SIGHUP.
#[derive(Debug)]
pub(crate) struct Signals(Vec<Signal>);

impl Signals {
    /// Starts to listen.
    ///
    /// A signal that the parent process ignores stays ignored: `nohup` does that with SIGHUP, and a shell with the SIGINT
    /// of background commands.
    pub(crate) fn listen() -> io::Result<Self> {
        // Without /proc, no signal counts as ignored.
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let kinds = [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()];
        let listened = kinds.into_iter().filter(|kind| !is_ignored(&status, kind.as_raw_value()));
        Ok(Self(listened.map(signal).collect::<Result<_, _>>()?))
    }

    /// Completes at the next signal.
    pub(crate) async fn next(&mut self) {
        std::future::poll_fn(|context| {
            // A closed stream is not a signal.
            let came = self.0.iter_mut().any(|signal| signal.poll_recv(context) == std::task::Poll::Ready(Some(())));
            if came { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
        })
        .await;
    }
}

/// Completes at the first signal.
pub(crate) async fn first_signal() {
    match Signals::listen() {
        Ok(mut signals) => signals.next().await,
        // A failure to listen is not a signal.
        Err(_) => std::future::pending().await,
    }
}

/// Whether the signal is ignored according to a `/proc/PID/status`.
fn is_ignored(status: &str, signal: i32) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or_default();
    mask >> (signal - 1) & 1 == 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mask_of_ignored_signals_is_read() {
        let status = "Name:\tx\nSigBlk:\t0000000000000001\nSigIgn:\t0000000000001002\nSigCgt:\t0000000000004000\n";
        assert_eq!([1, 2, 13, 15].map(|signal| is_ignored(status, signal)), [false, true, true, false]);
        assert!(!is_ignored("", 2));
    }
}
