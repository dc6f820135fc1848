//! What a user can get wrong on the command line.

use crate::scratch::{Scratch, foreign_receipt};

#[test]
fn wrong_usage_says_what_to_do() {
    let scratch = Scratch::bare();
    let receipt = &foreign_receipt();
    let wrong: &[(&str, &[&str])] = &[
        ("no_command", &[]),
        ("unknown_command", &["verfy"]),
        ("unknown_scheme", &["verify", "kafka://host"]),
        ("no_scheme", &["verify", "orders"]),
        ("no_scheme_file", &["verify", "shop.db"]),
        ("unknown_rule", &["verify", "memory:", "--rules", "L17"]),
        ("unknown_shell", &["completions", "tcsh"]),
        ("two_stores", &["migrate", "sqlite:/a", "--url", "sqlite:/b"]),
        ("two_stores_secret", &["migrate", "postgres://me:secret@a/b", "--url", "kafka://me:secret@host"]),
        ("memory", &["--url", "memory:", "send", "orders", "x"]),
        ("send_unknown_scheme", &["--url", "kafka://host", "send", "orders", "x"]),
        ("queue_name", &["send", "my orders", "x"]),
        ("queue_of_dead_letters", &["send", "orders_dlq", "x"]),
        ("header_without_sign", &["send", "orders", "x", "--header", "tenant"]),
        ("header_reserved", &["send", "orders", "x", "--header", "postrider-id=1"]),
        ("delay_negative", &["send", "orders", "x", "--delay", "-5s"]),
        ("delay_huge", &["send", "orders", "x", "--delay", "999999999999999999d"]),
        ("delay_without_unit", &["send", "orders", "x", "--delay", "5"]),
        ("priority", &["send", "orders", "x", "--priority", "10"]),
        ("id", &["send", "orders", "x", "--id", "7"]),
        ("key", &["send", "orders", "x", "--key", ""]),
        ("lines_with_id", &["send", "orders", "--lines", "--id", "0190163d-8694-739b-aea5-966c26f8ad91"]),
        ("header_twice", &["send", "orders", "x", "--header", "a=1", "--header", "a=2"]),
        ("workers_none", &["work", "orders", "--workers", "0", "--", "true"]),
        ("workers_too_many", &["work", "orders", "--workers", "10001", "--", "true"]),
        ("work_dead_letters", &["work", "orders_dlq", "--", "true"]),
        ("purge_dead_letters", &["purge", "orders_dlq"]),
        ("deliveries_none", &["work", "orders", "--max-deliveries", "0", "--", "true"]),
        ("seed", &["verify", "memory:", "--seed", "abc"]),
        ("peek_negative", &["peek", "orders", "--max", "-1"]),
        ("peek_none", &["peek", "orders", "--max", "0"]),
        ("dlq_list_none", &["dlq", "list", "orders", "--max", "0"]),
        ("receive_none", &["receive", "orders", "--max", "0"]),
        ("visibility_zero", &["receive", "orders", "--visibility", "0s"]),
        ("receipt_cut", &["nack", "pr1.BnNxbGl0ZQ"]),
        ("nack_two_ways", &["nack", receipt, "--retry-after", "1s", "--dead", "x"]),
        ("extend_no_duration", &["extend", receipt]),
        ("edit_nothing", &["dlq", "edit", "orders", "0190163d-8694-739b-aea5-966c26f8ad91"]),
    ];
    for (name, args) in wrong {
        insta::assert_snapshot!(format!("usage_{name}"), scratch.run(args).failed(2).seen());
    }
}

#[test]
fn a_body_over_the_limit_is_refused_before_it_is_read_to_its_end() {
    let scratch = Scratch::new().with("POSTRIDER__COMMON__MESSAGING__MAX_MESSAGE_BYTES", "1000");
    scratch.run_with(&["send", "orders"], &[b'x'; 1000]).done();
    let run = scratch.run_with(&["send", "orders"], &vec![b'x'; 10_000_000]).failed(2);
    insta::assert_snapshot!("body_too_long_on_stdin", run.seen());
    let run = scratch.run(&["send", "orders", &"x".repeat(1001)]).failed(2);
    insta::assert_snapshot!("body_too_long", run.seen());
    assert_eq!(scratch.row(&["stats", "orders"])["ready"], 1);
}

#[test]
fn headers_over_the_limit_are_refused() {
    let header = format!("a={}", "x".repeat(70_000));
    let run = Scratch::new().run(&["send", "orders", "x", "--header", &header]).failed(2);
    insta::assert_snapshot!("headers_too_long", run.seen());
}

#[test]
fn a_queue_that_must_not_be_created_is_reported() {
    let scratch = Scratch::new().with("POSTRIDER__COMMON__MESSAGING__CREATE_QUEUES", "false");
    insta::assert_snapshot!("queue_not_made", scratch.run(&["send", "orders", "x"]).failed(1).seen());
    let run = scratch.run_with(&["send", "orders", "--lines"], b"1\n2\n").failed(1);
    insta::assert_snapshot!("queue_not_made_lines", run.seen());
}
