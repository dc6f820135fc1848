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

/// Valid tasks with their journal, for tests to break. Each attempt takes five seconds.
#[derive(Default)]
struct TestTasks {
    journal: Vec<TaskEntry>,
    tasks: Vec<(TaskInfo, Vec<TaskAttempt>)>,
    events: Vec<DeadTaskEvent>,
}

fn entry(task: TaskId, attempt: u32, moment: Moment, seconds: i64) -> TaskEntry {
    TaskEntry { task, attempt, moment, at: at(seconds), token: None, worker: "w1".into() }
}

impl TestTasks {
    /// A task whose attempts ended like this, one after another from that second on.
    fn add_task(&mut self, state: TaskState, outcomes: &[AttemptOutcome], from: i64) -> TaskId {
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

    fn valid() -> Self {
        use AttemptOutcome::{Canceled, Failed, LeaseLost, Succeeded};
        let mut tasks = Self::default();
        tasks.add_task(TaskState::Succeeded, &[Failed, Succeeded], 0);
        tasks.add_task(TaskState::Dead, &[Failed, Failed, LeaseLost], 0);
        tasks.add_task(TaskState::Canceled, &[Canceled], 0);
        tasks.add_task(TaskState::Canceled, &[], 0);
        tasks
    }

    fn violations(&self) -> Vec<String> {
        judge_tasks(std::slice::from_ref(&self.journal), &self.tasks, &self.events, LEASE)
    }

    /// Ends the test unless exactly one violation is named, with these words.
    #[track_caller]
    fn is_accused_of(&self, words: &str) {
        let violations = self.violations();
        assert!(violations.len() == 1 && violations[0].contains(words), "not only '{words}': {violations:#?}");
    }
}

#[test]
fn valid_tasks_have_no_violations() {
    assert_eq!(TestTasks::valid().violations(), Vec::<String>::new());
}

#[test]
fn a_task_that_has_not_ended_is_named() {
    let mut tasks = TestTasks::valid();
    tasks.add_task(TaskState::Enqueued, &[AttemptOutcome::Failed], 0);
    tasks.is_accused_of("is ENQUEUED and has not ended");
}

#[test]
fn a_task_listed_twice_is_named() {
    let mut tasks = TestTasks::valid();
    tasks.tasks.push(tasks.tasks[0].clone());
    tasks.is_accused_of("is listed twice");
}

#[test]
fn an_attempt_that_began_twice_is_named() {
    let mut tasks = TestTasks::valid();
    let again = tasks.journal[0].clone();
    tasks.journal.push(TaskEntry { at: at(6), token: Some(7), ..again });
    tasks.is_accused_of("attempt 1 of task");
    tasks.is_accused_of("began twice");
}

#[test]
fn a_replay_resets_attempt_numbers() {
    let mut tasks = TestTasks::default();
    let id = tasks.add_task(TaskState::Dead, &[AttemptOutcome::Failed], 0);
    let (task, attempts) = &mut tasks.tasks[0];
    task.replay_count = 1;
    task.finished_at = Some(at(300));
    let replayed = TaskAttempt { replay: 1, started_at: at(200), ended_at: Some(at(206)), ..attempts[0].clone() };
    attempts.push(replayed);
    tasks.events.push(DeadTaskEvent { dead_at: at(300), ..tasks.events[0].clone() });
    tasks.journal.push(entry(id, 1, Moment::Begin, 200));
    tasks.journal.push(entry(id, 1, Moment::End(WorkEnd::Failed), 205));
    assert_eq!(tasks.violations(), Vec::<String>::new());
    tasks.events.remove(0);
    tasks.is_accused_of("after 1 replays and has 1 dead-task events");
}

#[test]
fn a_count_that_is_not_the_number_of_attempts_is_named() {
    let mut tasks = TestTasks::valid();
    tasks.tasks[2].0.attempt_count = 2;
    tasks.is_accused_of("attempt_count of task");
}

#[test]
fn a_history_with_a_gap_or_a_repetition_is_named() {
    for number in [1, 3] {
        let mut tasks = TestTasks::default();
        tasks.add_task(TaskState::Dead, &[AttemptOutcome::LeaseLost, AttemptOutcome::LeaseLost], 0);
        tasks.journal.clear();
        tasks.tasks[0].1[1].attempt = number;
        let violations = tasks.violations();
        assert!(violations.iter().any(|it| it.contains("not one by one")), "{violations:#?}");
    }
}

#[test]
fn a_history_out_of_order_is_named() {
    let mut tasks = TestTasks::valid();
    tasks.tasks[1].1[0].ended_at = Some(at(15));
    tasks.is_accused_of("not listed in the order");
}

#[test]
fn an_attempt_that_never_ended_is_named() {
    let mut tasks = TestTasks::valid();
    tasks.tasks[2].1[0].ended_at = None;
    tasks.is_accused_of("is recorded as canceled and as ended at None");
}

#[test]
fn a_start_missing_from_the_history_is_named() {
    let mut tasks = TestTasks::valid();
    let id = tasks.tasks[3].0.id;
    tasks.journal.push(entry(id, 1, Moment::Begin, 50));
    tasks.is_accused_of("its history does not have it");
    // A released attempt does not count.
    tasks.journal.push(entry(id, 1, Moment::End(WorkEnd::Released), 51));
    assert_eq!(tasks.violations(), Vec::<String>::new());
    tasks.journal[0].worker = "w2".into();
    tasks.journal[1].worker = "w2".into();
    tasks.is_accused_of("worker 'w2' began attempt 1");
}

#[test]
fn work_on_an_unknown_task_is_named() {
    let mut tasks = TestTasks::valid();
    tasks.journal.push(entry(TaskId::generate(), 1, Moment::Begin, 50));
    tasks.is_accused_of("the store has no such task");
}

#[test]
fn an_end_without_a_start_is_named() {
    let mut tasks = TestTasks::valid();
    let id = tasks.tasks[0].0.id;
    tasks.journal.push(entry(id, 2, Moment::End(WorkEnd::Ok), 60));
    tasks.is_accused_of("never began it");
}

#[test]
fn a_success_without_a_finished_attempt_is_named() {
    let mut tasks = TestTasks::valid();
    tasks.journal[3].moment = Moment::End(WorkEnd::Failed);
    tasks.is_accused_of("no worker finished its last attempt");
    tasks.journal.drain(2..4);
    tasks.is_accused_of("no worker finished its last attempt");
}

#[test]
fn a_second_success_is_named() {
    let mut tasks = TestTasks::valid();
    tasks.tasks[0].1[0].outcome = AttemptOutcome::Succeeded;
    tasks.is_accused_of("2 of its attempts succeeded");
}

#[test]
fn too_many_attempts_are_named() {
    let mut tasks = TestTasks::valid();
    tasks.tasks[1].0.max_attempts = 2;
    tasks.is_accused_of("was tried 3 times, at most 2 are allowed");
}

#[test]
fn a_death_without_an_event_is_named() {
    let mut tasks = TestTasks::valid();
    tasks.events.clear();
    tasks.is_accused_of("is DEAD after 0 replays and has 0 dead-task events");
}

#[test]
fn a_repeated_event_is_counted() {
    let mut tasks = TestTasks::valid();
    assert_eq!(repeated_events(&tasks.events), 0);
    tasks.events.push(tasks.events[0].clone());
    assert_eq!(tasks.violations(), Vec::<String>::new());
    assert_eq!(repeated_events(&tasks.events), 1);
    // An event at another time is another death.
    tasks.events[1].dead_at = at(7);
    assert_eq!(repeated_events(&tasks.events), 0);
    tasks.is_accused_of("has 2 dead-task events");
}

#[test]
fn an_event_of_a_task_that_did_not_die_is_named() {
    let mut tasks = TestTasks::valid();
    tasks.events[0].task_id = TaskId::generate();
    let violations = tasks.violations();
    assert!(
        violations.iter().any(|it| it.contains("has a dead-task event, and the store has no such task")),
        "{violations:#?}"
    );
    let mut tasks = TestTasks::valid();
    let alive = DeadTaskEvent { task_id: tasks.tasks[0].0.id, ..tasks.events[0].clone() };
    tasks.events.push(alive);
    tasks.is_accused_of("is SUCCEEDED after 0 replays and has 1 dead-task events");
}

#[test]
fn an_event_with_another_death_is_named() {
    let mut tasks = TestTasks::valid();
    tasks.events[0].reason = DeadReason::Permanent;
    tasks.is_accused_of("differs from its record");
}

/// Two tasks of one key, whose attempts begin at these seconds.
fn keyed(first: AttemptOutcome, state: TaskState, second_begins: i64) -> TestTasks {
    let mut tasks = TestTasks::default();
    tasks.add_task(state, &[first], 0);
    tasks.add_task(TaskState::Succeeded, &[AttemptOutcome::Succeeded], second_begins);
    for (task, _) in &mut tasks.tasks {
        task.ordering_key = Some(Key::new("ordering key", "k").unwrap());
    }
    tasks
}

#[test]
fn two_attempts_of_one_key_at_once_are_named() {
    let done = |second| keyed(AttemptOutcome::Succeeded, TaskState::Succeeded, second);
    assert_eq!(done(5).violations(), Vec::<String>::new());
    done(4).is_accused_of("key 'k' of type mail: attempt 1 of task");
    // Other keys may run at the same time.
    let mut tasks = done(4);
    tasks.tasks[1].0.ordering_key = Some(Key::new("ordering key", "l").unwrap());
    assert_eq!(tasks.violations(), Vec::<String>::new());
}

#[test]
fn a_lost_worker_is_protected_for_its_lease_and_no_longer() {
    let lost = |second| keyed(AttemptOutcome::LeaseLost, TaskState::Dead, second);
    assert_eq!(lost(30).violations(), Vec::<String>::new());
    lost(28).is_accused_of("key 'k' of type mail: attempt 1 of task");
    // It may run on long after that without a violation.
    let mut tasks = lost(30);
    let late = entry(tasks.tasks[0].0.id, 1, Moment::End(WorkEnd::Ok), 90);
    tasks.journal.push(late);
    assert_eq!(tasks.violations(), Vec::<String>::new());
}

#[test]
fn two_attempts_of_one_task_at_once_are_named() {
    let mut tasks = TestTasks::valid();
    tasks.journal[1].at = at(11);
    tasks.is_accused_of("attempt 2 of task");
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
