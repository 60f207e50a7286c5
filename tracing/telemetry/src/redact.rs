//! Addresses without passwords, for logs.

use std::borrow::Cow;

/// Replacement of a name and a password.
const REDACTED: &str = "***";

/// Returns a URL, or an address without a scheme, in which `***` replaces a name and a password
/// before the host.
pub fn redacted(url: &str) -> Cow<'_, str> {
    let start = url.find("://").map_or(0, |at| at + "://".len());
    let rest = &url[start..];
    let authority = &rest[..rest.find(['/', '?', '#']).unwrap_or(rest.len())];
    match authority.rfind('@') {
        Some(at) => Cow::Owned(format!("{}{REDACTED}{}", &url[..start], &rest[at..])),
        None => Cow::Borrowed(url),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_passwords_are_left_out() {
        for (url, want) in [
            ("http://user:secret@host:4317/path", "http://***@host:4317/path"),
            ("https://token@host", "https://***@host"),
            ("nats://a:b@c@host:4222", "nats://***@host:4222"),
            ("a:b@host:4222", "***@host:4222"),
            ("http://host:4317", "http://host:4317"),
            ("http://host/a@b", "http://host/a@b"),
            ("host:4317", "host:4317"),
            ("", ""),
        ] {
            assert_eq!(redacted(url), want);
        }
    }
}
