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
            dead_letter: |this, queue, id, reason, error, deadline| {
                this.inner.dead_letter_waiting(queue, id, reason, error, deadline)
            }
        );
    };
    (
        $wrapper:ident,
        pause: |$this:ident, $queue:ident, $deadline:ident| $pause:expr,
        attempts: |$attempts_this:ident, $attempts_queue:ident, $attempts_id:ident, $attempts_deadline:ident| $attempts:expr,
        peek: |$peek_this:ident, $peek_queue:ident, $peek_limit:ident, $peek_deadline:ident| $peek:expr,
        page: |$page_this:ident, $page_queue:ident, $page_query:ident, $page_deadline:ident| $page:expr,
        archived: |$archived_this:ident, $archived_queue:ident, $archived_query:ident, $archived_deadline:ident| $archived:expr,
        again: |$again_this:ident, $again_queue:ident, $again_id:ident, $again_deadline:ident| $again:expr,
        now: |$now_this:ident, $now_queue:ident, $now_id:ident, $now_deadline:ident| $now:expr,
        dead_letter: |$dead_letter_this:ident, $dead_letter_queue:ident, $dead_letter_id:ident, $dead_letter_reason:ident, $dead_letter_error:ident, $dead_letter_deadline:ident| $dead_letter:expr
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
                $peek_queue: &QueueName,
                $peek_limit: usize,
                $peek_deadline: Deadline,
            ) -> Result<Vec<PeekedMessage>, MessagingError> {
                let $peek_this = self;
                $peek.await
            }

            async fn peek_page(
                &self,
                $page_queue: &QueueName,
                $page_query: &postrider_core::PeekQuery,
                $page_deadline: Deadline,
            ) -> Result<postrider_core::PeekPage, MessagingError> {
                let $page_this = self;
                $page.await
            }

            async fn message_attempts(
                &self,
                $attempts_queue: &QueueName,
                $attempts_id: postrider_core::MessageId,
                $attempts_deadline: Deadline,
            ) -> Result<Vec<postrider_core::MessageAttempt>, MessagingError> {
                let $attempts_this = self;
                $attempts.await
            }

            async fn archived(
                &self,
                $archived_queue: &QueueName,
                $archived_query: &postrider_core::ArchiveQuery,
                $archived_deadline: Deadline,
            ) -> Result<postrider_core::ArchivePage, MessagingError> {
                let $archived_this = self;
                $archived.await
            }

            async fn send_again(
                &self,
                $again_queue: &QueueName,
                $again_id: postrider_core::MessageId,
                $again_deadline: Deadline,
            ) -> Result<postrider_core::MessageId, MessagingError> {
                let $again_this = self;
                $again.await
            }

            async fn deliver_now(
                &self,
                $now_queue: &QueueName,
                $now_id: postrider_core::MessageId,
                $now_deadline: Deadline,
            ) -> Result<(), MessagingError> {
                let $now_this = self;
                $now.await
            }

            async fn dead_letter_waiting(
                &self,
                $dead_letter_queue: &QueueName,
                $dead_letter_id: postrider_core::MessageId,
                $dead_letter_reason: postrider_core::DeadLetterReason,
                $dead_letter_error: Option<String>,
                $dead_letter_deadline: Deadline,
            ) -> Result<(), MessagingError> {
                let $dead_letter_this = self;
                $dead_letter.await
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
        list: |$list_this:ident, $list_queue:ident, $list_query:ident, $list_deadline:ident| $list:expr,
        find: |$find_this:ident, $find_queue:ident, $find_selection:ident, $find_error:ident, $find_deadline:ident| $find:expr,
        summaries: |$summaries_this:ident, $summaries_queue:ident, $summaries_query:ident, $summaries_deadline:ident| $summaries:expr,
        edit: |$edit_this:ident, $edit_queue:ident, $edit_id:ident, $edit_edit:ident, $edit_deadline:ident| $edit_call:expr,
        redrive: |$redrive_this:ident, $redrive_queue:ident, $redrive_redrive:ident, $redrive_deadline:ident| $redrive_call:expr,
        purge: |$purge_this:ident, $purge_queue:ident, $purge_selection:ident, $purge_deadline:ident| $purge:expr
    ) => {
        #[postrider_core::async_trait]
        impl<P: postrider_core::Provider> postrider_core::DeadLetters for $wrapper<P> {
            async fn list_dead_letters(
                &self,
                $list_queue: &QueueName,
                $list_query: &DeadLetterQuery,
                $list_deadline: Deadline,
            ) -> Result<DeadLetterPage, MessagingError> {
                let $list_this = self;
                $list.await
            }

            async fn find_dead_letters(
                &self,
                $find_queue: &QueueName,
                $find_selection: &DeadLetterSelection,
                $find_error: Option<&str>,
                $find_deadline: Deadline,
            ) -> Result<Vec<MessageId>, MessagingError> {
                let $find_this = self;
                $find.await
            }

            async fn list_dead_letter_summaries(
                &self,
                $summaries_queue: &QueueName,
                $summaries_query: &DeadLetterQuery,
                $summaries_deadline: Deadline,
            ) -> Result<postrider_core::DeadLetterSummaryPage, MessagingError> {
                let $summaries_this = self;
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
                $edit_queue: &QueueName,
                $edit_id: MessageId,
                $edit_edit: DeadLetterEdit,
                $edit_deadline: Deadline,
            ) -> Result<DeadLetter, MessagingError> {
                let $edit_this = self;
                $edit_call.await
            }

            async fn redrive_dead_letters(
                &self,
                $redrive_queue: &QueueName,
                $redrive_redrive: &Redrive,
                $redrive_deadline: Deadline,
            ) -> Result<RedriveReport, MessagingError> {
                let $redrive_this = self;
                $redrive_call.await
            }

            async fn purge_dead_letters(
                &self,
                $purge_queue: &QueueName,
                $purge_selection: &DeadLetterSelection,
                $purge_deadline: Deadline,
            ) -> Result<u64, MessagingError> {
                let $purge_this = self;
                $purge.await
            }
        }
    };
}
