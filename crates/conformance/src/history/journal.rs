//! A history that survives the death of the process that writes it.
//!
//! Each call is written down before it is made, with an unknown outcome, and again after it was answered. What a dead
//! process had begun therefore stays in the history, as something that may have happened.

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

    /// Writes down what is known of a call now.
    pub(super) fn write(&self, call: u64, events: &[Event]) {
        let written = serde_json::to_vec(&(call, events)).map_err(io::Error::from).and_then(|mut line| {
            line.push(b'\n');
            // Handed to the system before the call is made or its answer used: that survives the process.
            self.file.lock().unwrap_or_else(PoisonError::into_inner).write_all(&line)
        });
        if let Err(error) = written {
            // Without its lines the process would do things that the history denies, and a good store be accused.
            eprintln!("the journal cannot be written: {error}; free some space and run again");
            std::process::abort();
        }
    }
}

/// The events of a journal: of each call what was written last.
pub(super) fn read(path: &Path) -> io::Result<Vec<Event>> {
    let text = match std::fs::read(path) {
        // Its process died before it began.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        text => text?,
    };
    let mut calls: BTreeMap<u64, Vec<Event>> = BTreeMap::new();
    // The last line may be cut off by the death of its writer. A call that was not written down whole was not made; an
    // answer that was not was not used.
    let whole = text.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end);
    for line in text[..whole].split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
        let (call, events) = serde_json::from_slice(line)?;
        calls.insert(call, events);
    }
    Ok(calls.into_values().flatten().collect())
}
