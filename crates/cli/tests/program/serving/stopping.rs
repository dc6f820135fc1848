//! The stop of a server.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Stdio;
use std::time::Duration;

use rustix::process::Signal;

use super::served::Served;
use crate::scratch::{PROGRAM, Scratch, text};
use crate::tasks::eventually;

/// Starts a client that waits for a message, and waits until the server lists it.
fn wait_for_a_message(served: &Served) -> std::process::Child {
    let mut command = served.scratch.command(PROGRAM);
    let receive = ["receive", "orders", "--wait", "50s"];
    let child = command.args(receive).stdin(Stdio::null()).spawn().expect("the program starts");
    eventually("it waits", || served.get("/v1/workers").contains("\"waiting\":true").then_some(()));
    child
}

#[test]
fn every_signal_ends_a_server_with_a_waiting_client_quickly() {
    for signal in [Signal::TERM, Signal::INT, Signal::HUP] {
        let served = Served::start(Scratch::new());
        let mut client = wait_for_a_message(&served);
        served.signal(signal);
        let (code, printed, took) = served.end();
        assert_eq!(code, Some(0), "{printed}");
        assert!(printed.contains("finishing running work; a second signal ends it at once"), "{printed}");
        assert!(took < Duration::from_secs(20), "{took:?}");
        client.kill().unwrap();
        client.wait().unwrap();
    }
}

#[test]
fn a_second_signal_does_not_wait_for_a_request_that_never_ends() {
    let home = Scratch::new().with("POSTRIDER__SERVER__GRACEFUL_TIMEOUT", "50s");
    let home = home.with("POSTRIDER__SERVER__BODY_TIMEOUT", "50s");
    let served = Served::start(home);
    // A request without its body. The server sends 100, so it has started to read.
    let address = text(&served.row["address"]);
    let mut stream = TcpStream::connect(&address).unwrap();
    let head = format!(
        "POST /v1/queues/orders/messages HTTP/1.1\r\nhost: {address}\r\ncontent-type: application/json\r\n\
         content-length: 100\r\nexpect: 100-continue\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).unwrap();
    let mut answer = [0; 12];
    stream.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"HTTP/1.1 100");
    served.signal(Signal::TERM);
    // The first signal has arrived when new connections are refused.
    eventually("it stops", || TcpStream::connect(&address).is_err().then_some(()));
    served.signal(Signal::TERM);
    let (code, printed, took) = served.end();
    assert_eq!(code, Some(1), "{printed}");
    assert!(printed.contains("stopped at once"), "{printed}");
    assert!(took < Duration::from_secs(20), "{took:?}");
}

#[test]
fn messages_and_receipts_stay_valid_after_a_restart() {
    let served = Served::start(Scratch::new());
    let store = format!("sqlite:{}", served.home.file("queues.db").display());
    served.scratch.send(&["orders", "hello"]);
    let receipt = served.scratch.receive(&["orders"]);
    served.signal(Signal::TERM);
    let address = text(&served.row["address"]);
    let (home, again) = restart(served, &address, &store);
    assert_eq!(again.scratch.run(&["--json", "ack", &receipt]).done().outcomes(), ["acked"]);
    drop((again, home));
}

/// Starts another server at the same address, on the same store. Also returns the first one's folder, to keep it.
fn restart(served: Served, address: &str, store: &str) -> (Scratch, Served) {
    let (code, printed, home) = served.end_and_keep();
    assert_eq!(code, Some(0), "{printed}");
    (home, Served::start_with(Scratch::bare().at(store), &["--listen", address]))
}
