//! A history in a file that survives a kill of the process that writes it.
//!
//! Each call is written before it is made, with an unknown outcome, and again after its answer. Calls that a killed
//! process had begun therefore stay in the history with an unknown outcome.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use super::event::Event;

#[derive(Debug)]
pub(super) struct Journal {
    // A lock, because lines of several threads must not be mixed.
    file: Mutex<File>,
    calls: AtomicU64,
}

impl Journal {
    pub(super) fn create(path: &Path) -> io::Result<Self> {
        let file = OpenOptions::new().create(true).append(true).open(path)?;
        Ok(Self { file: Mutex::new(file), calls: AtomicU64::new(0) })
    }

    pub(super) fn next_call(&self) -> u64 {
        self.calls.fetch_add(1, Ordering::Relaxed)
    }

    /// Writes the present state of a call.
    pub(super) fn write(&self, call: u64, events: &[Event]) {
        let written = serde_json::to_vec(&(call, events)).map_err(io::Error::from).and_then(|mut line| {
            line.push(b'\n');
            // Written to the file before the call is made or its answer is used, so that it survives the process.
            self.file.lock().unwrap_or_else(PoisonError::into_inner).write_all(&line)
        });
        if let Err(error) = written {
            // Calls missing from the history would let the checker accuse a correct store.
            eprintln!("cannot write the journal: {error}; free disk space and run again");
            std::process::abort();
        }
    }
}

/// The events of a journal: the last state of each call.
pub(super) fn read(path: &Path) -> io::Result<Vec<Event>> {
    let text = match std::fs::read(path) {
        // The process was killed before its first call.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        text => text?,
    };
    let mut calls: BTreeMap<u64, Vec<Event>> = BTreeMap::new();
    // The kill may have cut off the last line. A call whose line is incomplete was not made; an answer whose line is
    // incomplete was not used.
    let whole = text.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end);
    for line in text[..whole].split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
        let (call, events) = serde_json::from_slice(line)?;
        calls.insert(call, events);
    }
    Ok(calls.into_values().flatten().collect())
}
