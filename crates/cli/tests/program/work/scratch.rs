//! A store in a scratch folder, used by the program and by the library.

use std::io::Read;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use postrider::{
    DeadLetter, DeadLetterQuery, DeadLetters, Deadline, Message, MessageId, MessagingProvider, MessagingService,
    PeekedMessage, QueueAdmin, QueueName, ReceiveOptions,
};
use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use serde_json::Value;
use tokio::runtime::Runtime;

use crate::{listening_program, stderr, stdout};

/// Upper bound of a wait; only a failing test takes that long.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(60);

pub(super) struct Scratch {
    folder: tempfile::TempDir,
    runtime: Runtime,
    provider: MessagingProvider,
    queue: QueueName,
}

impl Scratch {
    pub(super) fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let url = format!("sqlite:{}", folder.path().join("queue.db").display());
        let provider = runtime.block_on(postrider::connect(&url)).unwrap();
        Self { folder, runtime, provider, queue: QueueName::new("orders").unwrap() }
    }

    pub(super) fn url(&self) -> String {
        format!("sqlite:{}", self.file("queue.db").display())
    }

    pub(super) fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(super) fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.file(name)).unwrap_or_default()
    }

    /// The number of files with this prefix.
    pub(super) fn files(&self, prefix: &str) -> usize {
        let names = std::fs::read_dir(self.folder.path()).unwrap().map(|entry| entry.unwrap().file_name());
        names.filter(|name| name.to_string_lossy().starts_with(prefix)).count()
    }

    /// Waits for the process id that a script writes into a file.
    pub(super) fn process(&self, file: &str) -> Pid {
        self.eventually("a process has begun", || {
            let text = self.read(file);
            text.strip_suffix('\n').map(|id| Pid::from_raw(id.trim().parse().unwrap()).unwrap())
        })
    }

    pub(super) fn send(&self, message: Message) -> MessageId {
        self.runtime.block_on(self.provider.send_message(&self.queue, message, Deadline::default())).unwrap()
    }

    pub(super) fn receive(&self) -> Option<postrider::QueuedMessage> {
        let options = ReceiveOptions::default().max_receive_count(100);
        let received = self.provider.receive_messages(&self.queue, &options, Deadline::default());
        self.runtime.block_on(received).unwrap().pop()
    }

    pub(super) fn ack(&self, message: postrider::QueuedMessage) {
        self.runtime.block_on(self.provider.ack_message(&self.queue, message, Deadline::default())).unwrap();
    }

    /// Ready, in flight, delayed and dead messages.
    pub(super) fn counts(&self) -> [u64; 4] {
        let stats = self.runtime.block_on(self.provider.queue_stats(&self.queue, Deadline::default())).unwrap();
        [stats.ready, stats.in_flight, stats.delayed, stats.dead].map(|count| count.value().unwrap())
    }

    pub(super) fn peek(&self) -> Vec<PeekedMessage> {
        self.runtime.block_on(self.provider.peek(&self.queue, 10, Deadline::default())).unwrap()
    }

    pub(super) fn queues(&self) -> Vec<String> {
        let queues = self.runtime.block_on(self.provider.list_queues(Deadline::default())).unwrap();
        queues.iter().map(ToString::to_string).collect()
    }

    pub(super) fn delete_queue(&self) {
        self.runtime.block_on(self.provider.delete_queue(&self.queue, Deadline::default())).unwrap();
    }

    pub(super) fn dead_letters(&self) -> Vec<DeadLetter> {
        let query = DeadLetterQuery::default();
        let page = self.provider.list_dead_letters(&self.queue, &query, Deadline::default());
        self.runtime.block_on(page).unwrap().letters
    }

    fn program(&self, args: &[&str]) -> Command {
        let mut command = listening_program();
        command.args(["--url", &self.url()]).args(args).current_dir(self.folder.path()).env_remove("POSTRIDER_URL");
        command
    }

    pub(super) fn run(&self, args: &[&str]) -> Output {
        self.program(args).output().unwrap()
    }

    /// The command line of a worker whose command is a shell script.
    pub(super) fn work(&self, args: &[&str], script: &str) -> Command {
        self.program(&[&["work", "orders"], args, &["--", "/bin/sh", "-c", script]].concat())
    }

    /// The JSON rows of a worker that ends by itself.
    pub(super) fn rows(&self, args: &[&str], script: &str) -> Vec<Value> {
        let output = self.work(&[&["--json"], args].concat(), script).output().unwrap();
        assert!(output.status.success(), "{}{}", stdout(&output), stderr(&output));
        rows(&output)
    }

    pub(super) fn start(&self, args: &[&str], script: &str) -> Worker {
        self.spawn(&mut self.work(&[&["--json"], args].concat(), script))
    }

    pub(super) fn spawn(&self, work: &mut Command) -> Worker {
        Worker::start(work.stdout(Stdio::piped()).stderr(Stdio::piped()))
    }

    /// Whether another connection can write to the file now.
    pub(super) fn can_write(&self) -> bool {
        let deadline = Deadline::after(Duration::from_millis(500));
        self.runtime.block_on(self.provider.resume(&self.queue, deadline)).is_ok()
    }

    pub(super) fn pause(&self) {
        self.runtime.block_on(self.provider.pause(&self.queue, Deadline::default())).unwrap();
    }

    pub(super) fn resume(&self) {
        self.runtime.block_on(self.provider.resume(&self.queue, Deadline::default())).unwrap();
    }

    /// Waits until the lease that ends last is renewed.
    pub(super) fn eventually_renewed(&self, when: &str, meanwhile: impl Fn()) {
        let last_end = || self.peek().into_iter().map(|message| message.next_attempt_at).max();
        let first = last_end();
        self.eventually(&format!("a lease is renewed {when}"), || {
            meanwhile();
            (last_end() > first).then_some(())
        });
    }

    /// Polls until `check` returns a value.
    pub(super) fn eventually<T>(&self, what: &str, check: impl Fn() -> Option<T>) -> T {
        let begun = Instant::now();
        loop {
            if let Some(found) = check() {
                return found;
            }
            assert!(begun.elapsed() < TIMEOUT, "{what}: not within {TIMEOUT:?}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

pub(crate) fn rows(output: &Output) -> Vec<Value> {
    stdout(output).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// A running worker, killed with its commands on drop.
pub(crate) struct Worker(Option<Child>);

impl Worker {
    pub(crate) fn start(work: &mut Command) -> Self {
        Self(Some(work.spawn().unwrap()))
    }

    pub(crate) fn process(&self) -> Pid {
        Pid::from_child(self.0.as_ref().unwrap())
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(self.process(), signal).unwrap();
    }

    pub(crate) fn wait(mut self) -> Output {
        self.0.take().unwrap().wait_with_output().unwrap()
    }

    /// Sends SIGTERM and returns stderr up to the notice about the stop.
    pub(crate) fn finish_notice(&mut self) -> String {
        self.signal(Signal::TERM);
        let stderr = self.0.as_mut().unwrap().stderr.as_mut().unwrap();
        let mut printed = Vec::new();
        let mut byte = [0];
        // One byte at a time, so that the rest is still in the pipe at the end.
        while !printed.ends_with(b"a second signal ends it at once") && stderr.read(&mut byte).unwrap() > 0 {
            printed.extend(byte);
        }
        String::from_utf8(printed).unwrap()
    }

    pub(crate) fn stop(self) -> Output {
        self.signal(Signal::TERM);
        self.wait()
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        if let Some(mut child) = self.0.take() {
            // Commands lead their own process groups, so the kill of the worker does not reach them.
            let commands = children_of(Pid::from_child(&child));
            let _ = child.kill();
            for command in commands {
                let _ = kill_process_group(command, Signal::KILL);
            }
            let _ = child.wait();
        }
    }
}

/// Whether a process runs; a zombie does not.
pub(crate) fn runs(process: Pid) -> bool {
    stat(process.as_raw_nonzero().get()).is_some_and(|stat| !stat.starts_with(['Z', 'X']))
}

/// Whether a process has been stopped.
pub(crate) fn is_stopped(process: Pid) -> bool {
    stat(process.as_raw_nonzero().get()).is_some_and(|stat| stat.starts_with('T'))
}

/// Process ids, one per line. An unfinished line is ignored.
pub(crate) fn pids(text: &str) -> Vec<Pid> {
    let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
    whole.lines().map(|id| Pid::from_raw(id.trim().parse().unwrap()).unwrap()).collect()
}

/// The number of rounds of a storm.
pub(crate) fn long(ordinary: u64, long: u64) -> u64 {
    if std::env::var_os("POSTRIDER_LONG").is_some() { long } else { ordinary }
}

pub(crate) fn children_of(process: Pid) -> Vec<Pid> {
    let parent = process.as_raw_nonzero().to_string();
    let all = std::fs::read_dir("/proc").unwrap().filter_map(|entry| entry.unwrap().file_name().to_str()?.parse().ok());
    let is_child = |id: &i32| stat(*id).is_some_and(|stat| stat.split(' ').nth(1) == Some(&parent));
    all.filter(is_child).filter_map(Pid::from_raw).collect()
}

/// `/proc/PID/stat` from the state on.
fn stat(process: i32) -> Option<String> {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // The state follows the name, which is in parentheses.
    stat.rsplit_once(") ").map(|(_, rest)| rest.to_owned())
}
