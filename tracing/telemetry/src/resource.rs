//! Identity of the process that spans come from.

use std::sync::Arc;

use crate::error::Error;

/// Attributes of the OpenTelemetry resource that all spans of a process share. They exclude
/// `service.name`, which belongs to the span.
///
/// <https://opentelemetry.io/docs/specs/semconv/resource/>
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Resource {
    attributes: Arc<Vec<(String, String)>>,
}

/// Attributes that are set per span, or by the exporter itself.
const OWN: [&str; 3] = ["service.name", "service.namespace", "service.version"];

impl Resource {
    /// Creates a resource for a process on this host: `host.name`, and a random UUID as
    /// `service.instance.id`. The UUID distinguishes processes that share everything else.
    pub fn of_host(host: &str) -> Self {
        let resource = Self::default().with("service.instance.id", &random_uuid());
        if host.is_empty() { resource } else { resource.with("host.name", host) }
    }

    /// Adds attributes in the form of `OTEL_RESOURCE_ATTRIBUTES`: `key=value,key=value`, both
    /// percent-encoded. They replace attributes of the same key, except the names of the service.
    /// Empty values are ignored.
    ///
    /// # Errors
    /// Returns [`Error::Resource`] for an attribute that is not of this form.
    pub fn with_text(mut self, text: &str) -> Result<Self, Error> {
        for pair in text.split(',').map(str::trim).filter(|pair| !pair.is_empty()) {
            let wrong = || Error::Resource { attribute: pair.to_owned() };
            let (key, value) = pair.split_once('=').ok_or_else(wrong)?;
            let key = decoded(key.trim()).filter(|key| !key.is_empty()).ok_or_else(wrong)?;
            let value = decoded(value.trim()).ok_or_else(wrong)?;
            if !value.is_empty() && !OWN.contains(&&*key) {
                self = self.with(&key, &value);
            }
        }
        Ok(self)
    }

    fn with(mut self, key: &str, value: &str) -> Self {
        let attributes = Arc::make_mut(&mut self.attributes);
        match attributes.iter_mut().find(|(known, _)| known == key) {
            Some((_, old)) => value.clone_into(old),
            None => attributes.push((key.to_owned(), value.to_owned())),
        }
        self
    }

    /// Returns keys and values.
    pub fn attributes(&self) -> impl Iterator<Item = (&str, &str)> {
        self.attributes.iter().map(|(key, value)| (&**key, &**value))
    }
}

/// Returns a random UUID of version 4 (RFC 9562, section 5.4).
fn random_uuid() -> String {
    let random = rand::random::<u128>() & !(0xf << 76) & !(0x3 << 62);
    let hex = format!("{:032x}", random | (0x4 << 76) | (0x2 << 62));
    [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]].join("-")
}

/// Decodes percent-encoded text (RFC 3986, section 2.1). Returns `None` for an invalid encoding.
fn decoded(text: &str) -> Option<String> {
    let (mut bytes, mut rest) = (Vec::with_capacity(text.len()), text.as_bytes());
    while let Some((&first, after)) = rest.split_first() {
        if first != b'%' {
            bytes.push(first);
            rest = after;
            continue;
        }
        let digit = |at: usize| char::from(*after.get(at)?).to_digit(16);
        bytes.push((digit(0)? * 16 + digit(1)?) as u8);
        rest = &after[2..];
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value<'a>(resource: &'a Resource, key: &str) -> Option<&'a str> {
        resource.attributes().find(|(known, _)| *known == key).map(|(_, value)| value)
    }

    #[test]
    fn a_process_has_its_host_and_a_name_of_its_own() {
        let (one, other) = (Resource::of_host("tandem-0"), Resource::of_host("tandem-0"));
        assert_eq!(value(&one, "host.name"), Some("tandem-0"));
        let id = value(&one, "service.instance.id").unwrap();
        assert_ne!(Some(id), value(&other, "service.instance.id"));
        let lengths: Vec<usize> = id.split('-').map(str::len).collect();
        assert_eq!(lengths, [8, 4, 4, 4, 12]);
        assert_eq!((&id[14..15], "89ab".contains(&id[19..20])), ("4", true), "{id}");
        assert_eq!(value(&Resource::of_host(""), "host.name"), None);
    }

    #[test]
    fn the_text_of_the_environment_stands_over_what_is_known() {
        let text = "k8s.pod.name=tandem-0, k8s.node.name=a%2Cb%3D%C3%BC,k8s.namespace.name=,\
            service.name=other,host.name=node-7,";
        let resource = Resource::of_host("h").with_text(text).unwrap();
        let known: Vec<_> = resource.attributes().skip(1).collect();
        let expected = [("host.name", "node-7"), ("k8s.pod.name", "tandem-0")];
        assert_eq!(known[..2], expected);
        assert_eq!(known[2..], [("k8s.node.name", "a,b=ü")]);
    }

    #[test]
    fn what_is_no_attribute_is_named() {
        for wrong in ["k8s.pod.name", "=x", "a=%2", "a=%zz", "%ff=1"] {
            let error = Resource::default().with_text(&format!("a=b,{wrong}")).unwrap_err();
            assert!(error.to_string().contains(&format!("{wrong:?}")), "{error}");
        }
    }
}
