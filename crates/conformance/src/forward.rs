//! Macros for wrappers that pass parts of the contract on unchanged.

/// Passes [`QueueAdmin`](postrider_core::QueueAdmin) on to the field `inner`. The types of the contract must be in scope.
#[macro_export]
macro_rules! forward_admin {
    ($wrapper:ident) => {
        $crate::forward_admin!(
            $wrapper,
            pause: |this, queue, deadline| this.inner.pause(queue, deadline),
            attempts: |this, queue, id, deadline| this.inner.message_attempts(queue, id, deadline),
            peek: |this, queue, limit, deadline| this.inner.peek(queue, limit, deadline),
            page: |this, queue, query, deadline| this.inner.peek_page(queue, query, deadline),
            archived: |this, queue, query, deadline| this.inner.archived(queue, query, deadline),
            again: |this, queue, id, deadline| this.inner.send_again(queue, id, deadline),
            now: |this, queue, id, deadline| this.inner.deliver_now(queue, id, deadline),
            bury: |this, queue, id, reason, error, deadline| {
                this.inner.dead_letter_waiting(queue, id, reason, error, deadline)
            }
        );
    };
    (
        $wrapper:ident,
        pause: |$this:ident, $queue:ident, $deadline:ident| $pause:expr,
        attempts: |$reader:ident, $of:ident, $id:ident, $until:ident| $attempts:expr,
        peek: |$peeker:ident, $peeked:ident, $most:ident, $before:ident| $peek:expr,
        page: |$looker:ident, $shown:ident, $wanted:ident, $within:ident| $page:expr,
        archived: |$searcher:ident, $in:ident, $query:ident, $limit:ident| $archived:expr,
        again: |$sender:ident, $to:ident, $original:ident, $end:ident| $again:expr,
        now: |$hastener:ident, $at:ident, $late:ident, $stop:ident| $now:expr,
        bury: |$burier:ident, $from:ident, $doomed:ident, $reason:ident, $error:ident, $last:ident| $bury:expr
    ) => {
        #[postrider_core::async_trait]
        impl<P: postrider_core::Provider> postrider_core::QueueAdmin for $wrapper<P> {
            async fn list_queues(&self, deadline: Deadline) -> Result<Vec<QueueName>, MessagingError> {
                self.inner.list_queues(deadline).await
            }

            async fn queue_stats(&self, queue: &QueueName, deadline: Deadline) -> Result<QueueStats, MessagingError> {
                self.inner.queue_stats(queue, deadline).await
            }

            async fn verify_queues(
                &self,
                queues: &[QueueName],
                deadline: Deadline,
            ) -> Result<QueueHealthReport, MessagingError> {
                self.inner.verify_queues(queues, deadline).await
            }

            async fn peek(
                &self,
                $peeked: &QueueName,
                $most: usize,
                $before: Deadline,
            ) -> Result<Vec<PeekedMessage>, MessagingError> {
                let $peeker = self;
                $peek.await
            }

            async fn peek_page(
                &self,
                $shown: &QueueName,
                $wanted: &postrider_core::PeekQuery,
                $within: Deadline,
            ) -> Result<postrider_core::PeekPage, MessagingError> {
                let $looker = self;
                $page.await
            }

            async fn message_attempts(
                &self,
                $of: &QueueName,
                $id: postrider_core::MessageId,
                $until: Deadline,
            ) -> Result<Vec<postrider_core::MessageAttempt>, MessagingError> {
                let $reader = self;
                $attempts.await
            }

            async fn archived(
                &self,
                $in: &QueueName,
                $query: &postrider_core::ArchiveQuery,
                $limit: Deadline,
            ) -> Result<postrider_core::ArchivePage, MessagingError> {
                let $searcher = self;
                $archived.await
            }

            async fn send_again(
                &self,
                $to: &QueueName,
                $original: postrider_core::MessageId,
                $end: Deadline,
            ) -> Result<postrider_core::MessageId, MessagingError> {
                let $sender = self;
                $again.await
            }

            async fn deliver_now(
                &self,
                $at: &QueueName,
                $late: postrider_core::MessageId,
                $stop: Deadline,
            ) -> Result<(), MessagingError> {
                let $hastener = self;
                $now.await
            }

            async fn dead_letter_waiting(
                &self,
                $from: &QueueName,
                $doomed: postrider_core::MessageId,
                $reason: postrider_core::DeadLetterReason,
                $error: Option<String>,
                $last: Deadline,
            ) -> Result<(), MessagingError> {
                let $burier = self;
                $bury.await
            }

            async fn delete_waiting(
                &self,
                queue: &QueueName,
                id: postrider_core::MessageId,
                deadline: Deadline,
            ) -> Result<(), MessagingError> {
                postrider_core::waiting::delete(self, queue, id, deadline).await
            }

            async fn purge(&self, queue: &QueueName, deadline: Deadline) -> Result<u64, MessagingError> {
                self.inner.purge(queue, deadline).await
            }

            async fn pause(&self, $queue: &QueueName, $deadline: Deadline) -> Result<(), MessagingError> {
                let $this = self;
                $pause.await
            }

            async fn resume(&self, queue: &QueueName, deadline: Deadline) -> Result<(), MessagingError> {
                self.inner.resume(queue, deadline).await
            }

            async fn delete_queue(&self, queue: &QueueName, deadline: Deadline) -> Result<(), MessagingError> {
                self.inner.delete_queue(queue, deadline).await
            }
        }
    };
}

