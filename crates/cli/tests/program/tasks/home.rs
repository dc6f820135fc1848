//! Where the tasks of a test are kept: a file, a schema of its own in a database server, or behind a Postrider server.

use std::ops::Deref;
use std::process::Stdio;
use std::time::{Duration, Instant};

use postrider::postgres::tokio_postgres::{self, NoTls};
use rustix::process::Pid;
use serde_json::Value;

use crate::listening_program;
use crate::place::{Place, Run, text};
use crate::servers::{postgres, unique};
use crate::serving::served::Served;
use crate::work::place::{PATIENCE, Worker};

/// Both ways by which tasks come to their workers.
pub(super) const MODES: [&str; 2] = ["polling", "queue"];

/// The folder of a test, and what goes with it.
pub(super) struct Home {
    pub(super) place: TaskPlace,
    behind: Behind,
}

/// What must outlive the place.
pub(super) enum Behind {
    Nothing,
    Schema { _dropped: Schema },
    Server { _ended: Box<Served> },
}

impl Home {
    /// In a file.
    pub(super) fn sqlite() -> Self {
        Self { place: TaskPlace(Place::new()), behind: Behind::Nothing }
    }

    /// In PostgreSQL.
    pub(super) fn postgres() -> Self {
        let (url, schema) = (postgres(), unique("cli_task"));
        let place = Place::bare().at(&url).with("POSTRIDER__COMMON__MESSAGING__POSTGRES__SCHEMA", &schema);
        Self { place: TaskPlace(place), behind: Behind::Schema { _dropped: Schema { url, name: schema } } }
    }

    /// In a file, behind a server.
    pub(super) fn served(mode: &str) -> Self {
        // How tasks go is the server's to say, whatever a place says.
        let home = Place::new().with("POSTRIDER__TASKS__MODE", mode).with("POSTRIDER__TASKS__DEAD_EVENTS", "deaths");
        let mut served = Served::start(home);
        let place = std::mem::replace(&mut served.place, Place::bare());
        Self { place: TaskPlace(place), behind: Behind::Server { _ended: Box::new(served) } }
    }

    /// On every kind of store whose tasks this program keeps going itself.
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

    /// The place, and what must outlive it.
    pub(super) fn with_place(self) -> (Behind, TaskPlace) {
        (self.behind, self.place)
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
        self.place = self.place.with("POSTRIDER__TASKS__MODE", mode);
        self
    }
}

/// A schema, which goes with the test.
pub(super) struct Schema {
    url: String,
    name: String,
}

impl Drop for Schema {
    fn drop(&mut self) {
        let (url, drop) = (self.url.clone(), format!("drop schema if exists {} cascade", self.name));
        // A thread of its own: a test may be in a runtime already. What the test says counts.
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

/// A place with tasks.
pub(super) struct TaskPlace(pub(super) Place);

impl Deref for TaskPlace {
    type Target = Place;

    fn deref(&self) -> &Place {
        &self.0
    }
}

impl TaskPlace {
    pub(super) fn with(self, variable: &'static str, value: impl Into<String>) -> Self {
        Self(self.0.with(variable, value))
    }

    /// Makes a task and answers its id.
    pub(super) fn create(&self, args: &[&str]) -> String {
        text(&self.row(&[&["task", "create"], args].concat())["id"])
    }

    /// Works on everything of a type that is due, by a shell script.
    pub(super) fn drain(&self, task_type: &str, script: &str) -> Run {
        self.run(&["--json", "task", "worker", "--type", task_type, "--drain", "--", "sh", "-c", script]).done()
    }

    /// A worker that runs, whose command is a shell script.
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

    /// The id of a process that a script wrote into a file, once the line is there.
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

/// Looks until it is there.
pub(crate) fn eventually<T>(what: &str, look: impl Fn() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(begun.elapsed() < PATIENCE, "{what}: not within {PATIENCE:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}
