//! A folder for each test, and the program run in it without outside configuration.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;
use tempfile::TempDir;

/// Home, current folder and store of a test.
pub(crate) struct Scratch {
    folder: TempDir,
    url: Option<String>,
    variables: Vec<(&'static str, String)>,
}

impl Scratch {
    /// With a SQLite store in `POSTRIDER_URL`.
    pub(crate) fn new() -> Self {
        let mut scratch = Self::bare();
        scratch.url = Some(format!("sqlite:{}", scratch.file("queues.db").display()));
        scratch
    }

    /// Without a store.
    pub(crate) fn bare() -> Self {
        Self { folder: tempfile::tempdir().expect("a folder"), url: None, variables: Vec::new() }
    }

    /// With another store.
    pub(crate) fn at(mut self, url: impl Into<String>) -> Self {
        self.url = Some(url.into());
        self
    }

    /// With an environment variable.
    pub(crate) fn with(mut self, variable: &'static str, value: impl Into<String>) -> Self {
        self.variables.push((variable, value.into()));
        self
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// A command in this folder with a clean environment.
    pub(crate) fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.env_clear().current_dir(self.folder.path()).env("HOME", self.folder.path()).env("COLUMNS", "100");
        if let Some(path) = std::env::var_os("PATH") {
            command.env("PATH", path);
        }
        if let Some(url) = &self.url {
            command.env("POSTRIDER_URL", url);
        }
        command.envs(self.variables.iter().map(|(variable, value)| (variable, value)));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    pub(crate) fn run(&self, args: &[&str]) -> Run {
        self.run_with(args, b"")
    }

    pub(crate) fn run_with(&self, args: &[&str], stdin: &[u8]) -> Run {
        let mut command = self.command(PROGRAM);
        command.args(args).stdin(Stdio::piped());
        let mut child = command.spawn().expect("the program starts");
        let mut pipe = child.stdin.take().expect("a pipe");
        let stdin = stdin.to_vec();
        // A program that does not read its stdin closes the pipe, which is no failure here.
        let writer = std::thread::spawn(move || drop(pipe.write_all(&stdin)));
        let output = child.wait_with_output().expect("the program ends");
        writer.join().expect("no panic");
        Run::of(output, self.folder.path())
    }

    /// The rows of a run that must succeed.
    pub(crate) fn rows(&self, args: &[&str]) -> Vec<Value> {
        self.run(&[&["--json"], args].concat()).done().rows()
    }

    /// The only row of a run that must succeed.
    pub(crate) fn row(&self, args: &[&str]) -> Value {
        let mut rows = self.rows(args);
        assert_eq!(rows.len(), 1, "{rows:?}");
        rows.remove(0)
    }

    /// Sends a message and returns its id.
    pub(crate) fn send(&self, args: &[&str]) -> String {
        text(&self.row(&[&["send"], args].concat())["id"])
    }

    /// Receives a message and returns its receipt.
    pub(crate) fn receive(&self, args: &[&str]) -> String {
        text(&self.row(&[&["receive"], args].concat())["receipt"])
    }

    /// Sends a message and dead-letters it; returns its id.
    pub(crate) fn dead_letter(&self, queue: &str, body: &str, reason: &str) -> String {
        let id = self.send(&[queue, body]);
        let receipt = self.receive(&[queue]);
        self.run(&["nack", &receipt, "--dead", reason, "--error", "it broke"]).done();
        id
    }
}

pub(crate) const PROGRAM: &str = env!("CARGO_BIN_EXE_postrider");

/// The exit code and the output of a run.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) code: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
    folder: String,
}

impl Run {
    pub(crate) fn of(output: std::process::Output, folder: &Path) -> Self {
        Self {
            code: output.status.code().expect("an exit code"),
            stdout: String::from_utf8(output.stdout).expect("text"),
            stderr: crate::without_levels(&String::from_utf8(output.stderr).expect("text")),
            folder: folder.display().to_string(),
        }
    }

    pub(crate) fn done(self) -> Self {
        assert_eq!(self.code, 0, "{self:?}");
        self
    }

    pub(crate) fn failed(self, code: i32) -> Self {
        assert_eq!(self.code, code, "{self:?}");
        assert!(!self.stderr.contains("panicked"), "{self:?}");
        self
    }

    pub(crate) fn rows(&self) -> Vec<Value> {
        self.stdout.lines().map(|line| serde_json::from_str(line).expect("a JSON object a line")).collect()
    }

    /// The outcomes of all rows.
    pub(crate) fn outcomes(&self) -> Vec<String> {
        self.rows().iter().map(|row| text(&row["outcome"])).collect()
    }

    /// The whole output, with ids and paths replaced.
    pub(crate) fn seen(&self) -> String {
        let all = format!("exit code {}\n--- stdout\n{}--- stderr\n{}", self.code, self.stdout, self.stderr);
        without_ids(&all.replace(&self.folder, "FOLDER"))
    }
}

/// A valid receipt of another kind of store.
pub(crate) fn foreign_receipt() -> String {
    let (queue, id) = ("orders".parse().expect("a name"), postrider::MessageId::generate());
    let (token, native) = (postrider::provider::LeaseToken(7), postrider::provider::NativeRef::Row(1));
    postrider::ReceiptHandle::new("memory", queue, id, token, native).to_string()
}

pub(crate) fn text(value: &Value) -> String {
    value.as_str().unwrap_or_else(|| panic!("{value} is no text")).to_owned()
}

/// Each UUID becomes `ID`, each receipt `RECEIPT`.
fn without_ids(text: &str) -> String {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_' || c == '.';
    let mut shown = String::new();
    for piece in text.split_inclusive(|c| !is_part(c)) {
        let word = piece.trim_end_matches(|c| !is_part(c));
        let bare = word.trim_end_matches('.');
        let is_id = bare.len() == 36 && bare.matches('-').count() == 4;
        let name = if is_id { "ID" } else { "RECEIPT" };
        if is_id || bare.starts_with("pr1.") && bare.len() > 40 {
            shown.push_str(&piece.replacen(bare, name, 1));
        } else {
            shown.push_str(piece);
        }
    }
    shown
}
