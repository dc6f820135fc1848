//! The task stores of the tests: a file, a schema in a database server, or a Postrider server.

use std::ops::Deref;
use std::process::Stdio;
use std::time::{Duration, Instant};

use postrider::postgres::tokio_postgres::{self, NoTls};
use rustix::process::Pid;
use serde_json::Value;

use crate::listening_program;
use crate::scratch::{Run, Scratch, text};
use crate::servers::{postgres, unique};
use crate::serving::served::Served;
use crate::work::scratch::{TIMEOUT, Worker};

/// Both values of `tasks.mode`.
pub(super) const MODES: [&str; 2] = ["polling", "queue"];

/// The folder of a test, and the resources of its store.
pub(super) struct Home {
    pub(super) scratch: TaskScratch,
    behind: Behind,
}

/// Resources that must outlive the folder.
pub(super) enum Behind {
    Nothing,
    Schema { _dropped: Schema },
    Server { _ended: Box<Served> },
}

impl Home {
    /// In a file.
    pub(super) fn sqlite() -> Self {
        Self { scratch: TaskScratch(Scratch::new()), behind: Behind::Nothing }
    }

    /// In PostgreSQL.
    pub(super) fn postgres() -> Self {
        let (url, schema) = (postgres(), unique("cli_task"));
        let scratch = Scratch::bare().at(&url).with("POSTRIDER__COMMON__MESSAGING__POSTGRES__SCHEMA", &schema);
        Self { scratch: TaskScratch(scratch), behind: Behind::Schema { _dropped: Schema { url, name: schema } } }
    }

    /// In a file, behind a server.
    pub(super) fn served(mode: &str) -> Self {
        // The settings of tasks are the server's, not the client's.
        let home = Scratch::new().with("POSTRIDER__TASKS__MODE", mode).with("POSTRIDER__TASKS__DEAD_EVENTS", "deaths");
        let mut served = Served::start(home);
        let scratch = std::mem::replace(&mut served.scratch, Scratch::bare());
        Self { scratch: TaskScratch(scratch), behind: Behind::Server { _ended: Box::new(served) } }
    }

    /// On every kind of store whose chores this program runs itself.
    pub(super) fn in_databases() -> [Self; 2] {
        [Self::sqlite(), Self::postgres()]
    }

    /// On every kind of store that keeps tasks.
    pub(super) fn everywhere() -> [Self; 3] {
        [Self::sqlite(), Self::postgres(), Self::served(MODES[0])]
    }

    /// On every kind of store, in either mode.
    pub(super) fn in_every_mode() -> Vec<(&'static str, Self)> {
        let modes = MODES.into_iter().flat_map(|mode| Self::everywhere().map(|home| (mode, home.in_mode(mode))));
        modes.collect()
    }

    /// The folder, and the resources that must outlive it.
    pub(super) fn with_scratch(self) -> (Behind, TaskScratch) {
        (self.behind, self.scratch)
    }

    /// Whether a server does the chores.
    pub(super) fn is_served(&self) -> bool {
        matches!(self.behind, Behind::Server { .. })
    }

    /// With `tasks.mode`.
    pub(super) fn in_mode(mut self, mode: &str) -> Self {
        if self.is_served() {
            return Self::served(mode);
        }
        self.scratch = self.scratch.with("POSTRIDER__TASKS__MODE", mode);
        self
    }
}

/// A schema, dropped at the end of the test.
pub(super) struct Schema {
    url: String,
    name: String,
}

impl Drop for Schema {
    fn drop(&mut self) {
        let (url, drop) = (self.url.clone(), format!("drop schema if exists {} cascade", self.name));
        // A separate thread, because a test may be in a runtime. A failed cleanup does not fail the test.
        let dropped = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let Ok((client, connection)) = tokio_postgres::connect(&url, NoTls).await else { return };
                tokio::spawn(connection);
                let _ = client.batch_execute(&drop).await;
            });
        });
        let _ = dropped.join();
    }
}

/// A scratch folder with tasks.
pub(super) struct TaskScratch(pub(super) Scratch);

impl Deref for TaskScratch {
    type Target = Scratch;

    fn deref(&self) -> &Scratch {
        &self.0
    }
}

impl TaskScratch {
    pub(super) fn with(self, variable: &'static str, value: impl Into<String>) -> Self {
        Self(self.0.with(variable, value))
    }

    /// Creates a task and returns its id.
    pub(super) fn create(&self, args: &[&str]) -> String {
        text(&self.row(&[&["task", "create"], args].concat())["id"])
    }

    /// Runs a shell script for every due task of a type.
    pub(super) fn drain(&self, task_type: &str, script: &str) -> Run {
        self.run(&["--json", "task", "worker", "--type", task_type, "--drain", "--", "sh", "-c", script]).done()
    }

    /// Starts a worker whose command is a shell script.
    pub(super) fn start(&self, args: &[&str], script: &str) -> Worker {
        let mut command = self.command("env");
        command.args(listening_program().get_args()).args(["--json", "task", "worker"]).args(args);
        command.args(["--", "sh", "-c", script]);
        Worker::start(command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()))
    }

    pub(super) fn get(&self, id: &str) -> Value {
        self.row(&["task", "get", id])
    }

    pub(super) fn state(&self, id: &str) -> String {
        text(&self.get(id)["state"])
    }

    /// Waits for the process id that a script writes into a file.
    pub(super) fn process(&self, file: &str) -> Pid {
        eventually("a process has begun", || {
            let text = std::fs::read_to_string(self.file(file)).unwrap_or_default();
            text.strip_suffix('\n').map(|id| Pid::from_raw(id.trim().parse().unwrap()).unwrap())
        })
    }

    pub(super) fn touch(&self, file: &str) {
        std::fs::write(self.file(file), "").unwrap();
    }
}

/// Polls until `check` returns a value.
pub(crate) fn eventually<T>(what: &str, check: impl Fn() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(found) = check() {
            return found;
        }
        assert!(begun.elapsed() < TIMEOUT, "{what}: not within {TIMEOUT:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}
