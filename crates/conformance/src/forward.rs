//! The parts of the contract that a wrapper passes on unchanged.

/// Passes [`QueueAdmin`](postrider_core::QueueAdmin) on to the field `inner`. The types of the contract must be in scope.
#[macro_export]
macro_rules! forward_admin {
    ($wrapper:ident) => {
        $crate::forward_admin!(
            $wrapper,
            pause: |this, queue, deadline| this.inner.pause(queue, deadline),
            attempts: |this, queue, id, deadline| this.inner.message_attempts(queue, id, deadline)
        );
    };
    (
        $wrapper:ident,
        pause: |$this:ident, $queue:ident, $deadline:ident| $pause:expr,
        attempts: |$reader:ident, $of:ident, $id:ident, $until:ident| $attempts:expr
    ) => {
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
                queue: &QueueName,
                limit: usize,
                deadline: Deadline,
            ) -> Result<Vec<PeekedMessage>, MessagingError> {
                self.inner.peek(queue, limit, deadline).await
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
            redrive: |this, queue, redrive, deadline| this.inner.redrive_dead_letters(queue, redrive, deadline)
        );
    };
    ($wrapper:ident, redrive: |$this:ident, $queue:ident, $redrive:ident, $deadline:ident| $call:expr) => {
        impl<P: postrider_core::Provider> postrider_core::DeadLetters for $wrapper<P> {
            async fn list_dead_letters(
                &self,
                queue: &QueueName,
                query: &DeadLetterQuery,
                deadline: Deadline,
            ) -> Result<DeadLetterPage, MessagingError> {
                self.inner.list_dead_letters(queue, query, deadline).await
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
                queue: &QueueName,
                id: MessageId,
                edit: DeadLetterEdit,
                deadline: Deadline,
            ) -> Result<DeadLetter, MessagingError> {
                self.inner.edit_dead_letter(queue, id, edit, deadline).await
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
                queue: &QueueName,
                selection: &DeadLetterSelection,
                deadline: Deadline,
            ) -> Result<u64, MessagingError> {
                self.inner.purge_dead_letters(queue, selection, deadline).await
            }
        }
    };
}
