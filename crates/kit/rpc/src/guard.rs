//! Refusal of calls that the caller's certificate does not allow, before the service sees them.

use crate::{log_once::LogOnce, metrics as names, roles::format_roles, socket::Caller};
use futures_util::future::Either;
use metrics::counter;
use std::{
    convert::Infallible,
    future::{Ready, ready},
    net::IpAddr,
    sync::Arc,
    task::{Context, Poll},
};
use tonic::{
    Status,
    body::Body,
    codegen::{Service, http},
    server::NamedService,
};
use tracing::warn;

/// Function that decides whether a role may call a method of a service.
pub type Access = fn(role: &str, service: &str, method: &str) -> bool;

/// Service behind a guard; without a guard, every caller may call every method.
#[derive(Clone)]
pub struct Guarded<S> {
    service: S,
    guard: Option<Arc<Guard>>,
}

impl<S> Guarded<S> {
    /// Lets only callers pass that `access` allows; lets all pass without it.
    pub fn new(service: S, access: Option<Access>) -> Self {
        let guard = access.map(|access| Arc::new(Guard { access, logged: LogOnce::default() }));
        Self { service, guard }
    }
}

struct Guard {
    access: Access,
    logged: LogOnce<(Option<IpAddr>, Arc<[String]>)>,
}

impl Guard {
    fn check(&self, caller: Option<&Caller>, service: &str, path: &str) -> Result<(), Status> {
        let caller = caller.cloned().unwrap_or_default();
        let method = path.rsplit('/').next().unwrap_or(path);
        if caller.may_call(self.access, service, method) {
            return Ok(());
        }
        let role = caller.roles.first().map_or("none", String::as_str).to_owned();
        let labels = [("role", role), ("service", service.to_owned())];
        counter!(names::REFUSED_CALLS, &labels).increment(1);
        let text = format!("{} may not call {method} of {service}", format_roles(&caller.roles));
        if self.logged.is_new((caller.address, caller.roles)) {
            warn!(peer = ?caller.address, reason = text, "call refused");
        }
        Err(Status::permission_denied(text))
    }
}

impl<S: NamedService> NamedService for Guarded<S> {
    const NAME: &'static str = S::NAME;
}

type Response = http::Response<Body>;

impl<S> Service<http::Request<Body>> for Guarded<S>
where
    S: Service<http::Request<Body>, Response = Response, Error = Infallible> + NamedService,
{
    type Response = Response;
    type Error = Infallible;
    type Future = Either<S::Future, Ready<Result<Response, Infallible>>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.service.poll_ready(context)
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        if let Some(guard) = &self.guard {
            let caller = request.extensions().get::<Caller>();
            if let Err(status) = guard.check(caller, S::NAME, request.uri().path()) {
                return Either::Right(ready(Ok(status.into_http())));
            }
        }
        Either::Left(self.service.call(request))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tonic::Code;

    fn guard() -> Guard {
        let access: Access = |role, service, method| match (service, method) {
            ("chain.Writer", "Commit") => role == "executor",
            ("chain.Writer", "Read") => ["executor", "worker"].contains(&role),
            _ => false,
        };
        Guard { access, logged: LogOnce::default() }
    }

    fn caller(roles: &[&str]) -> Caller {
        let roles = roles.iter().map(|&role| role.to_owned()).collect();
        Caller { roles, address: Some([127, 0, 0, 1].into()), connection: None }
    }

    #[test]
    fn a_call_passes_if_one_of_the_callers_roles_may_make_it() {
        let guard = guard();
        let passes = |roles: &[&str], path: &str| {
            guard.check(Some(&caller(roles)), "chain.Writer", path).is_ok()
        };
        assert!(passes(&["executor"], "/chain.Writer/Commit"));
        assert!(passes(&["worker"], "/chain.Writer/Read"));
        assert!(passes(&["worker", "executor"], "/chain.Writer/Commit"));
        assert!(!passes(&["worker"], "/chain.Writer/Commit"));
        assert!(!passes(&["executor"], "/chain.Writer/Drop"));
        assert!(!passes(&[], "/chain.Writer/Read"));
    }

    #[test]
    fn a_refusal_names_role_and_method() {
        let guard = guard();
        let refuse = |caller: Option<&Caller>| {
            let status = guard.check(caller, "chain.Writer", "/chain.Writer/Commit").unwrap_err();
            assert_eq!(status.code(), Code::PermissionDenied);
            status.message().to_owned()
        };
        let worker = caller(&["worker"]);
        assert_eq!(refuse(Some(&worker)), "worker may not call Commit of chain.Writer");
        // The caller came over a connection that shows no certificate.
        assert_eq!(refuse(None), "no role may not call Commit of chain.Writer");
    }
}
