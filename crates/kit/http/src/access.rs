//! Checks of a request's host, origin and content type by the rules of geth (`node/rpcstack.go`,
//! `rpc/http.go`). They prevent a web page from calling a node on the same machine.

use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, header};
use std::net::IpAddr;

/// Host names under which a port may be called. IP addresses are always allowed: another party
/// cannot redirect them, unlike names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hosts {
    /// Names in lower case.
    names: Vec<String>,
}

impl Default for Hosts {
    fn default() -> Self {
        Self::new(["localhost"])
    }
}

impl Hosts {
    /// Allows these names; `*` allows all.
    pub fn new<T: AsRef<str>>(names: impl IntoIterator<Item = T>) -> Self {
        let lower = |name: T| name.as_ref().trim().to_ascii_lowercase();
        Self { names: names.into_iter().map(lower).collect() }
    }

    /// Returns whether a request may name this host, with or without a port.
    pub fn allow(&self, host: &str) -> bool {
        let name = without_port(host);
        let bare = name.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(name);
        bare.parse::<IpAddr>().is_ok()
            || self.names.iter().any(|allowed| allowed == "*" || name.eq_ignore_ascii_case(allowed))
    }

    /// Returns the forbidden host that a request names, if any. A request without a host, as in
    /// HTTP/1.0, does not come from a browser.
    pub(crate) fn refused(&self, head: &Parts) -> Option<String> {
        let host = match head.uri.authority() {
            Some(authority) => authority.as_str(),
            None => match head.headers.get(header::HOST)?.to_str() {
                Ok(host) => host,
                Err(_) => return Some("of no readable name".to_owned()),
            },
        };
        const CHARS_MAX: usize = 100;
        (!host.is_empty() && !self.allow(host)).then(|| host.chars().take(CHARS_MAX).collect())
    }
}

fn without_port(host: &str) -> &str {
    match host.rsplit_once(':') {
        // The last part of an IPv6 address without brackets is not a port.
        Some((name, port))
            if port.bytes().all(|byte| byte.is_ascii_digit())
                && host.parse::<IpAddr>().is_err() =>
        {
            name
        }
        _ => host,
    }
}

/// Origins of web pages that may read the answers of a port (CORS).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Origins {
    /// Origins in lower case.
    allowed: Vec<String>,
}

impl Origins {
    /// Allows these origins, such as `https://app.example`. `*` allows all, and within an origin it
    /// matches any text.
    pub fn new<T: AsRef<str>>(origins: impl IntoIterator<Item = T>) -> Self {
        let lower = |origin: T| origin.as_ref().trim().to_ascii_lowercase();
        Self { allowed: origins.into_iter().map(lower).collect() }
    }

    /// Returns whether no origin is allowed.
    pub(crate) fn is_empty(&self) -> bool {
        self.allowed.is_empty()
    }

    /// Returns whether a caller may open a WebSocket. Browsers let every page open one and name the
    /// page's origin, so that a server can refuse it. Other callers name none.
    pub(crate) fn may_connect(&self, request: &HeaderMap) -> bool {
        request.get(header::ORIGIN).is_none_or(|origin| self.granted(origin).is_some())
    }

    /// Returns the value for the answer's `Access-Control-Allow-Origin` header, if any.
    fn granted(&self, origin: &HeaderValue) -> Option<HeaderValue> {
        if self.allowed.iter().any(|allowed| allowed == "*") {
            return Some(HeaderValue::from_static("*"));
        }
        let text = origin.to_str().ok()?.to_ascii_lowercase();
        self.allowed.iter().any(|allowed| matches(allowed, &text)).then(|| origin.clone())
    }

