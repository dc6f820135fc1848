//! Every violation is named, and nothing else is.

use std::time::Duration;

use postrider_core::task::{
    AttemptOutcome, DeadReason, DeadTaskEvent, NewTask, PayloadRef, TaskAttempt, TaskId, TaskInfo, TaskState,
};
use postrider_core::{Key, Timestamp};

use super::{Moment, TaskEntry, TaskJournal, WorkEnd, judge_tasks, read_task_journal, repeated_events};

const LEASE: Duration = Duration::from_secs(30);

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_micros(1_700_000_000_000_000 + seconds * 1_000_000)
}

/// A story of tasks that can be spoiled. Each attempt takes five seconds.
#[derive(Default)]
struct Story {
    journal: Vec<TaskEntry>,
    tasks: Vec<(TaskInfo, Vec<TaskAttempt>)>,
    events: Vec<DeadTaskEvent>,
}

fn entry(task: TaskId, attempt: u32, moment: Moment, seconds: i64) -> TaskEntry {
    TaskEntry { task, attempt, moment, at: at(seconds), token: None, worker: "w1".into() }
}

impl Story {
    /// A task whose attempts ended like this, one after another from that second on.
    fn tell(&mut self, state: TaskState, outcomes: &[AttemptOutcome], from: i64) -> TaskId {
        let task = NewTask::new("mail", "{}").unwrap();
        let mut attempts = Vec::new();
        for (number, outcome) in (1..).zip(outcomes) {
            let begin = from + 10 * (i64::from(number) - 1);
            attempts.push(TaskAttempt {
                attempt: number,
                replay: 0,
                worker: "w1".into(),
                started_at: at(begin),
                ended_at: (*outcome != AttemptOutcome::Running).then(|| at(begin + 6)),
                outcome: *outcome,
                error: None,
            });
            self.journal.push(entry(task.id, number, Moment::Begin, begin));
            let end = match outcome {
                AttemptOutcome::Succeeded => Some(WorkEnd::Ok),
                AttemptOutcome::Failed => Some(WorkEnd::Failed),
                _ => None,
            };
            self.journal.extend(end.map(|end| entry(task.id, number, Moment::End(end), begin + 5)));
        }
        let is_dead = state == TaskState::Dead;
        let info = TaskInfo {
            id: task.id,
            task_type: task.task_type.clone(),
            state,
            priority: task.priority,
            ordering_key: None,
            is_blocked: false,
            idempotency_key: None,
            tags: Vec::new(),
            schedule: None,
            attempt_count: u32::try_from(attempts.len()).unwrap(),
            max_attempts: 3,
            retry_strategy: None,
            created_at: at(0),
            scheduled_for: at(0),
            deadline: None,
            enqueued_at: None,
            started_at: attempts.last().map(|attempt| attempt.started_at),
            finished_at: state.is_terminal().then(|| at(from + 100)),
            worker: Some("w1".into()),
            lease_expires_at: None,
            progress: None,
            dead_reason: is_dead.then_some(DeadReason::MaxAttempts),
            last_error: is_dead.then(|| "no".to_owned()),
            revision: 0,
            replay_count: 0,
        };
        if is_dead {
            self.events.push(DeadTaskEvent {
                task_id: task.id,
                task_type: task.task_type,
                worker_id: Some("w1".into()),
                attempt_count: info.attempt_count,
                max_attempts: 3,
                reason: DeadReason::MaxAttempts,
                error: "no".into(),
                dead_at: at(from + 100),
                payload: PayloadRef { revision: 0, bytes: 2 },
            });
        }
        self.tasks.push((info, attempts));
        task.id
    }

    fn good() -> Self {
        use AttemptOutcome::{Canceled, Failed, LeaseLost, Succeeded};
        let mut story = Self::default();
        story.tell(TaskState::Succeeded, &[Failed, Succeeded], 0);
        story.tell(TaskState::Dead, &[Failed, Failed, LeaseLost], 0);
        story.tell(TaskState::Canceled, &[Canceled], 0);
        story.tell(TaskState::Canceled, &[], 0);
        story
    }

    fn judged(&self) -> Vec<String> {
        judge_tasks(std::slice::from_ref(&self.journal), &self.tasks, &self.events, LEASE)
    }

    /// Ends the test unless exactly one violation is named, with these words.
    #[track_caller]
    fn is_accused_of(&self, words: &str) {
        let violations = self.judged();
        assert!(violations.len() == 1 && violations[0].contains(words), "not only '{words}': {violations:#?}");
    }
}

#[test]
fn a_good_story_is_not_accused() {
    assert_eq!(Story::good().judged(), Vec::<String>::new());
}

#[test]
fn a_task_that_has_not_ended_is_named() {
    let mut story = Story::good();
    story.tell(TaskState::Enqueued, &[AttemptOutcome::Failed], 0);
    story.is_accused_of("is ENQUEUED and has not ended");
}

