//! The program as a user meets it: what it prints where, and how it ends.

use std::process::{Command, Output};

fn postrider(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_postrider"))
        .args(args)
        .env_remove("POSTRIDER_URL")
        .env("COLUMNS", "100")
        .output()
        .expect("the program starts")
}

fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Everything that a user sees of a run.
fn seen(args: &[&str]) -> String {
    let output = postrider(args);
    let code = output.status.code().expect("an exit code");
    format!("exit code {code}\n--- stdout\n{}--- stderr\n{}", stdout(&output), stderr(&output))
}

#[test]
fn help_texts() {
    insta::assert_snapshot!("help", seen(&["--help"]));
    insta::assert_snapshot!("help_verify", seen(&["verify", "--help"]));
    insta::assert_snapshot!("help_completions", seen(&["completions", "--help"]));
}

#[test]
fn wrong_usage_says_what_to_do() {
    insta::assert_snapshot!("usage_no_command", seen(&[]));
    insta::assert_snapshot!("usage_unknown_command", seen(&["verfy"]));
    insta::assert_snapshot!("usage_no_store", seen(&["verify"]));
    assert_eq!(seen(&["verify", "--url", ""]), seen(&["verify"]));
    insta::assert_snapshot!("usage_unknown_scheme", seen(&["verify", "kafka://host"]));
    insta::assert_snapshot!("usage_no_scheme", seen(&["verify", "orders"]));
    insta::assert_snapshot!("usage_unknown_rule", seen(&["verify", "memory:", "--rules", "L17"]));
    insta::assert_snapshot!("usage_unknown_shell", seen(&["completions", "tcsh"]));
}

#[test]
fn verify_names_all_sixteen_rules_and_none_is_broken() {
    let output = postrider(&["verify", "memory:", "--messages", "500", "--seed", "7"]);
    assert!(output.status.success(), "{}{}", stdout(&output), stderr(&output));
    insta::assert_snapshot!("verify_memory", stdout(&output));
    assert_eq!(stderr(&output), "");
}

#[test]
fn verify_prints_one_json_object_a_rule() {
    let output = postrider(&["--json", "verify", "memory:", "--messages", "200"]);
    assert!(output.status.success(), "{}", stderr(&output));
    let rows: Vec<serde_json::Value> =
        stdout(&output).lines().map(|line| serde_json::from_str(line).expect("a JSON object a line")).collect();
    let rules: Vec<_> = rows.iter().map(|row| row["rule"].as_str().expect("a rule")).collect();
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
fn verify_takes_the_store_from_the_environment_and_only_the_rules_that_are_asked_for() {
    let output = Command::new(env!("CARGO_BIN_EXE_postrider"))
        .args(["--json", "verify", "--rules", "l3,L7", "--messages", "0"])
        .env("POSTRIDER_URL", "memory:")
        .output()
        .expect("the program starts");
    assert!(output.status.success(), "{}", stderr(&output));
    let holding: Vec<_> = stdout(&output)
        .lines()
        .filter(|line| line.contains(r#""outcome":"holds""#))
        .map(|line| line[..12].to_owned())
        .collect();
    assert_eq!(holding, [r#"{"rule":"L3""#, r#"{"rule":"L7""#]);
}

#[test]
fn verify_takes_the_store_from_the_flag_before_or_after_the_command() {
    for args in [["--url", "memory:", "verify"], ["verify", "--url", "memory:"]] {
        let output = postrider(&[&args[..], &["--rules", "L3, L7", "--messages", "0"]].concat());
        assert!(output.status.success(), "{}", stderr(&output));
    }
}

#[test]
fn completions_name_the_commands() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let output = postrider(&["completions", shell]);
        assert!(output.status.success());
        assert!(stdout(&output).contains("verify"), "{shell}");
    }
}
