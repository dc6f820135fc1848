//! Help texts and completions.

use crate::scratch::Scratch;

#[test]
fn help_texts() {
    let scratch = Scratch::bare();
    let texts = [
        ("help", &[][..]),
        ("help_send", &["send"]),
        ("help_receive", &["receive"]),
        ("help_ack", &["ack"]),
        ("help_nack", &["nack"]),
        ("help_release", &["release"]),
        ("help_extend", &["extend"]),
        ("help_queues", &["queues"]),
        ("help_queues_create", &["queues", "create"]),
        ("help_queues_delete", &["queues", "delete"]),
        ("help_stats", &["stats"]),
        ("help_peek", &["peek"]),
        ("help_purge", &["purge"]),
        ("help_message", &["message"]),
        ("help_message_deliver_now", &["message", "deliver-now"]),
        ("help_message_dead_letter", &["message", "dead-letter"]),
        ("help_message_delete", &["message", "delete"]),
        ("help_pause", &["pause"]),
        ("help_resume", &["resume"]),
        ("help_dlq", &["dlq"]),
        ("help_dlq_list", &["dlq", "list"]),
        ("help_dlq_groups", &["dlq", "groups"]),
        ("help_dlq_show", &["dlq", "show"]),
        ("help_dlq_edit", &["dlq", "edit"]),
        ("help_dlq_redrive", &["dlq", "redrive"]),
        ("help_dlq_purge", &["dlq", "purge"]),
        ("help_archive", &["archive"]),
        ("help_archive_list", &["archive", "list"]),
        ("help_archive_show", &["archive", "show"]),
        ("help_archive_send_again", &["archive", "send-again"]),
        ("help_task", &["task"]),
        ("help_task_create", &["task", "create"]),
        ("help_task_get", &["task", "get"]),
        ("help_task_list", &["task", "list"]),
        ("help_task_watch", &["task", "watch"]),
        ("help_task_cancel", &["task", "cancel"]),
        ("help_task_retry", &["task", "retry"]),
        ("help_task_edit", &["task", "edit"]),
        ("help_task_replay", &["task", "replay"]),
        ("help_task_worker", &["task", "worker"]),
        ("help_task_keeper", &["task", "keeper"]),
        ("help_schedule", &["schedule"]),
        ("help_schedule_create", &["schedule", "create"]),
        ("help_schedule_list", &["schedule", "list"]),
        ("help_schedule_show", &["schedule", "show"]),
        ("help_schedule_pause", &["schedule", "pause"]),
        ("help_schedule_resume", &["schedule", "resume"]),
        ("help_schedule_trigger", &["schedule", "trigger"]),
        ("help_schedule_delete", &["schedule", "delete"]),
        ("help_serve", &["serve"]),
        ("help_token", &["token"]),
        ("help_token_create", &["token", "create"]),
        ("help_token_list", &["token", "list"]),
        ("help_token_revoke", &["token", "revoke"]),
        ("help_config", &["config"]),
        ("help_migrate", &["migrate"]),
        ("help_bench", &["bench"]),
        ("help_doctor", &["doctor"]),
        ("help_verify", &["verify"]),
        ("help_completions", &["completions"]),
    ];
    for (name, command) in texts {
        insta::assert_snapshot!(name, scratch.run(&[command, &["--help"]].concat()).done().seen());
    }
}

#[test]
fn completions_name_the_commands() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = Scratch::bare().run(&["completions", shell]).done().stdout;
        for command in ["send", "receive", "redrive", "worker", "schedule", "serve", "token", "verify"] {
            assert!(script.contains(command), "{shell}: {command}");
        }
    }
}