/// Passes [`DeadLetters`](postrider_core::DeadLetters) on to the field `inner`. The types of the contract must be in
/// scope.
#[macro_export]
macro_rules! forward_dead_letters {
    ($wrapper:ident) => {
        $crate::forward_dead_letters!(
            $wrapper,
            list: |this, queue, query, deadline| this.inner.list_dead_letters(queue, query, deadline),
            find: |this, queue, selection, error, deadline| {
                this.inner.find_dead_letters(queue, selection, error, deadline)
            },
            summaries: |this, queue, query, deadline| this.inner.list_dead_letter_summaries(queue, query, deadline),
            edit: |this, queue, id, edit, deadline| this.inner.edit_dead_letter(queue, id, edit, deadline),
            redrive: |this, queue, redrive, deadline| this.inner.redrive_dead_letters(queue, redrive, deadline),
            purge: |this, queue, selection, deadline| this.inner.purge_dead_letters(queue, selection, deadline)
        );
    };
    (
        $wrapper:ident,
        list: |$lister:ident, $of:ident, $query:ident, $until:ident| $list:expr,
        find: |$finder:ident, $in:ident, $sought:ident, $error:ident, $by:ident| $find:expr,
        summaries: |$summer:ident, $summed:ident, $part:ident, $end:ident| $summaries:expr,
        edit: |$editor:ident, $edited:ident, $letter:ident, $edit:ident, $within:ident| $change:expr,
        redrive: |$this:ident, $queue:ident, $redrive:ident, $deadline:ident| $call:expr,
        purge: |$purger:ident, $purged:ident, $selection:ident, $limit:ident| $purge:expr
    ) => {
        #[postrider_core::async_trait]
        impl<P: postrider_core::Provider> postrider_core::DeadLetters for $wrapper<P> {
            async fn list_dead_letters(
                &self,
                $of: &QueueName,
                $query: &DeadLetterQuery,
                $until: Deadline,
            ) -> Result<DeadLetterPage, MessagingError> {
                let $lister = self;
                $list.await
            }

            async fn find_dead_letters(
                &self,
                $in: &QueueName,
                $sought: &DeadLetterSelection,
                $error: Option<&str>,
                $by: Deadline,
            ) -> Result<Vec<MessageId>, MessagingError> {
                let $finder = self;
                $find.await
            }

            async fn list_dead_letter_summaries(
                &self,
                $summed: &QueueName,
                $part: &DeadLetterQuery,
                $end: Deadline,
            ) -> Result<postrider_core::DeadLetterSummaryPage, MessagingError> {
                let $summer = self;
                $summaries.await
            }

            async fn get_dead_letter(
                &self,
                queue: &QueueName,
                id: MessageId,
                deadline: Deadline,
            ) -> Result<DeadLetter, MessagingError> {
                self.inner.get_dead_letter(queue, id, deadline).await
            }

            async fn edit_dead_letter(
                &self,
                $edited: &QueueName,
                $letter: MessageId,
                $edit: DeadLetterEdit,
                $within: Deadline,
            ) -> Result<DeadLetter, MessagingError> {
                let $editor = self;
                $change.await
            }

            async fn redrive_dead_letters(
                &self,
                $queue: &QueueName,
                $redrive: &Redrive,
                $deadline: Deadline,
            ) -> Result<RedriveReport, MessagingError> {
                let $this = self;
                $call.await
            }

            async fn purge_dead_letters(
                &self,
                $purged: &QueueName,
                $selection: &DeadLetterSelection,
                $limit: Deadline,
            ) -> Result<u64, MessagingError> {
                let $purger = self;
                $purge.await
            }
        }
    };
}
