//! `tracing` layer that turns spans into [`SpanRecord`]s.

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Dispatch, Metadata, Span, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::filter::FilterFn;
use tracing_subscriber::layer::Context;
use tracing_subscriber::registry::LookupSpan;

use crate::config::TraceLevel;
use crate::record::{
    DEFAULT_SERVICE, Kind, Link, SpanRecord, Thread, Value, service_of_target, unix_nanos,
};
use crate::ring::Ring;
use crate::sampler::Sampler;

/// Receiver of finished spans from its layers. It keeps them in a [`Ring`] and offers them for
/// export.
///
/// It is cheap to clone. All clones share the ring and the path to the queue.
#[derive(Clone, Debug)]
pub struct Recorder {
    level: TraceLevel,
    ring: Arc<Ring>,
    sampler: Option<Arc<Sampler>>,
}

impl Recorder {
    /// Creates a recorder that only fills `ring`. It is enough for tests with
    /// `tracing::subscriber::with_default(registry().with(recorder.layer()), …)`.
    pub fn new(level: TraceLevel, ring: Arc<Ring>) -> Self {
        Self { level, ring, sampler: None }
    }

    /// Returns this recorder with `sampler`, to which it also offers every span.
    pub(crate) fn with_sampler(mut self, sampler: Arc<Sampler>) -> Self {
        self.sampler = Some(sampler);
        self
    }

    /// Returns the ring that receives the spans.
    pub fn ring(&self) -> &Arc<Ring> {
        &self.ring
    }

    /// Returns a layer that records the spans of the project's crates up to the recorder's level.
    /// It filters only for itself, without effect on other layers of the same subscriber.
    pub fn layer<S>(&self) -> impl Layer<S> + Send + Sync + 'static
    where
        S: Subscriber + for<'a> LookupSpan<'a> + 'static,
    {
        let level = self.level.level_filter();
        let filter = FilterFn::new(move |meta: &Metadata<'_>| {
            meta.is_span() && *meta.level() <= level && service_of_target(meta.target()).is_some()
        })
        .with_max_level_hint(level);
        RecordLayer::<S> {
            recorder: self.clone(),
            access: SpanAccess(RecordLayer::<S>::with_span),
            subscriber: PhantomData,
        }
        .with_filter(filter)
    }

    fn finish(&self, record: SpanRecord) {
        let record = Arc::new(record);
        if let Some(sampler) = &self.sampler {
            sampler.offer(Arc::clone(&record));
        }
        self.ring.push(record);
    }
}

/// Access to the record of an open span for code outside the layer, whatever the subscriber's type.
/// The dispatcher returns it by downcast, and its function knows the type.
struct SpanAccess(AccessFn);

type AccessFn = fn(&Dispatch, &Id, &mut dyn FnMut(&mut SpanRecord));

/// Runs `f` on the record of the open `span`. Returns `None` if the span is disabled or not
/// recorded.
pub(crate) fn with_record<T>(span: &Span, f: impl FnOnce(&mut SpanRecord) -> T) -> Option<T> {
    span.with_subscriber(|(id, dispatch)| {
        let access = dispatch.downcast_ref::<SpanAccess>()?;
        let (mut f, mut result) = (Some(f), None);
        (access.0)(dispatch, id, &mut |record| {
            if let Some(f) = f.take() {
                result = Some(f(record));
            }
        });
        result
    })?
}

struct RecordLayer<S> {
    recorder: Recorder,
    access: SpanAccess,
    subscriber: PhantomData<fn(S)>,
}

impl<S> RecordLayer<S>
where
    S: Subscriber + for<'a> LookupSpan<'a> + 'static,
{
    fn with_span(dispatch: &Dispatch, id: &Id, f: &mut dyn FnMut(&mut SpanRecord)) {
        let Some(span) = dispatch.downcast_ref::<S>().and_then(|subscriber| subscriber.span(id))
        else {
            return;
        };
        if let Some(record) = span.extensions_mut().get_mut::<SpanRecord>() {
            f(record);
        }
    }
}

