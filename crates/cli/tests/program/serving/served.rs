//! A server that runs for a test, and a place whose store it is.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Stdio};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::listening_program;
use crate::place::{Place, text};
use crate::work::place::PATIENCE;

/// A server, the place that it runs in, and one whose store it is. Killed when a test ends without it.
pub(crate) struct Served {
    /// Where the server runs: its store is the one that this place names.
    pub(crate) home: Place,
    /// Another folder, with the server as its store.
    pub(crate) place: Place,
    /// What it said of itself.
    pub(crate) row: Value,
    server: Server,
}

struct Server {
    child: Child,
    stderr: Option<JoinHandle<String>>,
}

impl Served {
    /// Puts the store of a place on the network.
    pub(crate) fn start(home: Place) -> Self {
        Self::start_with(home, &["--listen", "127.0.0.1:0"])
    }

    pub(crate) fn start_with(home: Place, args: &[&str]) -> Self {
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
        let (told, said) = mpsc::channel();
        std::thread::spawn(move || {
            let mut line = String::new();
            let _ = stdout.read_line(&mut line);
            let _ = told.send(line);
        });
        let line = said.recv_timeout(PATIENCE).expect("the server says where it is");
        let row = serde_json::from_str(&line).unwrap_or_else(|_| panic!("{}", server.kill()));
        Self { place: Place::bare().at(text(&Value::clone(&row)["url"])), home, row, server }
    }

    pub(crate) fn url(&self) -> String {
        text(&self.row["url"])
    }

    /// What the server answers to a GET, with its head.
    pub(crate) fn get(&self, path: &str) -> String {
        self.get_with(path, "")
    }

    /// The same, with more lines in the head of the request.
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

    /// Its exit code, what it said on stderr, and how long its end took.
    pub(crate) fn end(self) -> (Option<i32>, String, Duration) {
        let begun = Instant::now();
        let (code, said, _) = self.end_in_place();
        (code, said, begun.elapsed())
    }

    /// Its exit code, what it said on stderr, and the place that it ran in.
    pub(crate) fn end_in_place(mut self) -> (Option<i32>, String, Place) {
        let begun = Instant::now();
        let status = loop {
            if let Some(status) = self.server.child.try_wait().expect("a child") {
                break status;
            }
            assert!(begun.elapsed() < PATIENCE, "it does not end");
            std::thread::sleep(Duration::from_millis(5));
        };
        (status.code(), self.server.said(), self.home)
    }
}

impl Server {
    fn said(&mut self) -> String {
        self.stderr.take().map(|stderr| stderr.join().expect("no panic")).unwrap_or_default()
    }

    fn kill(&mut self) -> String {
        let _ = self.child.kill();
        let _ = self.child.wait();
        self.said()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}
