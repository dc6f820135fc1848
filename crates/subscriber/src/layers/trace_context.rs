//! W3C trace context: the trace that a message belongs to, in its headers.
//!
//! Headers are checked strictly. An invalid `traceparent` counts as none: a new trace begins, because half of a context
//! would join unrelated traces. A `tracestate` is only passed on, and dropped alone when it is invalid.

use std::fmt;
use std::num::{NonZeroU64, NonZeroU128};
use std::sync::Arc;

use postrider_core::{Headers, Message, MessagingError};

use crate::delivery::Delivery;
use crate::error::HandlerError;
use crate::extract::FromDelivery;

const TRACEPARENT: &str = "traceparent";
const TRACESTATE: &str = "tracestate";
const MAX_MEMBERS: usize = 32;

/// The known flags: sampled, and random trace id. Other flags may not be passed on.
const KNOWN_FLAGS: u8 = 0b11;
const SAMPLED: u8 = 0b01;

/// The span of a message in a trace.
///
/// As an argument of a handler it is the span of this attempt: that of [`TraceLayer`](super::TraceLayer) or, without
/// the layer, one for the handler alone. [`inject`](Self::inject) adds the messages that a handler sends to the trace:
///
/// ```
/// use postrider_core::Message;
/// use postrider_subscriber::HandlerError;
/// use postrider_subscriber::layers::TraceContext;
///
/// async fn forward(body: String, trace: TraceContext) -> Result<(), HandlerError> {
///     let message = trace.inject(Message::new(body))?;
///     # let _ = message;
///     Ok(())
/// }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TraceContext {
    trace_id: NonZeroU128,
    span_id: NonZeroU64,
    parent_id: Option<NonZeroU64>,
    flags: u8,
    state: Option<Arc<str>>,
}

impl TraceContext {
    /// The first span of a new trace, which is sampled.
    pub fn root() -> Self {
        let (trace_id, span_id) = (random(), random());
        Self { trace_id, span_id, parent_id: None, flags: SAMPLED, state: None }
    }

    /// The span that sent a message with these headers; `None` if they have no valid one.
    pub fn from_headers(headers: &Headers) -> Option<Self> {
        let (trace_id, span_id, flags) = parse_traceparent(headers.get(TRACEPARENT)?)?;
        let state = headers.get(TRACESTATE).filter(|state| is_tracestate(state)).map(Arc::from);
        Some(Self { trace_id, span_id, parent_id: None, flags, state })
    }

    /// A new span below this one.
    #[must_use]
    pub fn child(&self) -> Self {
        Self { span_id: random(), parent_id: Some(self.span_id), ..self.clone() }
    }

    /// A span for the handling of a message: below its sender's, or the first of a new trace.
    pub fn for_delivery(delivery: &Delivery) -> Self {
        Self::from_headers(&delivery.envelope.headers).map_or_else(Self::root, |sender| sender.child())
    }

    /// The trace, as 32 hexadecimal digits.
    pub fn trace_id(&self) -> String {
        format!("{:032x}", self.trace_id)
    }

    /// This span, as 16 hexadecimal digits.
    pub fn span_id(&self) -> String {
        format!("{:016x}", self.span_id)
    }

    /// The span above this one.
    pub fn parent_id(&self) -> Option<String> {
        self.parent_id.map(|id| format!("{id:016x}"))
    }

    /// Whether the trace is recorded.
    pub fn is_sampled(&self) -> bool {
        self.flags & SAMPLED != 0
    }

    /// The state that other systems pass along with the trace.
    pub fn tracestate(&self) -> Option<&str> {
        self.state.as_deref()
    }

    /// Sets this span as the sender of a message.
    pub fn inject(&self, mut message: Message) -> Result<Message, MessagingError> {
        self.inject_into(&mut message.headers)?;
        Ok(message)
    }

    /// Sets this span as the sender in the headers.
    pub fn inject_into(&self, headers: &mut Headers) -> Result<(), MessagingError> {
        headers.insert(TRACEPARENT, self.to_string())?;
        match &self.state {
            Some(state) => headers.insert(TRACESTATE, &**state)?,
            // The state of another trace may not stay.
            None => drop(headers.remove(TRACESTATE)),
        }
        Ok(())
    }
}

/// As a `traceparent` of version 00.
impl fmt::Display for TraceContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "00-{:032x}-{:016x}-{:02x}", self.trace_id, self.span_id, self.flags)
    }
}

impl<S> FromDelivery<S> for TraceContext {
    fn from_delivery(delivery: &mut Delivery, _: &S) -> Result<Self, HandlerError> {
        Ok(delivery.extensions().get().cloned().unwrap_or_else(|| Self::for_delivery(delivery)))
    }
}

fn random<T>() -> T
where
    rand::distr::StandardUniform: rand::distr::Distribution<T>,
{
    rand::random()
}

fn parse_traceparent(text: &str) -> Option<(NonZeroU128, NonZeroU64, u8)> {
    let mut fields = text.split('-');
    let version = hex::<2>(fields.next()?)?;
    let trace_id = hex::<32>(fields.next()?)?;
    let span_id = hex::<16>(fields.next()?)?;
    let flags = hex::<2>(fields.next()?)?;
    // Later versions may have more fields; 00 has none, and ff is no version.
    if version == 0xff || (version == 0 && fields.next().is_some()) {
        return None;
    }
    let span_id = NonZeroU64::new(u64::try_from(span_id).ok()?)?;
    Some((NonZeroU128::new(trace_id)?, span_id, u8::try_from(flags).ok()? & KNOWN_FLAGS))
}