#[test]
fn a_task_that_is_told_twice_is_named() {
    let mut story = Story::good();
    story.tasks.push(story.tasks[0].clone());
    story.is_accused_of("is told twice");
}

#[test]
fn an_attempt_that_began_twice_is_named() {
    let mut story = Story::good();
    let again = story.journal[0].clone();
    story.journal.push(TaskEntry { at: at(6), token: Some(7), ..again });
    story.is_accused_of("attempt 1 of task");
    story.is_accused_of("began twice");
}

#[test]
fn a_replay_begins_its_attempts_again() {
    let mut story = Story::default();
    let id = story.tell(TaskState::Dead, &[AttemptOutcome::Failed], 0);
    let (task, attempts) = &mut story.tasks[0];
    task.replay_count = 1;
    task.finished_at = Some(at(300));
    let replayed = TaskAttempt { replay: 1, started_at: at(200), ended_at: Some(at(206)), ..attempts[0].clone() };
    attempts.push(replayed);
    story.events.push(DeadTaskEvent { dead_at: at(300), ..story.events[0].clone() });
    story.journal.push(entry(id, 1, Moment::Begin, 200));
    story.journal.push(entry(id, 1, Moment::End(WorkEnd::Failed), 205));
    assert_eq!(story.judged(), Vec::<String>::new());
    story.events.remove(0);
    story.is_accused_of("after 1 replays and 1 deaths of it are told");
}

#[test]
fn a_count_that_is_not_the_number_of_attempts_is_named() {
    let mut story = Story::good();
    story.tasks[2].0.attempt_count = 2;
    story.is_accused_of("attempt_count of task");
}

#[test]
fn a_history_with_a_gap_or_a_repetition_is_named() {
    for number in [1, 3] {
        let mut story = Story::default();
        story.tell(TaskState::Dead, &[AttemptOutcome::LeaseLost, AttemptOutcome::LeaseLost], 0);
        story.journal.clear();
        story.tasks[0].1[1].attempt = number;
        let violations = story.judged();
        assert!(violations.iter().any(|it| it.contains("not one by one")), "{violations:#?}");
    }
}

#[test]
fn a_history_that_is_told_out_of_order_is_named() {
    let mut story = Story::good();
    story.tasks[1].1[0].ended_at = Some(at(15));
    story.is_accused_of("not told in the order");
}

#[test]
fn an_attempt_that_never_ended_is_named() {
    let mut story = Story::good();
    story.tasks[2].1[0].ended_at = None;
    story.is_accused_of("is told to be canceled and to have ended at None");
}

#[test]
fn a_beginning_that_the_history_does_not_know_is_named() {
    let mut story = Story::good();
    let id = story.tasks[3].0.id;
    story.journal.push(entry(id, 1, Moment::Begin, 50));
    story.is_accused_of("its history does not know it");
    // Unless it was given back: then it counts for nothing.
    story.journal.push(entry(id, 1, Moment::End(WorkEnd::Released), 51));
    assert_eq!(story.judged(), Vec::<String>::new());
    story.journal[0].worker = "w2".into();
    story.journal[1].worker = "w2".into();
    story.is_accused_of("worker 'w2' began attempt 1");
}

#[test]
fn work_on_a_task_that_the_store_does_not_know_is_named() {
    let mut story = Story::good();
    story.journal.push(entry(TaskId::generate(), 1, Moment::Begin, 50));
    story.is_accused_of("the store does not know it");
}

#[test]
fn an_end_without_a_beginning_is_named() {
    let mut story = Story::good();
    let id = story.tasks[0].0.id;
    story.journal.push(entry(id, 2, Moment::End(WorkEnd::Ok), 60));
    story.is_accused_of("never began it");
}

#[test]
fn a_success_that_nobody_brought_about_is_named() {
    let mut story = Story::good();
    story.journal[3].moment = Moment::End(WorkEnd::Failed);
    story.is_accused_of("nobody did its last attempt to the end");
    story.journal.drain(2..4);
    story.is_accused_of("nobody did its last attempt to the end");
}

#[test]
fn a_second_success_is_named() {
    let mut story = Story::good();
    story.tasks[0].1[0].outcome = AttemptOutcome::Succeeded;
    story.is_accused_of("2 of its attempts succeeded");
}

#[test]
fn too_many_attempts_are_named() {
    let mut story = Story::good();
    story.tasks[1].0.max_attempts = 2;
    story.is_accused_of("was tried 3 times, at most 2 are allowed");
}

#[test]
fn a_death_that_was_not_told_is_named() {
    let mut story = Story::good();
    story.events.clear();
    story.is_accused_of("is DEAD after 0 replays and 0 deaths of it are told");
}

