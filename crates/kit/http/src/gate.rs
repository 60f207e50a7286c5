//! Port of an executor that may be on standby. Its calls are answered here, forwarded to the
//! executor that has the right to write, or refused with the reason.
//!
//! ```text
//!              ┌ Here ──► the routes of this executor
//! call ──► Gate┼ Away ──► entry (token, host, body, place) ──► Forwarder ──► the same port there
//!              └ Closed ► entry ──► waits a moment for another route ──► 503
//! ```
//!
//! **Waiting.** A call that finds no executor waits briefly for one, longer than a take-over takes.
//! A forwarded call is sent again if its executor loses the right to write meanwhile: the ports'
//! methods may be executed twice. Bodies are read whole for this purpose.
//!
//! **Limits.** The port's limits also apply to forwarded calls. An unauthenticated caller is
//! refused here, and slow callers occupy no connection to the other executor.

use crate::connection::Connection;
use crate::entry::{Admitted, Entry};
use crate::forward::{Failure, Forwarded, Forwarder, Target, is_forwarded};
use crate::limits::Limits;
use crate::metrics::{FORWARD_SECONDS, FORWARDED_TOTAL, RIGHT_TO_WRITE, describe_gate_metrics};
use crate::places::Place;
use crate::refusals::Reason;
use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::http::request::Parts;
use axum::http::{HeaderValue, Method, StatusCode, Version, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use tandem_auth::Secret;
use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower::ServiceExt;

/// Maximum waiting time of a call for an executor that can answer it.
const WAIT_MAX: Duration = Duration::from_millis(1500);

/// Destination of a port's calls.
#[derive(Clone)]
enum Route {
    /// Calls are refused, for this reason.
    Closed(&'static str),
    /// Calls go to another executor.
    Away(Arc<Target>),
    /// Calls go to these routes.
    Here(Router),
}

impl Route {
    fn leads_to(&self, target: &Target) -> bool {
        matches!(self, Self::Away(current) if **current == *target)
    }
}

/// Port of an executor. Cheap to clone.
#[derive(Clone)]
pub struct Gate(Arc<Shared>);

struct Shared {
    port: &'static str,
    entry: Entry,
    forwarder: Forwarder,
    route: watch::Sender<Route>,
    /// Calls that are answered here.
    under_way: TaskTracker,
    /// Cancelled when the process must end: connections end after their answer.
    leaving: CancellationToken,
    /// Cancelled when the calls still answered here are given up.
    cut: CancellationToken,
}

impl fmt::Debug for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gate").field("port", &self.0.port).finish_non_exhaustive()
    }
}

impl Gate {
    /// Creates the gate of the Engine API for the executor with this name. Every request needs a
    /// token signed with `secret`.
    pub fn engine(name: &str, secret: Secret, limits: Limits) -> Self {
        Self::new("engine", name, Some(secret), limits)
    }

    /// Creates the gate of the public port.
    pub fn public(name: &str, limits: Limits) -> Self {
        Self::new("http", name, None, limits)
    }

    fn new(port: &'static str, name: &str, secret: Option<Secret>, limits: Limits) -> Self {
        describe_gate_metrics();
        let under_way = TaskTracker::new();
        under_way.close();
        let gate = Self(Arc::new(Shared {
            port,
            entry: Entry::new(secret, limits),
            forwarder: Forwarder::new(name),
            route: watch::Sender::new(Route::Closed("this executor is starting")),
            under_way,
            leaving: CancellationToken::new(),
            cut: CancellationToken::new(),
        }));
        gate.0.tell(false);
        gate
    }

    /// Returns the routes of the port.
    pub fn router(&self) -> Router {
        let gate = self.clone();
        Router::new().fallback(move |request| gate.clone().pass(request))
    }

    /// Lets these routes answer from now on, until the process must end.
    pub fn open(&self, router: Router) {
        self.0.route.send_if_modified(|route| {
            let opens = !self.0.leaving.is_cancelled();
            if opens {
                *route = Route::Here(router);
                self.0.tell(true);
            }
            opens
        });
    }

    /// Refuses calls from now on, for this reason, unless this executor answers.
    pub fn close(&self, reason: &'static str) {
        self.0.route.send_if_modified(|route| {
            let closes = !matches!(route, Route::Here(_));
            if closes {
                *route = Route::Closed(reason);
            }
            closes
        });
    }

    /// Forwards calls to that executor from now on, unless this executor answers.
    pub fn pass_on(&self, target: Target) {
        self.0.route.send_if_modified(|route| {
            let moves = !matches!(route, Route::Here(_)) && !route.leads_to(&target);
            if moves {
                *route = Route::Away(Arc::new(target));
            }
            moves
        });
    }

    /// Returns whether no executor answers.
    pub fn is_closed(&self) -> bool {
        matches!(*self.0.route.borrow(), Route::Closed(_))
    }

    /// Waits until the route changes.
    pub async fn moved(&self) {
        // This cannot fail: the sender is here.
        let _ = self.0.route.subscribe().changed().await;
    }

    /// Returns whether calls are forwarded to a reachable, serving executor.
    pub async fn reaches(&self) -> bool {
        let route = self.0.route.borrow().clone();
        match route {
            Route::Away(target) => self.0.forwarder.reaches(&target).await,
            Route::Closed(_) | Route::Here(_) => false,
        }
    }

    /// Prepares the end of the process. This executor answers no new call, for this reason, and
    /// each connection ends after its running answer. Forwarding continues.
    pub fn leave(&self, reason: &'static str) {
        self.0.leaving.cancel();
        self.0.route.send_if_modified(|route| {
            let ends = matches!(route, Route::Here(_));
            if ends {
                *route = Route::Closed(reason);
                self.0.tell(false);
            }
            ends
        });
    }

