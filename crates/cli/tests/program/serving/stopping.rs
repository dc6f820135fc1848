//! How a server ends.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Stdio;
use std::time::Duration;

use rustix::process::Signal;

use super::served::Served;
use crate::place::{PROGRAM, Place, text};
use crate::tasks::eventually;

/// A client that waits for a message, once the server knows that it waits.
fn wait_for_a_message(served: &Served) -> std::process::Child {
    let mut command = served.place.command(PROGRAM);
    let receive = ["receive", "orders", "--wait", "50s"];
    let child = command.args(receive).stdin(Stdio::null()).spawn().expect("the program starts");
    eventually("it waits", || served.get("/v1/workers").contains("\"waiting\":true").then_some(()));
    child
}

#[test]
fn every_signal_ends_a_server_with_a_waiting_client_quickly() {
    for signal in [Signal::TERM, Signal::INT, Signal::HUP] {
        let served = Served::start(Place::new());
        let mut client = wait_for_a_message(&served);
        served.signal(signal);
        let (code, said, took) = served.end();
        assert_eq!(code, Some(0), "{said}");
        assert!(said.contains("finishing what runs; once more to end it at once"), "{said}");
        assert!(took < Duration::from_secs(20), "{took:?}");
        client.kill().unwrap();
        client.wait().unwrap();
    }
}

#[test]
fn a_second_signal_does_not_wait_for_a_request_that_never_ends() {
    let home = Place::new().with("POSTRIDER__SERVER__GRACEFUL_TIMEOUT", "50s");
    let home = home.with("POSTRIDER__SERVER__BODY_TIMEOUT", "50s");
    let served = Served::start(home);
    // A body that does not come. The server asks for it, so it has begun to read.
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
    // The first one is known to have come when nobody is let in any more.
    eventually("it stops", || TcpStream::connect(&address).is_err().then_some(()));
    served.signal(Signal::TERM);
    let (code, said, took) = served.end();
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("ended at once"), "{said}");
    assert!(took < Duration::from_secs(20), "{took:?}");
}

#[test]
fn what_was_sent_is_there_after_a_restart_and_a_receipt_of_before_is_good() {
    let served = Served::start(Place::new());
    let store = format!("sqlite:{}", served.home.file("queues.db").display());
    served.place.send(&["orders", "hello"]);
    let receipt = served.place.receive(&["orders"]);
    served.signal(Signal::TERM);
    let address = text(&served.row["address"]);
    let (home, again) = restart(served, &address, &store);
    assert_eq!(again.place.run(&["--json", "ack", &receipt]).done().outcomes(), ["acked"]);
    drop((again, home));
}

/// Another server at the same place, on the same store. The first one's folder goes with what is answered first.
fn restart(served: Served, address: &str, store: &str) -> (Place, Served) {
    let (code, said, home) = served.end_in_place();
    assert_eq!(code, Some(0), "{said}");
    (home, Served::start_with(Place::bare().at(store), &["--listen", address]))
}
