//! A server with TLS.

use super::served::Served;
use crate::scratch::{Scratch, text};

const CA_FILE: &str = "POSTRIDER__COMMON__MESSAGING__HTTP__CA_FILE";

#[test]
fn a_server_with_a_certificate_accepts_clients_that_trust_it() {
    let home = Scratch::new();
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned(), "127.0.0.1".to_owned()]).unwrap();
    std::fs::write(home.file("server.pem"), made.cert.pem()).unwrap();
    std::fs::write(home.file("server.key"), made.signing_key.serialize_pem()).unwrap();
    let certificate = home.file("server.pem").display().to_string();
    let files = ["--tls-certificate", "server.pem", "--tls-key", "server.key"];
    let served = Served::start_with(home, &[&["--listen", "127.0.0.1:0"], &files[..]].concat());
    assert!(served.url().starts_with("https://127.0.0.1:"), "{}", served.url());

    let trusting = || Scratch::bare().at(served.url()).with(CA_FILE, &certificate);
    let id = trusting().send(&["orders", "hello"]);
    assert_eq!(text(&trusting().row(&["receive", "orders", "--ack"])["id"]), id);
    let token = trusting().run(&["token", "create", "anna", "--role", "admin"]).done().stdout;
    assert_eq!(trusting().with("POSTRIDER_TOKEN", token.trim()).rows(&["token", "list"]).len(), 1);
    assert!(trusting().run(&["stats"]).failed(1).stderr.contains("POSTRIDER_TOKEN"));
    for scratch in [&served.scratch, &Scratch::bare().at(served.url().replace("https", "http"))] {
        let run = scratch.run(&["stats"]).failed(1);
        assert!(run.stdout.is_empty() && !run.stderr.contains("POSTRIDER_TOKEN"), "{run:?}");
        let is_told = ["ca_file", "write https://"].iter().any(|words| run.stderr.contains(words));
        assert!(is_told, "{run:?}");
    }
}
