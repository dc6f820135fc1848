//! `postrider verify`

use crate::scratch::{PROGRAM, Run, Scratch, text};

#[test]
fn verify_names_all_sixteen_rules_and_none_is_broken() {
    let run = Scratch::bare().run(&["verify", "memory:", "--messages", "500", "--seed", "7"]).done();
    insta::assert_snapshot!("verify_memory", run.stdout);
    assert_eq!(run.stderr, "");
}

#[test]
fn verify_prints_one_json_object_a_rule() {
    let rows = Scratch::bare().rows(&["verify", "memory:", "--messages", "200"]);
    let rules: Vec<_> = rows.iter().map(|row| text(&row["rule"])).collect();
    let expected: Vec<_> = (1..=16).map(|number| format!("L{number}")).collect();
    assert_eq!(rules, expected);
    for row in &rows {
        let (outcome, how) = (row["outcome"].as_str(), row["how"].as_str());
        match row["rule"].as_str() {
            Some("L14") => assert_eq!((outcome, how), (Some("refused"), None)),
            Some("L1") => assert_eq!((outcome, how), (Some("holds"), Some("emulated"))),
            _ => assert_eq!((outcome, how), (Some("holds"), Some("native")), "{row}"),
        }
    }
}

#[test]
fn an_outage_of_a_file_is_part_of_l14() {
    let rows = Scratch::new().rows(&["verify", "--rules", "L14", "--messages", "0"]);
    let l14 = rows.iter().find(|row| row["rule"] == "L14").unwrap();
    assert_eq!(l14["outcome"], "holds", "{l14}");
}

#[test]
fn verify_takes_the_store_from_the_environment_and_checks_only_the_given_rules() {
    let rows = Scratch::bare().at("memory:").rows(&["verify", "--rules", "l3,L7", "--messages", "0"]);
    let holding: Vec<_> = rows.iter().filter(|row| row["outcome"] == "holds").map(|row| text(&row["rule"])).collect();
    assert_eq!(holding, ["L3", "L7"]);
}

#[test]
fn verify_takes_the_store_from_the_flag_before_or_after_the_command() {
    for args in [["--url", "memory:", "verify"], ["verify", "--url", "memory:"]] {
        Scratch::bare().run(&[&args[..], &["--rules", "L3, L7", "--messages", "0"]].concat()).done();
    }
}

#[test]
fn verify_without_a_store_uses_the_embedded_one_and_leaves_its_queues_alone() {
    let scratch = Scratch::bare();
    scratch.send(&["orders", "stays"]);
    let run = scratch.run(&["verify", "--rules", "L7", "--messages", "0"]).done();
    assert!(run.stdout.contains(".local/share/postrider/postrider.db (provider sqlite"), "{run:?}");
    assert_eq!(scratch.run(&["queues"]).done().stdout, "orders\n");
    assert_eq!(scratch.row(&["peek", "orders"])["body"], "stays");
}

#[test]
fn verify_that_is_interrupted_says_so_and_removes_its_queues() {
    let scratch = Scratch::new();
    scratch.send(&["orders", "stays"]);
    let mut command = scratch.command("env");
    let child = command.args(["--default-signal=INT", PROGRAM, "verify", "--messages", "1000000"]).spawn();
    let mut child = child.unwrap();
    while scratch.rows(&["queues"]).len() < 2 {
        assert_eq!(child.try_wait().unwrap(), None, "it ended by itself");
    }
    let process = child.id().to_string();
    assert!(scratch.command("kill").args(["-INT", &process]).output().unwrap().status.success());
    let run = Run::of(child.wait_with_output().unwrap(), &scratch.file("")).failed(1);
    assert_eq!(run.stdout, "");
    insta::assert_snapshot!("verify_interrupted", run.stderr);
    assert_eq!(scratch.run(&["queues"]).done().stdout, "orders\n");
}