    /// Adds headers to an answer that permit the requesting page to read it, if allowed. Returns
    /// whether it is.
    pub(crate) fn grant(&self, request: &HeaderMap, answer: &mut HeaderMap) -> bool {
        if self.is_empty() {
            return false;
        }
        answer.append(header::VARY, HeaderValue::from_static("Origin"));
        let Some(granted) = request.get(header::ORIGIN).and_then(|origin| self.granted(origin))
        else {
            return false;
        };
        answer.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, granted);
        true
    }

    /// Returns the headers of the answer to a browser's preflight request.
    pub(crate) fn preflight(&self, request: &HeaderMap) -> HeaderMap {
        const SECONDS: &str = "600";
        let mut answer = HeaderMap::new();
        if self.grant(request, &mut answer) {
            let methods = HeaderValue::from_static("POST");
            answer.insert(header::ACCESS_CONTROL_ALLOW_METHODS, methods);
            if let Some(headers) = request.get(header::ACCESS_CONTROL_REQUEST_HEADERS) {
                answer.insert(header::ACCESS_CONTROL_ALLOW_HEADERS, headers.clone());
            }
            answer.insert(header::ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static(SECONDS));
        }
        answer
    }
}

/// Returns whether an origin matches the allowed one, in which one `*` stands for any text.
fn matches(allowed: &str, origin: &str) -> bool {
    match allowed.split_once('*') {
        None => allowed == origin,
        Some((start, end)) => {
            origin.len() >= start.len() + end.len()
                && origin.starts_with(start)
                && origin.ends_with(end)
        }
    }
}

/// Returns whether the content type is JSON. A page cannot send that type to another origin's port
/// without a preflight request.
pub(crate) fn is_json(headers: &HeaderMap) -> bool {
    const ACCEPTED: [&str; 3] =
        ["application/json", "application/json-rpc", "application/jsonrequest"];
    let Some(Ok(value)) = headers.get(header::CONTENT_TYPE).map(HeaderValue::to_str) else {
        return false;
    };
    let kind = value.split(';').next().unwrap_or_default().trim();
    ACCEPTED.iter().any(|accepted| kind.eq_ignore_ascii_case(accepted))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_and_the_names_given_are_allowed_with_any_port() {
        let hosts = Hosts::default();
        for host in [
            "localhost",
            "LocalHost:8545",
            "127.0.0.1",
            "127.0.0.1:8545",
            "10.1.2.3:1",
            "[::1]:8545",
            "[::1]",
            "::1",
        ] {
            assert!(hosts.allow(host), "{host}");
        }
        for host in ["evil.example", "localhost.evil.example:8545", "127.0.0.1.evil.example", "a"] {
            assert!(!hosts.allow(host), "{host}");
            assert!(Hosts::new(["*"]).allow(host), "{host}");
        }
        assert!(Hosts::new(["Executor", "b"]).allow("executor:8551"));
        assert!(!Hosts::new(["executor"]).allow("localhost"));
        assert!(!Hosts::new::<&str>([]).allow("localhost"));
    }

    #[test]
    fn pages_are_granted_what_their_origin_is() {
        let granted = |allowed: &[&str], origin: &str| {
            let mut request = HeaderMap::new();
            request.insert(header::ORIGIN, origin.parse().unwrap());
            let mut answer = HeaderMap::new();
            Origins::new(allowed).grant(&request, &mut answer);
            let granted = answer.get(header::ACCESS_CONTROL_ALLOW_ORIGIN);
            granted.map(|value| value.to_str().unwrap().to_owned())
        };
        let page = "https://app.example";
        assert_eq!(granted(&[], page), None);
        assert_eq!(granted(&["https://other.example"], page), None);
        assert_eq!(
            granted(&["https://other.example", "https://APP.example"], page),
            Some(page.into())
        );
        assert_eq!(granted(&["https://*.example"], page), Some(page.into()));
        assert_eq!(granted(&["https://*.app.example"], page), None);
        assert_eq!(granted(&["*"], page), Some("*".into()));
    }

    #[test]
    fn only_json_is_json() {
        let of = |value: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::CONTENT_TYPE, value.parse().unwrap());
            is_json(&headers)
        };
        for json in ["application/json", "Application/JSON; charset=utf-8", "application/json-rpc"]
        {
            assert!(of(json), "{json}");
        }
        for other in ["text/plain", "application/x-www-form-urlencoded", "", "json"] {
            assert!(!of(other), "{other}");
        }
        assert!(!is_json(&HeaderMap::new()));
    }
}
