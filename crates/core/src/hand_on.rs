//! Implementation of a contract by delegation.
//!
//! An enum of providers, or a pointer to one, only calls the same method of another object. Written by hand, that is a
//! page for each contract and a second box for each call, because an `async fn` wraps the future that it awaits. This
//! macro returns the inner future unchanged.

/// The body of an `impl` of a contract that delegates its calls. `$with!(self, callee => call)` selects the object.
///
/// ```
/// use postrider_core::{MemoryProvider, MessagingService, hand_on};
///
/// struct Wrapped(MemoryProvider);
///
/// macro_rules! inner {
///     ($self:ident, $callee:ident => $call:expr) => {{
///         let $callee = &$self.0;
///         $call
///     }};
/// }
///
/// impl MessagingService for Wrapped {
///     hand_on!(MessagingService, inner);
/// }
/// ```
#[macro_export]
macro_rules! hand_on {
    (MessagingService, $with:ident) => {
        fn provider_name(&self) -> &'static str {
            $with!(self, callee => callee.provider_name())
        }

        fn capabilities(&self) -> &$crate::Capabilities {
            $with!(self, callee => callee.capabilities())
        }

        $crate::hand_on! { @calls $crate::MessagingService, $with;
            ensure_queue ['a](queue: &'a $crate::QueueName, deadline: $crate::Deadline) -> ();
            ensure_queues ['a](queues: &'a [$crate::QueueName], deadline: $crate::Deadline) -> ();
            send_batch ['a](
                queue: &'a $crate::QueueName, messages: Vec<$crate::Message>, deadline: $crate::Deadline
            ) -> $crate::RowResults<$crate::MessageId>;
            send_message ['a](
                queue: &'a $crate::QueueName, message: $crate::Message, deadline: $crate::Deadline
            ) -> $crate::MessageId;
            receive_messages ['a, 'b](
                queue: &'a $crate::QueueName, options: &'b $crate::ReceiveOptions, deadline: $crate::Deadline
            ) -> Vec<$crate::QueuedMessage>;
            settle [](settlements: Vec<$crate::Settlement>, deadline: $crate::Deadline) -> $crate::RowResults<()>;
            settle_message ['a](
                queue: &'a $crate::QueueName, settlement: $crate::Settlement, deadline: $crate::Deadline
            ) -> ();
            ack_messages ['a](
                queue: &'a $crate::QueueName, receipts: Vec<$crate::ReceiptHandle>, deadline: $crate::Deadline
            ) -> $crate::RowResults<()>;
            settle_and_receive ['a, 'b](
                settlements: Vec<$crate::Settlement>, queues: &'a [$crate::QueueName], options: &'b
                $crate::ReceiveOptions, deadline: $crate::Deadline
            ) -> $crate::SettledAndReceived;
            extend_visibility ['a, 'b](
                queue: &'a $crate::QueueName, receipt: &'b $crate::ReceiptHandle, extension: std::time::Duration,
                deadline: $crate::Deadline
            ) -> $crate::ReceiptHandle;
            receive_by_id ['a, 'b](
                queue: &'a $crate::QueueName, id: $crate::MessageId, options: &'b $crate::ReceiveOptions, deadline:
                $crate::Deadline
            ) -> Option<$crate::QueuedMessage>;
            subscribe ['a](queue: &'a $crate::QueueName, deadline: $crate::Deadline) -> $crate::WakeUps;
            health_check [](deadline: $crate::Deadline) -> ();
            close [](deadline: $crate::Deadline) -> ();
        }
    };
    (QueueAdmin, $with:ident) => {
        $crate::hand_on! { @calls $crate::QueueAdmin, $with;
            list_queues [](deadline: $crate::Deadline) -> Vec<$crate::QueueName>;
            queue_stats ['a](queue: &'a $crate::QueueName, deadline: $crate::Deadline) -> $crate::QueueStats;
            verify_queues ['a](
                queues: &'a [$crate::QueueName], deadline: $crate::Deadline
            ) -> $crate::QueueHealthReport;
            peek ['a](
                queue: &'a $crate::QueueName, limit: usize, deadline: $crate::Deadline
            ) -> Vec<$crate::PeekedMessage>;
            peek_page ['a, 'b](
                queue: &'a $crate::QueueName, query: &'b $crate::PeekQuery, deadline: $crate::Deadline
            ) -> $crate::PeekPage;
            message_attempts ['a](
                queue: &'a $crate::QueueName, id: $crate::MessageId, deadline: $crate::Deadline
            ) -> Vec<$crate::MessageAttempt>;
            archived ['a, 'b](
                queue: &'a $crate::QueueName, query: &'b $crate::ArchiveQuery, deadline: $crate::Deadline
            ) -> $crate::ArchivePage;
            send_again ['a](
                queue: &'a $crate::QueueName, id: $crate::MessageId, deadline: $crate::Deadline
            ) -> $crate::MessageId;
            deliver_now ['a](
                queue: &'a $crate::QueueName, id: $crate::MessageId, deadline: $crate::Deadline
            ) -> ();
            dead_letter_waiting ['a](
                queue: &'a $crate::QueueName, id: $crate::MessageId, reason: $crate::DeadLetterReason, error:
                Option<String>, deadline: $crate::Deadline
            ) -> ();
            delete_waiting ['a](
                queue: &'a $crate::QueueName, id: $crate::MessageId, deadline: $crate::Deadline
            ) -> ();
            purge ['a](queue: &'a $crate::QueueName, deadline: $crate::Deadline) -> u64;
            pause ['a](queue: &'a $crate::QueueName, deadline: $crate::Deadline) -> ();
            resume ['a](queue: &'a $crate::QueueName, deadline: $crate::Deadline) -> ();
            delete_queue ['a](queue: &'a $crate::QueueName, deadline: $crate::Deadline) -> ();
        }
    };
    (DeadLetters, $with:ident) => {
        $crate::hand_on! { @calls $crate::DeadLetters, $with;
            list_dead_letters ['a, 'b](
                queue: &'a $crate::QueueName, query: &'b $crate::DeadLetterQuery, deadline: $crate::Deadline
            ) -> $crate::DeadLetterPage;
            find_dead_letters ['a, 'b, 'c](
                queue: &'a $crate::QueueName, selection: &'b $crate::DeadLetterSelection, error: Option<&'c str>,
                deadline: $crate::Deadline
            ) -> Vec<$crate::MessageId>;
            list_dead_letter_summaries ['a, 'b](
                queue: &'a $crate::QueueName, query: &'b $crate::DeadLetterQuery, deadline: $crate::Deadline
            ) -> $crate::DeadLetterSummaryPage;
            get_dead_letter ['a](
                queue: &'a $crate::QueueName, id: $crate::MessageId, deadline: $crate::Deadline
            ) -> $crate::DeadLetter;
            edit_dead_letter ['a](
                queue: &'a $crate::QueueName, id: $crate::MessageId, edit: $crate::DeadLetterEdit, deadline:
                $crate::Deadline
            ) -> $crate::DeadLetter;
            redrive_dead_letters ['a, 'b](
                queue: &'a $crate::QueueName, redrive: &'b $crate::Redrive, deadline: $crate::Deadline
            ) -> $crate::RedriveReport;
            purge_dead_letters ['a, 'b](
                queue: &'a $crate::QueueName, selection: &'b $crate::DeadLetterSelection, deadline: $crate::Deadline
            ) -> u64;
        }
    };
    (TaskStore, $with:ident) => {
        fn store_name(&self) -> &'static str {
            $with!(self, callee => callee.store_name())
        }

        fn routes(&self) -> &$crate::task::TaskRoutes {
            $with!(self, callee => callee.routes())
        }

        fn max_payload_bytes(&self) -> usize {
            $with!(self, callee => callee.max_payload_bytes())
        }

        $crate::hand_on! { @calls $crate::task::TaskStore, $with;
            create [](
                tasks: Vec<$crate::NewTask>, deadline: $crate::Deadline
            ) -> $crate::RowResults<$crate::task::Created>;
            finish_and_claim [](
                finished: Vec<$crate::task::Finish>, claim: Option<$crate::task::ClaimTasks>, deadline:
                $crate::Deadline
            ) -> $crate::task::FinishedAndClaimed;
            finish [](
                finished: Vec<$crate::task::Finish>, deadline: $crate::Deadline
            ) -> Vec<$crate::task::TaskStanding>;
            claim [](claim: $crate::task::ClaimTasks, deadline: $crate::Deadline) -> $crate::task::FinishedAndClaimed;
            claim_by_id ['a, 'b](
                ids: &'a [$crate::TaskId], lease: std::time::Duration, worker: &'b str, deadline: $crate::Deadline
            ) -> Vec<$crate::task::ClaimAnswer>;
            heartbeat [](
                heartbeats: Vec<$crate::task::Heartbeat>, lease: std::time::Duration, deadline: $crate::Deadline
            ) -> Vec<$crate::task::TaskStanding>;
            standings ['a](
                leases: &'a [$crate::task::TaskLease], deadline: $crate::Deadline
            ) -> Vec<$crate::task::TaskStanding>;
            lost_leases [](limit: usize, deadline: $crate::Deadline) -> Vec<$crate::task::LostLease>;
            reap [](lost: Vec<$crate::task::Finish>, deadline: $crate::Deadline) -> Vec<$crate::task::TaskStanding>;
            expire_overdue [](limit: usize, deadline: $crate::Deadline) -> Vec<$crate::TaskId>;
            cancel ['a](
                ids: &'a [$crate::TaskId], deadline: $crate::Deadline
            ) -> $crate::RowResults<$crate::TaskState>;
            run_now ['a](ids: &'a [$crate::TaskId], deadline: $crate::Deadline) -> $crate::RowResults<()>;
            replay ['a](ids: &'a [$crate::TaskId], deadline: $crate::Deadline) -> $crate::RowResults<()>;
            edit_payload [](id: $crate::TaskId, payload: $crate::Bytes, deadline: $crate::Deadline) -> u32;
            revisions [](id: $crate::TaskId, deadline: $crate::Deadline) -> Vec<$crate::task::PayloadRevision>;
            get [](id: $crate::TaskId, deadline: $crate::Deadline) -> Option<$crate::task::Task>;
            attempts [](id: $crate::TaskId, deadline: $crate::Deadline) -> Vec<$crate::task::TaskAttempt>;
            list ['a](query: &'a $crate::task::TaskQuery, deadline: $crate::Deadline) -> $crate::task::TaskPage;
            counts [](deadline: $crate::Deadline) -> Vec<$crate::task::TaskCount>;
            enqueue_due [](limit: usize, deadline: $crate::Deadline) -> $crate::task::Enqueued;
            stranded [](grace: std::time::Duration, deadline: $crate::Deadline) -> Vec<$crate::task::Stranded>;
            resend ['a](
                task_type: &'a $crate::TaskType, limit: usize, grace: std::time::Duration, deadline:
                $crate::Deadline
            ) -> usize;
            take_outbox [](
                limit: usize, lease: std::time::Duration, deadline: $crate::Deadline
            ) -> $crate::task::OutboxBatch;
            outbox_sent ['a](rows: &'a [(i64, i64)], deadline: $crate::Deadline) -> ();
            forget_finished [](older_than: std::time::Duration, deadline: $crate::Deadline) -> u64;
            subscribe_tasks [](notice: $crate::task::TaskNotice, deadline: $crate::Deadline) -> $crate::WakeUps;
        }
    };
    (ScheduleStore, $with:ident) => {
        $crate::hand_on! { @calls $crate::task::ScheduleStore, $with;
            store_time [](deadline: $crate::Deadline) -> $crate::Timestamp;
            put_schedule ['a](
                schedule: &'a $crate::task::NewSchedule, next_run_at: Option<$crate::Timestamp>, deadline:
                $crate::Deadline
            ) -> $crate::task::Schedule;
            get_schedule ['a](name: &'a str, deadline: $crate::Deadline) -> Option<$crate::task::Schedule>;
            list_schedules [](deadline: $crate::Deadline) -> Vec<$crate::task::Schedule>;
            delete_schedule ['a](name: &'a str, deadline: $crate::Deadline) -> bool;
            set_schedule_paused ['a](
                name: &'a str, version: i64, is_paused: bool, next_run_at: Option<$crate::Timestamp>, deadline:
                $crate::Deadline
            ) -> bool;
            due_schedules [](limit: usize, deadline: $crate::Deadline) -> Vec<$crate::task::Schedule>;
            fire_schedule ['a](
                name: &'a str, version: i64, tasks: Vec<$crate::NewTask>, last_run_at: Option<$crate::Timestamp>,
                next_run_at: Option<$crate::Timestamp>, deadline: $crate::Deadline
            ) -> Option<Vec<$crate::TaskId>>;
            next_schedule_due [](deadline: $crate::Deadline) -> Option<std::time::Duration>;
        }
    };
    (StateRecords, $with:ident) => {
        $crate::hand_on! { @calls $crate::StateRecords, $with;
            put_new ['a, 'b](
                kind: &'a $crate::RecordKind, key: &'b $crate::RecordKey, value: $crate::Bytes, expires_in:
                Option<std::time::Duration>, deadline: $crate::Deadline
            ) -> $crate::Put;
            replace ['a, 'b](
                kind: &'a $crate::RecordKind, key: &'b $crate::RecordKey, version: i64, value: $crate::Bytes,
                expires_in: Option<std::time::Duration>, deadline: $crate::Deadline
            ) -> Option<$crate::StateRecord>;
            get ['a, 'b](
                kind: &'a $crate::RecordKind, key: &'b $crate::RecordKey, deadline: $crate::Deadline
            ) -> Option<$crate::StateRecord>;
            remove ['a, 'b](
                kind: &'a $crate::RecordKind, key: &'b $crate::RecordKey, deadline: $crate::Deadline
            ) -> bool;
            list ['a, 'b](
                kind: &'a $crate::RecordKind, query: &'b $crate::RecordQuery, deadline: $crate::Deadline
            ) -> $crate::RecordPage;
            forget_expired [](deadline: $crate::Deadline) -> u64;
        }
    };
    (IdempotencyStore, $with:ident) => {
        $crate::hand_on! { @calls $crate::IdempotencyStore, $with;
            begin ['a](
                key: &'a $crate::IdempotencyKey, lease: std::time::Duration, deadline: $crate::Deadline
            ) -> $crate::Begun;
            extend ['a](
                token: &'a $crate::IdempotencyToken, lease: std::time::Duration, deadline: $crate::Deadline
            ) -> $crate::Standing;
            complete ['a](token: &'a $crate::IdempotencyToken, deadline: $crate::Deadline) -> $crate::Standing;
            abandon ['a](token: &'a $crate::IdempotencyToken, deadline: $crate::Deadline) -> $crate::Standing;
            forget [](older_than: std::time::Duration, deadline: $crate::Deadline) -> u64;
        }
    };
    (@calls $contract:path, $with:ident; $($name:ident [$($lent:lifetime),*]($($argument:ident: $given:ty),*) -> $answer:ty;)*) => {
        $(
            fn $name<'me, $($lent,)* 'answer>(
                &'me self,
                $($argument: $given),*
            ) -> $crate::BoxFuture<'answer, Result<$answer, $crate::MessagingError>>
            where
                'me: 'answer,
                $($lent: 'answer,)*
                Self: 'answer,
            {
                $with!(self, callee => <_ as $contract>::$name(callee, $($argument),*))
            }
        )*
    };
}

/// Defines a provider's own type around a shared one, so that all of it is compiled in the provider's crate and not in
/// each crate that uses it. It leaves the macro `shared!` behind, for further contracts: `hand_on!(IdempotencyStore,
/// shared)`.
#[macro_export]
macro_rules! own_provider {
    ($(#[$about:meta])* $name:ident($shared:ty)) => {
        $(#[$about])*
        #[derive(Debug, Clone)]
        pub struct $name($shared);

        impl std::ops::Deref for $name {
            type Target = $shared;

            fn deref(&self) -> &Self::Target {
                &self.0
            }
        }

        /// Selects the shared provider.
        macro_rules! shared {
            ($self:ident, $provider:ident => $call:expr) => {{
                let $provider = &$self.0;
                $call
            }};
        }

        impl $crate::MessagingService for $name {
            $crate::hand_on!(MessagingService, shared);
        }

        impl $crate::QueueAdmin for $name {
            $crate::hand_on!(QueueAdmin, shared);
        }

        impl $crate::DeadLetters for $name {
            $crate::hand_on!(DeadLetters, shared);
        }
    };
}
