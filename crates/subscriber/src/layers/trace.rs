//! A span around each attempt.

use std::task::{Context, Poll};

use futures_util::FutureExt;
use tower_layer::Layer;
use tower_service::Service;
use tracing::{Instrument, field};

use super::{LayerFuture, TraceContext};
use crate::delivery::Delivery;
use crate::error::HandlerError;

/// Runs each attempt in a `tracing` span with queue, message, attempt and trace ids.
///
/// The trace is the one of the message's `traceparent` header, or a new one. The handler has the span as a
/// [`TraceContext`] argument, to put it on what it sends.
///
/// A failure is an event in the span: a warning, with the error's text.
#[derive(Debug, Clone, Copy, Default)]
pub struct TraceLayer(());

impl TraceLayer {
    /// A span around each attempt.
    pub const fn new() -> Self {
        Self(())
    }
}

impl<S> Layer<S> for TraceLayer {
    type Service = Trace<S>;

    fn layer(&self, inner: S) -> Trace<S> {
        Trace { inner }
    }
}

/// The service of [`TraceLayer`].
#[derive(Debug, Clone)]
pub struct Trace<S> {
    inner: S,
}

impl<S> Service<Delivery> for Trace<S>
where
    S: Service<Delivery, Error = HandlerError, Future: Send + 'static>,
{
    type Response = S::Response;
    type Error = HandlerError;
    type Future = LayerFuture<S::Response>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), HandlerError>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, mut delivery: Delivery) -> Self::Future {
        let context = TraceContext::for_delivery(&delivery);
        let envelope = &delivery.envelope;
        let span = tracing::info_span!(
            "handle",
            queue = %envelope.queue,
            message_id = %envelope.id,
            attempt = delivery.attempt(),
            trace_id = field::Empty,
            span_id = field::Empty,
            parent_id = field::Empty,
        );
        if !span.is_disabled() {
            span.record("trace_id", context.trace_id());
            span.record("span_id", context.span_id());
            if let Some(parent) = context.parent_id() {
                span.record("parent_id", parent);
            }
        }
        delivery.extensions_mut().insert(context);
        let running = span.in_scope(|| self.inner.call(delivery));
        async move {
            let outcome = running.await;
            match &outcome {
                Ok(_) => tracing::debug!("handled"),
                Err(error) => tracing::warn!(kind = ?error.kind(), %error, "failed"),
            }
            outcome
        }
        .instrument(span)
        .boxed()
    }
}

#[cfg(test)]
mod tests {
    use std::fmt;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::sync::{Arc, Mutex};

    use tower::ServiceExt;
    use tracing::span::{Attributes, Id, Record};
    use tracing::{Event, Metadata, Subscriber};

    use super::*;
    use crate::handler;
    use crate::testing::{delivery, with_header};

    /// Records every span's fields and every event with its span.
    #[derive(Clone, Default)]
    struct Recorder {
        lines: Arc<Mutex<Vec<String>>>,
        entered: Arc<Mutex<Vec<u64>>>,
        spans: Arc<AtomicU64>,
    }

    struct RecordedLine(String);

    impl field::Visit for RecordedLine {
        fn record_debug(&mut self, field: &field::Field, value: &dyn fmt::Debug) {
            self.0.push_str(&format!(" {field}={value:?}"));
        }
    }

    impl Recorder {
        fn add(&self, begin: &str, record: impl FnOnce(&mut RecordedLine)) {
            let mut line = RecordedLine(begin.into());
            record(&mut line);
            self.lines.lock().unwrap().push(line.0);
        }

        fn text(&self) -> String {
            self.lines.lock().unwrap().join("\n")
        }
    }

    impl Subscriber for Recorder {
        fn enabled(&self, _: &Metadata<'_>) -> bool {
            true
        }

        fn new_span(&self, span: &Attributes<'_>) -> Id {
            self.add(span.metadata().name(), |line| span.record(line));
            Id::from_u64(self.spans.fetch_add(1, Ordering::SeqCst) + 1)
        }

        fn record(&self, _: &Id, values: &Record<'_>) {
            self.add("later", |line| values.record(line));
        }

        fn record_follows_from(&self, _: &Id, _: &Id) {}

        fn event(&self, event: &Event<'_>) {
            let inside = self.entered.lock().unwrap().len();
            self.add(&format!("event in {inside} {}", event.metadata().level()), |line| event.record(line));
        }

        fn enter(&self, span: &Id) {
            self.entered.lock().unwrap().push(span.into_u64());
        }

        fn exit(&self, _: &Id) {
            self.entered.lock().unwrap().pop();
        }
    }

    const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[tokio::test]
    async fn an_attempt_is_a_span_below_its_sender() {
        let recorder = Recorder::default();
        let _quiet = tracing::subscriber::set_default(recorder.clone());
        let seen = Arc::new(Mutex::new(None));
        let kept = seen.clone();
        let service = TraceLayer::new().layer(handler(move |trace: TraceContext| {
            *kept.lock().unwrap() = Some(trace);
            async {
                tracing::info!("inside");
                Err::<(), _>("no")
            }
        }));
        let mut delivery = with_header(delivery(""), "traceparent", PARENT);
        delivery.envelope.attempts_count = 1;
        let id = delivery.id();
        service.oneshot(delivery).await.unwrap_err();

        let trace = seen.lock().unwrap().take().unwrap();
        assert_eq!(trace.trace_id(), "4bf92f3577b34da6a3ce929d0e0e4736");
        assert_eq!(trace.parent_id().as_deref(), Some("00f067aa0ba902b7"));
        let expected = [
            format!("handle queue=orders message_id={id} attempt=2"),
            r#"later trace_id="4bf92f3577b34da6a3ce929d0e0e4736""#.into(),
            format!("later span_id={:?}", trace.span_id()),
            r#"later parent_id="00f067aa0ba902b7""#.into(),
            "event in 1 INFO message=inside".into(),
            "event in 1 WARN message=failed kind=Retryable error=no".into(),
        ];
        assert_eq!(recorder.text(), expected.join("\n"));
    }

    #[tokio::test]
    async fn without_a_sender_a_trace_begins_and_each_attempt_has_its_own_span() {
        let spans = Arc::new(Mutex::new(Vec::new()));
        let kept = spans.clone();
        let inner = handler(move |trace: TraceContext, again: TraceContext| {
            assert_eq!(trace, again, "it is the layer's span, made once");
            kept.lock().unwrap().push(trace);
            async {}
        });
        let service = TraceLayer::new().layer(inner);
        for bad in ["", "00-xyz"] {
            service.clone().oneshot(with_header(delivery(""), "traceparent", bad)).await.unwrap();
        }
        let spans = spans.lock().unwrap();
        assert_ne!(spans[0].trace_id(), spans[1].trace_id());
        assert_eq!(spans[0].parent_id(), None);
    }
}