#[test]
fn a_death_that_was_told_again_is_counted_apart() {
    let mut story = Story::good();
    assert_eq!(repeated_events(&story.events), 0);
    story.events.push(story.events[0].clone());
    assert_eq!(story.judged(), Vec::<String>::new());
    assert_eq!(repeated_events(&story.events), 1);
    // Another time is another death.
    story.events[1].dead_at = at(7);
    assert_eq!(repeated_events(&story.events), 0);
    story.is_accused_of("2 deaths of it are told");
}

#[test]
fn an_event_of_what_did_not_die_is_named() {
    let mut story = Story::good();
    story.events[0].task_id = TaskId::generate();
    let violations = story.judged();
    assert!(violations.iter().any(|it| it.contains("is told, and the store does not know it")), "{violations:#?}");
    let mut story = Story::good();
    let alive = DeadTaskEvent { task_id: story.tasks[0].0.id, ..story.events[0].clone() };
    story.events.push(alive);
    story.is_accused_of("is SUCCEEDED after 0 replays and 1 deaths of it are told");
}

#[test]
fn an_event_that_tells_another_death_is_named() {
    let mut story = Story::good();
    story.events[0].reason = DeadReason::Permanent;
    story.is_accused_of("is not what it died of");
}

/// Two tasks of one key, whose attempts begin at these seconds.
fn keyed(first: AttemptOutcome, state: TaskState, second_begins: i64) -> Story {
    let mut story = Story::default();
    story.tell(state, &[first], 0);
    story.tell(TaskState::Succeeded, &[AttemptOutcome::Succeeded], second_begins);
    for (task, _) in &mut story.tasks {
        task.ordering_key = Some(Key::new("ordering key", "k").unwrap());
    }
    story
}

#[test]
fn two_attempts_of_one_key_at_once_are_named() {
    let done = |second| keyed(AttemptOutcome::Succeeded, TaskState::Succeeded, second);
    assert_eq!(done(5).judged(), Vec::<String>::new());
    done(4).is_accused_of("key 'k' of type mail: attempt 1 of task");
    // Other keys may run at the same time.
    let mut story = done(4);
    story.tasks[1].0.ordering_key = Some(Key::new("ordering key", "l").unwrap());
    assert_eq!(story.judged(), Vec::<String>::new());
}

#[test]
fn a_lost_worker_is_protected_for_its_lease_and_no_longer() {
    let lost = |second| keyed(AttemptOutcome::LeaseLost, TaskState::Dead, second);
    assert_eq!(lost(30).judged(), Vec::<String>::new());
    lost(28).is_accused_of("key 'k' of type mail: attempt 1 of task");
    // It may go on for long after that: what it does is nobody's.
    let mut story = lost(30);
    let late = entry(story.tasks[0].0.id, 1, Moment::End(WorkEnd::Ok), 90);
    story.journal.push(late);
    assert_eq!(story.judged(), Vec::<String>::new());
}

#[test]
fn two_attempts_of_one_task_at_once_are_named() {
    let mut story = Story::good();
    story.journal[1].at = at(11);
    story.is_accused_of("attempt 2 of task");
}

#[test]
fn a_journal_is_read_as_it_was_written() {
    let folder = std::env::temp_dir().join(format!("postrider-tasks-{}", uuid::Uuid::new_v4()));
    std::fs::create_dir(&folder).unwrap();
    let path = folder.join("w 1.journal");
    assert_eq!(read_task_journal(&path).unwrap(), Vec::new());
    let journal = TaskJournal::open(&path, "host w:1").unwrap();
    let (first, second) = (TaskId::generate(), TaskId::generate());
    let note = journal.begin(first, 1, Some(-7));
    drop(TaskJournal::open(&path, "host w:1").unwrap().begin(second, 2, None));
    note.end(WorkEnd::Ok);
    std::fs::OpenOptions::new()
        .append(true)
        .open(&path)
        .and_then(|mut file| std::io::Write::write_all(&mut file, b"01890a5d-ac96 1 beg"))
        .unwrap();
    let lines = read_task_journal(&path).unwrap();
    let seen: Vec<_> = lines.iter().map(|it| (it.task, it.attempt, it.token, it.moment)).collect();
    let expected = vec![
        (first, 1, Some(-7), Moment::Begin),
        (second, 2, None, Moment::Begin),
        (second, 2, None, Moment::End(WorkEnd::Dropped)),
        (first, 1, Some(-7), Moment::End(WorkEnd::Ok)),
    ];
    assert_eq!(seen, expected);
    assert!(lines.iter().all(|it| it.worker == "host w:1"));
    assert!(lines.is_sorted_by_key(|it| it.at));
    std::fs::write(&path, "nonsense\n").unwrap();
    assert!(read_task_journal(&path).is_err());
    std::fs::remove_dir_all(&folder).unwrap();
}
