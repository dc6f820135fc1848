//! Queue names as arguments.

use postrider_core::{MessagingError, QueueName};

/// One queue or several: a name, a string, or a collection of either.
pub trait IntoQueues {
    /// The checked names.
    fn into_queues(self) -> Result<Vec<QueueName>, MessagingError>;
}

impl IntoQueues for QueueName {
    fn into_queues(self) -> Result<Vec<QueueName>, MessagingError> {
        Ok(vec![self])
    }
}

impl IntoQueues for &QueueName {
    fn into_queues(self) -> Result<Vec<QueueName>, MessagingError> {
        Ok(vec![self.clone()])
    }
}

impl IntoQueues for &str {
    fn into_queues(self) -> Result<Vec<QueueName>, MessagingError> {
        self.parse().map(|queue| vec![queue])
    }
}

impl IntoQueues for String {
    fn into_queues(self) -> Result<Vec<QueueName>, MessagingError> {
        self.as_str().into_queues()
    }
}

impl<Q: IntoQueues> IntoQueues for Vec<Q> {
    fn into_queues(self) -> Result<Vec<QueueName>, MessagingError> {
        flatten(self)
    }
}

impl<Q: IntoQueues, const N: usize> IntoQueues for [Q; N] {
    fn into_queues(self) -> Result<Vec<QueueName>, MessagingError> {
        flatten(self)
    }
}

impl IntoQueues for &[QueueName] {
    fn into_queues(self) -> Result<Vec<QueueName>, MessagingError> {
        Ok(self.to_vec())
    }
}

fn flatten<Q: IntoQueues>(queues: impl IntoIterator<Item = Q>) -> Result<Vec<QueueName>, MessagingError> {
    let mut names = Vec::new();
    for queue in queues {
        names.extend(queue.into_queues()?);
    }
    Ok(names)
}

/// Refuses an empty list, and a queue that is named twice.
pub(crate) fn check(queues: &[QueueName]) -> Result<(), MessagingError> {
    if queues.is_empty() {
        return Err(MessagingError::invalid("queues", "there is none to receive from; name at least one"));
    }
    for (index, queue) in queues.iter().enumerate() {
        if queues[..index].contains(queue) {
            return Err(MessagingError::invalid("queues", format!("'{queue}' is named twice; name each queue once")));
        }
    }
    Ok(())
}
