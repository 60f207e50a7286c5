//! Admission of a port's requests: token, host, bounded body, and place.

use crate::access::is_json;
use crate::body::{BodyError, content_length, drain, read_body};
use crate::budget::{Budget, Reservation};
use crate::connection::Connection;
use crate::limits::Limits;
use crate::methods::INLINE_BYTES_MAX;
use crate::places::{Place, Places};
use crate::refusals::{Reason, Refusals};
use crate::server::json_response;
use axum::body::Body;
use axum::extract::Request;
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use std::fmt::Display;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};
use tandem_auth::Secret;
use tokio::time::timeout;

/// Status and reason.
pub(crate) type Refusal = (StatusCode, String);

/// Request that may be answered.
pub(crate) struct Admitted {
    pub(crate) head: Parts,
    pub(crate) body: Bytes,
    /// Counts the body as long as it is processed.
    pub(crate) reserved: Reservation,
    pub(crate) place: Place,
}

/// Limits of a port, and their use by its requests.
pub(crate) struct Entry {
    pub(crate) limits: Limits,
    secret: Option<Secret>,
    bodies: Arc<Budget>,
    pub(crate) places: Places,
    refusals: Refusals,
}

impl Entry {
    pub(crate) fn new(secret: Option<Secret>, limits: Limits) -> Self {
        Self {
            bodies: Budget::new(limits.bodies_bytes_max),
            places: Places::new(limits.requests_in_flight_max, limits.answers_bytes_max),
            refusals: Refusals::new(if secret.is_some() { "engine" } else { "http" }),
            limits,
            secret,
        }
    }

    /// Returns whether callers must show a token.
    pub(crate) fn is_trusted(&self) -> bool {
        self.secret.is_some()
    }

    /// Admits a request, or returns the refusal.
    pub(crate) async fn take(&self, request: Request) -> Result<Admitted, Box<Response>> {
        let (head, body) = request.into_parts();
        let connection = head.extensions.get::<Arc<Connection>>();
        if let Err(refusal) = self.admit(&head) {
            drop(body);
            // The connection ends with the refusal: its body is not read.
            if let Some(connection) = connection {
                connection.close_unread();
            }
            let refusal = ([(header::CONNECTION, "close")], refusal).into_response();
            return Err(Box::new(refusal));
        }
        if self.is_trusted()
            && let Some(connection) = connection
        {
            connection.trust();
        }
        let refused = match self.read(&head, body).await {
            Ok((body, reserved)) => match self.places.take(connection) {
                Some(place) => return Ok(Admitted { head, body, reserved, place }),
                None => self.refuse(Reason::Overload, "too many requests at once"),
            },
            Err(refusal) => refusal,
        };
        Err(Box::new(self.grant(&head.headers, refused.into_response())))
    }

    /// Answers a browser's preflight request.
    pub(crate) fn preflight(&self, head: &Parts) -> Response {
        match self.refuse_host(head) {
            Some(refusal) => refusal.into_response(),
            None => (StatusCode::NO_CONTENT, self.limits.origins.preflight(&head.headers))
                .into_response(),
        }
    }

    /// Returns the answer with the headers for the browser of a page that may read it.
    pub(crate) fn grant(&self, request: &HeaderMap, mut response: Response) -> Response {
        self.limits.origins.grant(request, response.headers_mut());
        response
    }

    /// Checks the head of a request before any further work.
    fn admit(&self, head: &Parts) -> Result<(), Refusal> {
        if let Some(secret) = &self.secret
            && let Err(reason) = authenticate(secret, &head.headers)
        {
            return Err(self.refuse(Reason::Token, reason));
        }
        if let Some(refusal) = self.refuse_host(head) {
            return Err(refusal);
        }
        if !is_json(&head.headers) {
            let text = "invalid content type; expected application/json";
            return Err(self.refuse(Reason::ContentType, text));
        }
        Ok(())
    }

    pub(crate) fn refuse_host(&self, head: &Parts) -> Option<Refusal> {
        let host = self.limits.hosts.refused(head)?;
        let flag = if self.secret.is_some() { "--authrpc.vhosts" } else { "--http.vhosts" };
        let text = format!("invalid host `{host}`; expected an IP address or a name of {flag}");
        Some(self.refuse(Reason::Host, text))
    }

    /// Reads a body. Returns it with its reservation of bytes.
    async fn read(&self, head: &Parts, body: Body) -> Result<(Bytes, Reservation), Refusal> {
        let limits = &self.limits;
        let announced = content_length(&head.headers);
        // Only an authenticated caller gets memory for its announced length.
        let room_max = if self.secret.is_some() { limits.body_bytes_max } else { INLINE_BYTES_MAX };
        let mut reserved = self.bodies.reserve();
        let read = read_body(body, announced, limits.body_bytes_max, room_max, &mut reserved);
        match timeout(limits.body_time_max, read).await {
            Ok(Ok(body)) => Ok((body, reserved)),
            Ok(Err(BodyError::TooLarge(rest))) => {
                drop(reserved);
                drain(&head.headers, rest).await;
                let text = format!("request body over {} bytes", limits.body_bytes_max);
                Err(self.refuse(Reason::BodySize, text))
            }
            Ok(Err(BodyError::TooMany(rest))) => {
                drop(reserved);
                drain(&head.headers, rest).await;
                Err(self.refuse(Reason::Bodies, "too many bytes of request bodies at once"))
            }
            Ok(Err(BodyError::Broken)) => {
                Err(self.refuse(Reason::BodyBroken, "broken request body"))
            }
            Err(_) => Err(self.refuse(Reason::BodyTime, "request body too slow")),
        }
    }

    pub(crate) fn refuse(&self, reason: Reason, text: impl Display) -> Refusal {
        let status = match reason {
            Reason::Token => StatusCode::UNAUTHORIZED,
            Reason::Host | Reason::Origin => StatusCode::FORBIDDEN,
            Reason::ContentType => StatusCode::UNSUPPORTED_MEDIA_TYPE,
            Reason::BodySize => StatusCode::PAYLOAD_TOO_LARGE,
            Reason::BodyTime => StatusCode::REQUEST_TIMEOUT,
            Reason::BodyBroken => StatusCode::BAD_REQUEST,
            _ => StatusCode::SERVICE_UNAVAILABLE,
        };
        self.refusals.count(reason, &text);
        (status, format!("{text}\n"))
    }

    /// Returns the answer as a response, unless too many bytes of answers wait.
    pub(crate) fn send(&self, json: Vec<u8>, mut place: Place) -> Response {
        match place.grow_to(json.len()) {
            true => json_response(place.send(json)),
            false => self.refuse_answer().into_response(),
        }
    }

    pub(crate) fn refuse_answer(&self) -> Refusal {
        self.refuse(Reason::Answers, "too many bytes of answers that callers have not taken yet")
    }
}

/// Checks the bearer token of a request against the wall clock.
fn authenticate(secret: &Secret, headers: &HeaderMap) -> Result<(), AuthError> {
    let value = headers.get(header::AUTHORIZATION).ok_or(AuthError::Missing)?;
    let value = value.to_str().map_err(|_| AuthError::Missing)?;
    let (scheme, token) = value.split_once(' ').ok_or(AuthError::Missing)?;
    if !scheme.eq_ignore_ascii_case("bearer") {
        return Err(AuthError::Missing);
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    Ok(tandem_auth::verify(secret, token.trim(), now)?)
}

#[derive(Debug, thiserror::Error)]
enum AuthError {
    #[error("missing token")]
    Missing,
    #[error(transparent)]
    Token(#[from] tandem_auth::Error),
}