    /// Returns a token that [`Self::leave`] cancels.
    pub fn leaving(&self) -> &CancellationToken {
        &self.0.leaving
    }

    /// Waits until no call is being answered here.
    pub async fn drained(&self) {
        self.0.under_way.wait().await;
    }

    /// Gives up the calls that are still being answered here, with HTTP 503.
    pub fn cut(&self) {
        self.0.cut.cancel();
    }

    async fn pass(self, request: Request) -> Response {
        let shared = &*self.0;
        let version = request.version();
        let route = shared.route.borrow().clone();
        let mut response = match route {
            Route::Here(router) => shared.serve(router, request).await,
            Route::Closed(_) | Route::Away(_) => shared.answer(request).await,
        };
        // HTTP/2 has no such header.
        if shared.leaving.is_cancelled() && version < Version::HTTP_2 {
            response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        response
    }
}

impl Shared {
    /// Reports in the metrics whether this executor has the right to write.
    fn tell(&self, has_right: bool) {
        if self.entry.is_trusted() {
            metrics::gauge!(RIGHT_TO_WRITE).set(f64::from(u8::from(has_right)));
        }
    }

    /// Lets a call be answered here.
    async fn serve(&self, router: Router, request: Request) -> Response {
        let _under_way = self.under_way.token();
        tokio::select! {
            Ok(response) = router.oneshot(request) => response,
            () = self.cut.cancelled() => unavailable("this executor is stopping"),
        }
    }

    /// Answers a call while this executor does not have the right to write.
    async fn answer(&self, request: Request) -> Response {
        let is_call = request.method() == Method::POST && request.uri().path() == "/";
        if request.method() == Method::OPTIONS && !self.entry.limits.origins.is_empty() {
            return self.entry.preflight(&request.into_parts().0);
        }
        if !is_call {
            return unavailable("this executor does not have the right to write");
        }
        let started = Instant::now();
        let Admitted { head, body, reserved: _reserved, place } =
            match self.entry.take(request).await {
                Ok(admitted) => admitted,
                Err(refusal) => return *refusal,
            };
        let (outcome, response) = self.deliver(&head, body, place).await;
        let port = self.port;
        metrics::counter!(FORWARDED_TOTAL, "port" => port, "outcome" => outcome).increment(1);
        metrics::histogram!(FORWARD_SECONDS, "port" => port).record(started.elapsed());
        response
    }

    /// Delivers a call to an executor that answers, or returns the reason why there is none.
    async fn deliver(
        &self,
        head: &Parts,
        body: Bytes,
        mut place: Place,
    ) -> (&'static str, Response) {
        let until = Instant::now() + WAIT_MAX;
        let mut routes = self.route.subscribe();
        loop {
            let route = routes.borrow_and_update().clone();
            let (outcome, reason) = match route {
                Route::Here(router) => {
                    drop(place);
                    return ("here", self.serve(router, again(head, body)).await);
                }
                Route::Closed(reason) => ("no_holder", reason.to_owned()),
                Route::Away(target) if is_forwarded(&head.headers) => {
                    let text =
                        "does not have the right to write, and the call was passed on already";
                    ("passed_on", format!("this executor {text}: that right has {target}"))
                }
                Route::Away(target) => {
                    let sent = self.forwarder.send(&target, head, body.clone().into(), &mut place);
                    let moved = async {
                        let _ = routes.wait_for(|route| !route.leads_to(&target)).await;
                    };
                    let failure = tokio::select! {
                        sent = sent => match sent {
                            Ok(answer) => {
                                return ("answered", self.give(head, answer, place));
                            }
                            Err(failure) => failure,
                        },
                        () = moved => continue,
                    };
                    match failure {
                        Failure::Unreachable(why) => {
                            ("unreachable", format!("{target} cannot be reached: {why}"))
                        }
                        Failure::Broken(why) => {
                            let text = format!("{target} gave no answer: {why}");
                            return ("broken", unavailable(&text));
                        }
                        Failure::NoRoom => {
                            return ("no_room", self.entry.refuse_answer().into_response());
                        }
                    }
                }
            };
            if !matches!(timeout_at(until, routes.changed()).await, Ok(Ok(()))) {
                let refusal = self.entry.refuse(Reason::NoHolder, reason);
                return (outcome, self.entry.grant(&head.headers, refusal.into_response()));
            }
        }
    }

    /// Returns another executor's answer as the response.
    fn give(&self, head: &Parts, answer: Forwarded, place: Place) -> Response {
        let Forwarded { status, content_type, body } = answer;
        let mut response = (status, place.send(body)).into_response();
        if let Some(value) = content_type {
            response.headers_mut().insert(header::CONTENT_TYPE, value);
        }
        self.entry.grant(&head.headers, response)
    }
}

/// Rebuilds the original call, with its body in memory.
fn again(head: &Parts, body: Bytes) -> Request {
    let mut request = Request::new(Body::from(body));
    *request.method_mut() = head.method.clone();
    *request.uri_mut() = head.uri.clone();
    *request.headers_mut() = head.headers.clone();
    if let Some(connection) = head.extensions.get::<Arc<Connection>>() {
        request.extensions_mut().insert(connection.clone());
    }
    request
}

fn unavailable(reason: &str) -> Response {
    (StatusCode::SERVICE_UNAVAILABLE, format!("{reason}\n")).into_response()
}

#[cfg(test)]
mod tests;
