//! The metrics port of a process, as options name it.

use std::str::FromStr;

/// A process to look at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// Service that the process runs, if given.
    pub service: Option<String>,
    /// URL without a path.
    pub url: String,
}

impl FromStr for Target {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (service, url) = match text.split_once('=') {
            Some((service, url)) => (Some(service), url),
            None => (None, text),
        };
        let url = url.trim_end_matches('/');
        let url = url.strip_suffix("/metrics").unwrap_or(url);
        let host = url.strip_prefix("http://").filter(|host| !host.is_empty());
        if host.is_none() || service == Some("") {
            return Err("expected http://HOST:PORT, or SERVICE=http://HOST:PORT");
        }
        Ok(Self { service: service.map(str::to_owned), url: url.to_owned() })
    }
}

impl Target {
    /// Returns the name to show, and whether it is that of a service.
    pub fn name(&self) -> (String, bool) {
        match &self.service {
            Some(service) => (service.clone(), true),
            None => (self.url.clone(), false),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_are_named_by_their_address_or_as_is_said() {
        let name = |text: &str| text.parse::<Target>().map(|target| target.name());
        let plain = ("http://a:9100".to_owned(), false);
        for text in ["http://a:9100", "http://a:9100/", "http://a:9100/metrics"] {
            assert_eq!(name(text), Ok(plain.clone()), "{text}");
        }
        assert_eq!(name("executor=http://a:1"), Ok(("executor".to_owned(), true)));
        for wrong in ["", "a:9100", "https://a", "=http://a", "http://", "executor="] {
            assert!(wrong.parse::<Target>().is_err(), "{wrong}");
        }
    }
}
