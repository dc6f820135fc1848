//! L9: a message that cannot be decoded is dead-lettered alone, with its raw bytes and the reason.

use bytes::Bytes;
use postrider_core::{DeadLetterReason, Json, Message, TypedMessaging};

use crate::probe::{Check, Probe, TIME_LIMIT, ensure, ensure_same, soon};

pub(super) async fn l9_an_undecodable_message_dies_alone_with_its_bytes(probe: &Probe<'_>) -> Check {
    let queue = probe.queue("bytes").await?;
    let bad = Bytes::from_static(b"\xff{\"broken\":");
    let messages =
        vec![Message::encode(&Json(1))?, Message::new(bad.clone()), Message::encode(&Json(2))?, Message::new("")];
    let ids = probe.send_all(&queue, messages).await?;
    let mut values = Vec::new();
    let mut options = probe.long().wait(TIME_LIMIT);
    options.max = 4;
    while values.len() < 2 {
        for message in probe.provider.receive_typed::<Json<u32>>(&queue, &options, soon()).await? {
            values.push(message.message.0);
            probe.ack(message).await?;
        }
    }
    values.sort_unstable();
    ensure_same("what was decoded", values, vec![1, 2])?;
    // Some stores return fewer messages than requested: receive until the rest has been read.
    options.wait = probe.unit / 4;
    let mut dead = probe.dead_letters(&queue).await?;
    for _ in 0..100 {
        if dead.len() == 2 {
            break;
        }
        let more = probe.provider.receive_typed::<Json<u32>>(&queue, &options, soon()).await?;
        ensure(more.is_empty(), || "an undecodable message was delivered".into())?;
        dead = probe.dead_letters(&queue).await?;
    }
    ensure_same("the number of dead letters", dead.len(), 2)?;
    let letter = dead.iter().find(|letter| letter.id == ids[1]);
    ensure_same("the raw bytes", letter.map(|letter| letter.body.clone()), Some(bad))?;
    for letter in dead {
        ensure_same("the reason", &letter.reason, &DeadLetterReason::UNDECODABLE)?;
        ensure(letter.error.is_some(), || "the dead letter does not say why it could not be decoded".into())?;
    }
    probe.nothing(&queue, "the good were acknowledged and the bad are dead").await
}