impl<S> Layer<S> for RecordLayer<S>
where
    S: Subscriber + for<'a> LookupSpan<'a> + 'static,
{
    fn on_new_span(&self, attrs: &Attributes<'_>, id: &Id, ctx: Context<'_, S>) {
        let Some(span) = ctx.span(id) else { return };
        let (trace_id, parent_id, inherited) = span
            .parent()
            .and_then(|parent| {
                let extensions = parent.extensions();
                let record = extensions.get::<SpanRecord>()?;
                Some((record.trace_id, record.span_id, record.service))
            })
            .unwrap_or((0, 0, DEFAULT_SERVICE));
        let meta = attrs.metadata();
        let start_ns = unix_nanos();
        let mut record = SpanRecord {
            trace_id: if trace_id == 0 { rand::random::<u128>().max(1) } else { trace_id },
            span_id: rand::random::<u64>().max(1),
            parent_id,
            parent_is_remote: false,
            service: service_of_target(meta.target()).flatten().unwrap_or(inherited),
            name: meta.name(),
            kind: Kind::Internal,
            error: None,
            start_ns,
            // 0 until the span ends, or is given its times.
            end_ns: 0,
            attributes: Vec::with_capacity(meta.fields().len()),
            thread: Thread::current(),
            busy: Vec::new(),
            links: Vec::new(),
        };
        attrs.record(&mut AttributeVisitor(&mut record));
        // `replace`, not `insert`: a second recorder on the same registry must not panic.
        span.extensions_mut().replace(record);
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, ctx: Context<'_, S>) {
        let Some(span) = ctx.span(id) else { return };
        if let Some(record) = span.extensions_mut().get_mut::<SpanRecord>() {
            values.record(&mut AttributeVisitor(record));
        }
    }

    fn on_follows_from(&self, id: &Id, follows: &Id, ctx: Context<'_, S>) {
        let (Some(span), Some(cause)) = (ctx.span(id), ctx.span(follows)) else { return };
        let link = cause
            .extensions()
            .get::<SpanRecord>()
            .map(|record| Link { trace_id: record.trace_id, span_id: record.span_id });
        let mut extensions = span.extensions_mut();
        if let (Some(record), Some(link)) = (extensions.get_mut::<SpanRecord>(), link) {
            record.links.push(link);
        }
    }

    fn on_close(&self, id: Id, ctx: Context<'_, S>) {
        let Some(span) = ctx.span(&id) else { return };
        let record = span.extensions_mut().remove::<SpanRecord>();
        if let Some(mut record) = record {
            if record.end_ns == 0 {
                // The clock of the machine may be set back while a span is open.
                record.end_ns = unix_nanos().max(record.start_ns);
            }
            self.recorder.finish(record);
        }
    }

    unsafe fn downcast_raw(&self, id: std::any::TypeId) -> Option<*const ()> {
        // The pointers live as long as `self`, as the contract of `downcast_raw` requires.
        if id == std::any::TypeId::of::<SpanAccess>() {
            return Some(std::ptr::from_ref(&self.access).cast());
        }
        (id == std::any::TypeId::of::<Self>()).then(|| std::ptr::from_ref(self).cast())
    }
}

/// Field that says the role of a span: `server` or `client`.
const KIND: &str = "otel.kind";
/// Field that says why a span failed, and that it did.
const ERROR: &str = "otel.status_description";

/// Collector of fields. A field recorded again replaces its earlier value. Role and failure are no
/// attributes.
struct AttributeVisitor<'a>(&'a mut SpanRecord);

impl AttributeVisitor<'_> {
    fn set(&mut self, field: &Field, value: Value) {
        match (field.name(), value) {
            (KIND, Value::Str(kind)) => self.0.kind = Kind::named(&kind),
            (ERROR, Value::Str(reason)) => self.0.error = Some(reason.into()),
            (name, value) => set_attribute(&mut self.0.attributes, name, value),
        }
    }
}

/// Sets attribute `name`, replacing an earlier value.
pub(crate) fn set_attribute(
    attributes: &mut Vec<(&'static str, Value)>,
    name: &'static str,
    value: Value,
) {
    match attributes.iter_mut().find(|(known, _)| *known == name) {
        Some((_, old)) => *old = value,
        None => attributes.push((name, value)),
    }
}

impl Visit for AttributeVisitor<'_> {
    fn record_f64(&mut self, field: &Field, value: f64) {
        self.set(field, Value::Float(value));
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.set(field, Value::Int(value));
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.set(field, Value::from(value));
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.set(field, Value::Bool(value));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.set(field, Value::Str(value.to_owned()));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.set(field, Value::Str(format!("{value:?}")));
    }
}