/// A number of `DIGITS` lower-case hexadecimal digits.
fn hex<const DIGITS: usize>(text: &str) -> Option<u128> {
    let is_hex = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    if text.len() != DIGITS || !text.bytes().all(is_hex) {
        return None;
    }
    u128::from_str_radix(text, 16).ok()
}

fn is_tracestate(text: &str) -> bool {
    let mut keys = Vec::new();
    for member in text.split(',').map(|member| member.trim_matches([' ', '\t'])) {
        if member.is_empty() {
            continue;
        }
        match member.split_once('=') {
            Some((key, value)) if is_state_key(key) && is_state_value(value) && !keys.contains(&key) => keys.push(key),
            _ => return false,
        }
    }
    (1..=MAX_MEMBERS).contains(&keys.len())
}

fn is_state_key(key: &str) -> bool {
    let (tenant, system) = match key.split_once('@') {
        Some((tenant, system)) => (Some(tenant), system),
        None => (None, key),
    };
    let is_part = |part: &str, longest: usize, may_begin_with_digit: bool| {
        let first = part.bytes().next().unwrap_or(b' ');
        (first.is_ascii_lowercase() || (may_begin_with_digit && first.is_ascii_digit()))
            && part.len() <= longest
            && part.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b"_-*/".contains(&b))
    };
    match tenant {
        Some(tenant) => is_part(tenant, 241, true) && is_part(system, 14, false),
        None => is_part(system, 256, false),
    }
}

fn is_state_value(value: &str) -> bool {
    let is_allowed = |byte: u8| (b' '..=b'~').contains(&byte) && byte != b',' && byte != b'=';
    (1..=256).contains(&value.len()) && value.bytes().all(is_allowed)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    fn read(traceparent: &str, tracestate: Option<&str>) -> Option<TraceContext> {
        let mut headers = Headers::new();
        headers.insert(TRACEPARENT, traceparent).unwrap();
        if let Some(state) = tracestate {
            headers.insert(TRACESTATE, state).unwrap();
        }
        TraceContext::from_headers(&headers)
    }

    #[test]
    fn a_valid_parent_is_read_and_written_back() {
        let sender = read(PARENT, Some("congo=t61rcWkgMzE,rojo=00f067aa0ba902b7")).unwrap();
        assert_eq!(sender.to_string(), PARENT);
        assert_eq!(sender.trace_id(), "4bf92f3577b34da6a3ce929d0e0e4736");
        assert_eq!((sender.span_id(), sender.parent_id()), ("00f067aa0ba902b7".into(), None));
        assert!(sender.is_sampled());
        assert_eq!(sender.tracestate(), Some("congo=t61rcWkgMzE,rojo=00f067aa0ba902b7"));
    }

    #[test]
    fn an_invalid_traceparent_is_ignored() {
        let bad = [
            "",
            "00",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7",
            "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
            "00-4bf92f3577b34da6a3ce929d0e0e473-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-1",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-0x",
            "00-+bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-more",
            "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            " 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01 ",
            "cc-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01.more",
        ];
        for text in bad {
            assert_eq!(read(text, None), None, "{text:?}");
        }
    }

    #[test]
    fn the_known_part_of_later_versions_is_read() {
        let later = read("cc-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-fe-what", None).unwrap();
        assert_eq!(later.to_string(), PARENT.replace("-01", "-02"), "unknown flags are not passed on");
        assert!(!later.is_sampled());
    }

    #[test]
    fn a_state_is_passed_on_or_dropped_alone() {
        let many = |count: usize| (0..count).map(|n| format!("k{n}=v")).collect::<Vec<_>>().join(",");
        for good in ["a=1", "a=1, b=2", "a=1,,b=2", "0tenant@sys=x", "a_-*/0=! ~", &many(32)] {
            assert_eq!(read(PARENT, Some(good)).unwrap().tracestate(), Some(good));
        }
        let long = format!("{}=1", "k".repeat(257));
        for bad in
            ["", "a", "A=1", "0a=1", "a=1,a=2", "a=b=c", "a=", "a=ä", "@b=1", "a@0=1", "a@b@c=1", &many(33), &long]
        {
            let context = read(PARENT, Some(bad)).unwrap();
            assert_eq!(context.tracestate(), None, "{bad:?}");
        }
    }

    #[test]
    fn a_child_has_a_span_of_its_own_in_the_same_trace() {
        let sender = read(PARENT, Some("a=1")).unwrap();
        let child = sender.child();
        assert_eq!(child.trace_id(), sender.trace_id());
        assert_eq!(child.parent_id(), Some(sender.span_id()));
        assert_ne!(child.span_id(), sender.span_id());
        assert_ne!(child.span_id(), sender.child().span_id());
        assert_eq!(child.tracestate(), Some("a=1"));
        assert_ne!(TraceContext::root().trace_id(), TraceContext::root().trace_id());
    }

    #[test]
    fn a_sent_message_names_its_span_and_no_other_trace() {
        let message = Message::new("x").header(TRACESTATE, "other=1").unwrap();
        let root = TraceContext::root();
        let sent = root.inject(message).unwrap();
        assert_eq!(sent.headers.get(TRACEPARENT), Some(root.to_string().as_str()));
        assert_eq!(sent.headers.get(TRACESTATE), None);
        let stateful = read(PARENT, Some("a=1")).unwrap().inject(sent).unwrap();
        assert_eq!(TraceContext::from_headers(&stateful.headers), read(PARENT, Some("a=1")));
    }
}
