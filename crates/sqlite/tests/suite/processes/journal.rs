//! A history that survives the death of the process that writes it.
//!
//! Each call is written down before it is made, with an unknown outcome, and again after it was answered. What a dead
//! process had begun therefore stays in the history, as something that may have happened.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;

use postrider_conformance::history::{Event, History, Operation};
use postrider_core::Timestamp;

pub(super) struct Journal {
    file: File,
    clock: History,
    worker: u32,
    calls: u64,
}

/// A call that was begun.
pub(super) struct Begun {
    call: u64,
    start: Timestamp,
}

impl Journal {
    pub(super) fn create(path: &Path, worker: u32) -> Self {
        let file = OpenOptions::new().create(true).append(true).open(path).expect("a journal");
        Self { file, clock: History::new(), worker, calls: 0 }
    }

    /// Writes down what is about to be asked.
    pub(super) fn begin(&mut self, operations: &[Operation]) -> Begun {
        let begun = Begun { call: self.calls, start: self.clock.now() };
        self.calls += 1;
        self.write(&begun, begun.start, operations);
        begun
    }

    /// Writes down what was answered.
    pub(super) fn end(&mut self, begun: &Begun, operations: &[Operation]) {
        let end = self.clock.now();
        self.write(begun, end, operations);
    }

    fn write(&mut self, begun: &Begun, end: Timestamp, operations: &[Operation]) {
        let events: Vec<Event> = operations
            .iter()
            .map(|operation| Event { worker: self.worker, start: begun.start, end, operation: operation.clone() })
            .collect();
        let mut line = serde_json::to_vec(&(begun.call, events)).expect("a line");
        line.push(b'\n');
        // One write: what the system has taken over survives the process, and a line is there whole or not at all.
        self.file.write_all(&line).expect("the journal can be written");
    }
}

/// The events of a journal: of each call what was written last.
pub(super) fn read(path: &Path) -> Vec<Event> {
    let Ok(file) = File::open(path) else { return Vec::new() };
    let mut calls: BTreeMap<u64, Vec<Event>> = BTreeMap::new();
    for line in BufReader::new(file).lines() {
        let (call, events) = serde_json::from_str(&line.expect("a line")).expect("a call");
        calls.insert(call, events);
    }
    calls.into_values().flatten().collect()
}
