//! A running server, and a scratch folder with it as the store.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Stdio};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::listening_program;
use crate::scratch::{Scratch, text};
use crate::work::scratch::TIMEOUT;

/// A running server, killed on drop.
pub(crate) struct Served {
    /// The server's folder, with the store that it serves.
    pub(crate) home: Scratch,
    /// Another folder, with the server as its store.
    pub(crate) scratch: Scratch,
    /// The row that the server printed.
    pub(crate) row: Value,
    server: Server,
}

struct Server {
    child: Child,
    stderr: Option<JoinHandle<String>>,
}

impl Served {
    /// Serves the store of `home`.
    pub(crate) fn start(home: Scratch) -> Self {
        Self::start_with(home, &["--listen", "127.0.0.1:0"])
    }

    pub(crate) fn start_with(home: Scratch, args: &[&str]) -> Self {
        let mut command = home.command("env");
        command.args(listening_program().get_args()).args(["--json", "serve"]).args(args);
        let mut child = command.stdin(Stdio::null()).spawn().expect("the program starts");
        let (mut stdout, mut stderr) =
            (BufReader::new(child.stdout.take().expect("a pipe")), child.stderr.take().expect("a pipe"));
        let stderr = std::thread::spawn(move || {
            let mut text = String::new();
            let _ = stderr.read_to_string(&mut text);
            text
        });
        let mut server = Server { child, stderr: Some(stderr) };
        let (sender, receiver) = mpsc::channel();
        std::thread::spawn(move || {
            let mut line = String::new();
            let _ = stdout.read_line(&mut line);
            let _ = sender.send(line);
        });
        let line = receiver.recv_timeout(TIMEOUT).expect("the server prints its address");
        let row = serde_json::from_str(&line).unwrap_or_else(|_| panic!("{}", server.kill()));
        Self { scratch: Scratch::bare().at(text(&Value::clone(&row)["url"])), home, row, server }
    }

    pub(crate) fn url(&self) -> String {
        text(&self.row["url"])
    }

    /// The response to a GET, with its head.
    pub(crate) fn get(&self, path: &str) -> String {
        self.get_with(path, "")
    }

    /// The response to a GET with additional request headers.
    pub(crate) fn get_with(&self, path: &str, head: &str) -> String {
        let address = text(&self.row["address"]);
        let mut stream = TcpStream::connect(&address).expect("it listens");
        write!(stream, "GET {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n{head}\r\n").expect("it reads");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("it answers");
        answer
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.server.child), signal).expect("it runs");
    }

    /// Waits for the end; returns the exit code, stderr and the duration.
    pub(crate) fn end(self) -> (Option<i32>, String, Duration) {
        let begun = Instant::now();
        let (code, printed, _) = self.end_and_keep();
        (code, printed, begun.elapsed())
    }

    /// Waits for the end; returns the exit code, stderr and the server's folder.
    pub(crate) fn end_and_keep(mut self) -> (Option<i32>, String, Scratch) {
        let begun = Instant::now();
        let status = loop {
            if let Some(status) = self.server.child.try_wait().expect("a child") {
                break status;
            }
            assert!(begun.elapsed() < TIMEOUT, "it does not end");
            std::thread::sleep(Duration::from_millis(5));
        };
        (status.code(), self.server.printed(), self.home)
    }
}

impl Server {
    fn printed(&mut self) -> String {
        self.stderr.take().map(|stderr| stderr.join().expect("no panic")).unwrap_or_default()
    }

    fn kill(&mut self) -> String {
        let _ = self.child.kill();
        let _ = self.child.wait();
        self.printed()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}
