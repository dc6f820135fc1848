//! The random choices of workers.

use std::time::Duration;

use postrider_core::{Disposition, LeaseToken, MessageId, Nack, QueueName};
use uuid::Uuid;

use super::run::{Simulation, body, ms, orders};
use crate::history::{
    Dropped, ExtendCall, LeaseOutcome, Operation, Outcome, PurgeCall, Purged, ReceiveCall, RedriveCall, Selection,
    SendCall, SettleCall,
};

impl Simulation {
    /// The rows of a worker's next call.
    pub(super) fn choose(&mut self) -> Vec<Operation> {
        match self.random.below(100) {
            0..25 => self.choose_sends(),
            25..55 => vec![self.choose_receive().into()],
            55..63 => {
                let mut rows = self.choose_settle();
                rows.push(self.choose_receive().into());
                rows
            }
            63..88 => self.choose_settle(),
            88..94 => self.choose_extend(),
            94..97 => self.choose_drop(),
            97 => self.choose_redrive(),
            _ if self.random.percent(20) => {
                let selection = Purged::DeadLetters(Selection::All);
                let what = if self.random.percent(50) { Purged::Waiting } else { selection };
                vec![PurgeCall { queue: orders(), what, outcome: Outcome::Unknown }.into()]
            }
            _ => Vec::new(),
        }
    }

    fn choose_sends(&mut self) -> Vec<Operation> {
        let known = self.resends.iter().position(|(since, _)| *since <= self.now);
        if let Some(known) = known.filter(|_| self.random.percent(50)) {
            return vec![self.resends.swap_remove(known).1.into()];
        }
        let rows = if self.random.percent(70) { 1 } else { 1 + self.random.below(4) as u32 };
        let first = self.random.next();
        let id = |row: u32| MessageId::from_uuid(Uuid::from_u128(u128::from(first) + u128::from(row)));
        (0..rows)
            .map(|row| {
                let random = &mut self.random;
                let key = random.percent(60).then(|| format!("key {}", random.below(2)));
                let dedup = random.percent(15).then(|| format!("dedup {}", random.below(3)));
                let delay = if random.percent(20) { random.duration(ms(300)) } else { Duration::ZERO };
                let expires = random.percent(15).then(|| random.duration(ms(400)));
                SendCall {
                    queue: orders(),
                    id: id(row),
                    ordering_key: key,
                    dedup_key: dedup,
                    delay,
                    expires_in: expires,
                    expires_at: None,
                    body_hash: body(id(row).as_uuid().as_u128() as u64),
                    row,
                    batch: id(0),
                    outcome: Outcome::Unknown,
                }
                .into()
            })
            .collect()
    }

    pub(super) fn choose_receive(&mut self) -> ReceiveCall {
        let queue = if self.random.percent(8) { orders().dead_letters() } else { orders() };
        ReceiveCall {
            queue,
            visibility: ms([1, 100][self.random.below(2)]) + self.random.duration(ms(300)),
            max_receive_count: 2 + self.random.below(3) as u32,
            outcome: Outcome::Unknown,
        }
    }

    /// A known receipt: mostly a recent one, sometimes one that was used long ago.
    fn choose_receipt(&mut self) -> Option<(QueueName, MessageId, LeaseToken)> {
        let known = self.receipts.iter().enumerate().filter(|(_, (since, ..))| *since <= self.now);
        let known: Vec<_> = known.map(|(position, _)| position).collect();
        let recent = &known[known.len().saturating_sub(8)..];
        let from = if self.random.percent(85) { recent } else { &known[..] };
        let (_, queue, id, token) = self.receipts[from[self.random.pick(from)?]].clone();
        Some((queue, id, token))
    }

    fn choose_settle(&mut self) -> Vec<Operation> {
        let Some((queue, id, token)) = self.choose_receipt() else {
            return Vec::new();
        };
        let least = if self.random.percent(50) { ms(100) } else { Duration::ZERO };
        let retry = Nack::retry_after(least + self.random.duration(ms(200)));
        let disposition = match self.random.below(100) {
            0..50 => Disposition::Ack,
            50..75 => Disposition::Nack(retry),
            75..85 => Disposition::Nack(Nack::Release),
            _ if queue.holds_dead_letters() => Disposition::Ack,
            _ => Disposition::Nack(Nack::dead_letter("rejected")),
        };
        let outcome = LeaseOutcome::Unknown;
        vec![SettleCall { queue, id, token, disposition, outcome }.into()]
    }

    fn choose_extend(&mut self) -> Vec<Operation> {
        let Some((queue, id, token)) = self.choose_receipt() else {
            return Vec::new();
        };
        let extension = ms(1) + self.random.duration(ms(400));
        let outcome = LeaseOutcome::Unknown;
        vec![ExtendCall { queue, id, token, extension, outcome }.into()]
    }

    fn choose_drop(&mut self) -> Vec<Operation> {
        let Some((queue, id, token)) = self.choose_receipt() else {
            return Vec::new();
        };
        vec![Dropped { queue, id, token }.into()]
    }

    fn choose_redrive(&mut self) -> Vec<Operation> {
        let dead = self.queue.stored.iter().filter(|stored| stored.dead.is_some());
        let dead: Vec<_> = dead.map(|stored| stored.id).collect();
        let Some(one) = self.random.pick(&dead) else {
            return Vec::new();
        };
        let all = self.random.percent(10);
        let selection = if all { Selection::All } else { Selection::Ids(vec![dead[one]]) };
        vec![RedriveCall { queue: orders(), to: None, selection, outcome: Outcome::Unknown }.into()]
    }
}
