//! The status line on a terminal.

use std::fs::File;
use std::io::Read;
use std::process::Stdio;
use std::sync::{Arc, Mutex};

use postrider::Message;
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};

use super::scratch::{Scratch, Worker};

/// A terminal that records its output.
struct Terminal {
    screen: File,
    shown: Arc<Mutex<Vec<u8>>>,
    reader: std::thread::JoinHandle<()>,
}

impl Terminal {
    fn new() -> Self {
        let controller = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&controller).unwrap();
        unlockpt(&controller).unwrap();
        let name = ptsname(&controller, Vec::new()).unwrap().into_string().unwrap();
        let screen = File::options().read(true).write(true).open(name).unwrap();
        let shown = Arc::new(Mutex::new(Vec::new()));
        let seen = shown.clone();
        let reader = std::thread::spawn(move || {
            let mut piece = [0; 4096];
            let mut controller = File::from(controller);
            // The read fails when the last writer is closed.
            while let Ok(read @ 1..) = controller.read(&mut piece) {
                seen.lock().unwrap().extend_from_slice(&piece[..read]);
            }
        });
        Self { screen, shown, reader }
    }

    fn stdio(&self) -> Stdio {
        self.screen.try_clone().unwrap().into()
    }

    fn shown(&self) -> String {
        String::from_utf8_lossy(&self.shown.lock().unwrap()).replace("\r\n", "\n")
    }

    /// The whole output, after all writers are closed.
    fn finished(self) -> String {
        let Self { screen, shown, reader } = self;
        drop(screen);
        reader.join().unwrap();
        let shown = shown.lock().unwrap();
        String::from_utf8_lossy(&shown).replace("\r\n", "\n")
    }
}

/// The lines that remain visible: the text after the last erase of each.
fn left(shown: &str) -> Vec<&str> {
    shown.lines().map(|line| line.rsplit("\x1b[2K").next().unwrap()).collect()
}

#[test]
fn the_status_line_is_drawn_and_removed_at_the_end() {
    let scratch = Scratch::new();
    let id = scratch.send(Message::new("a"));
    let terminal = Terminal::new();
    let wait = "do sleep 0.02; done";
    let script = format!("printf 'half a '; until test -e go; {wait}; echo line; until test -e on; {wait}; exit 65");
    let mut work = scratch.work(&["--drain"], &script);
    work.env("TERM", "xterm").stdout(terminal.stdio()).stderr(terminal.stdio());
    let worker = Worker::start(&mut work);
    drop(work);
    scratch.eventually("it prints", || terminal.shown().contains("half a ").then_some(()));
    std::fs::write(scratch.file("go"), "").unwrap();
    let line = "1 running, 0 done, 0 retried, 0 dead, 0 lost, 0.0 a second";
    scratch.eventually("the line is drawn", || terminal.shown().contains(line).then_some(()));
    std::fs::write(scratch.file("on"), "").unwrap();
    assert!(worker.wait().status.success());
    let shown = terminal.finished();
    let left = left(&shown);
    assert_eq!((left.len(), left[0]), (4, "half a line"), "{shown:?}");
    assert!(left[1].contains(" ERROR postrider_subscriber: a message is dead"), "{shown:?}");
    assert!(left[2].starts_with(&format!("{id} dead-lettered: rejected, exit code 65, ")), "{shown:?}");
    assert!(left[3].contains("  INFO postrider: 0 done, 0 retried, 1 dead, 0 lost in "), "{shown:?}");
    assert!(shown.ends_with('\n') && !shown.contains("half a \n"), "{shown:?}");
}

#[test]
fn nothing_is_drawn_with_json_or_on_a_dumb_terminal() {
    for (args, term) in [(&["--drain", "--json"][..], "xterm"), (&["--drain"][..], "dumb")] {
        let scratch = Scratch::new();
        scratch.send(Message::new("a"));
        let terminal = Terminal::new();
        let mut work = scratch.work(args, "sleep 0.6");
        work.env("TERM", term).stdout(terminal.stdio()).stderr(terminal.stdio());
        let worker = Worker::start(&mut work);
        drop(work);
        assert!(worker.wait().status.success());
        let shown = terminal.finished();
        assert!(!shown.contains('\x1b') && shown.contains("1 done"), "{shown:?}");
    }
}
