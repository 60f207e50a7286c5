//! Payloads that their block's access list drove, and what came of it (EIP-7928).

use crate::model::{Attribute, Span};

/// Sums over the spans of execution that say that a list drove their block.
#[derive(Debug, Default)]
pub(crate) struct ListedBlocks {
    blocks: u64,
    left: u64,
    ahead: u64,
    conflicts: u64,
    waited_ns: u64,
    longest: Option<Longest>,
}

/// Transaction that took longest.
#[derive(Debug)]
struct Longest {
    us: u64,
    index: u64,
    ahead: bool,
}

impl ListedBlocks {
    /// Adds a span, if it is the execution of such a block.
    pub(crate) fn add(&mut self, span: &Span) {
        if span.attribute("listed") != Some(&Attribute::Bool(true)) {
            return;
        }
        let count = |key| span.attribute(key).and_then(Attribute::as_u64);
        self.blocks += 1;
        self.left += u64::from(count("list.left_at").is_some());
        self.ahead += count("committed").unwrap_or(0);
        self.conflicts += count("conflicts").unwrap_or(0);
        self.waited_ns += count("wait.ahead_ns").unwrap_or(0);
        let Some(us) = count("longest.us") else { return };
        if self.longest.as_ref().is_none_or(|longest| longest.us < us) {
            let index = count("longest.index").unwrap_or(0);
            let ahead = span.attribute("longest.ahead") == Some(&Attribute::Bool(true));
            self.longest = Some(Longest { us, index, ahead });
        }
    }

    /// Returns the sums in words, `None` if there is no such block.
    pub(crate) fn note(&self) -> Option<String> {
        let Self { blocks, left, ahead, conflicts, waited_ns, longest } = self;
        if *blocks == 0 {
            return None;
        }
        let mut note = format!(
            "{blocks} payloads were driven by their access list, {left} of them until it was found \
             wrong: {ahead} results from ahead of their turn were committed, {conflicts} did not \
             hold; the engine waited {:.3} ms for others",
            *waited_ns as f64 / 1e6
        );
        if let Some(Longest { us, index, ahead }) = longest {
            let place = if *ahead { "ahead" } else { "by the engine" };
            let ms = *us as f64 / 1e3;
            note += &format!("; the longest took {ms:.3} ms (number {index}, executed {place})");
        }
        Some(note)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Kind, SpanId, TraceId};

    fn span(attributes: &[(&str, Attribute)]) -> Span {
        Span {
            trace_id: TraceId(1),
            span_id: SpanId(1),
            parent: None,
            service: "executor".into(),
            host: "host".into(),
            resource: [].into(),
            kind: Kind::Other,
            name: "payload processor".to_owned(),
            start_ns: 0,
            end_ns: 1,
            busy: Vec::new(),
            attributes: attributes.iter().map(|(k, v)| ((*k).to_owned(), v.clone())).collect(),
            links: Vec::new(),
        }
    }

    #[test]
    fn blocks_that_a_list_drove_are_summed() {
        let mut blocks = ListedBlocks::default();
        blocks.add(&span(&[("committed", Attribute::Int(9))]));
        blocks.add(&span(&[("listed", Attribute::Bool(false))]));
        assert_eq!(blocks.note(), None);
        for (us, ahead) in [(1_500, true), (700, false)] {
            blocks.add(&span(&[
                ("listed", Attribute::Bool(true)),
                ("committed", Attribute::Int(5)),
                ("conflicts", Attribute::Int(1)),
                ("list.left_at", Attribute::Int(3)),
                ("wait.ahead_ns", Attribute::Int(250_000)),
                ("longest.us", Attribute::Int(us)),
                ("longest.index", Attribute::Int(us / 100)),
                ("longest.ahead", Attribute::Bool(ahead)),
            ]));
        }
        assert_eq!(
            blocks.note().unwrap(),
            "2 payloads were driven by their access list, 2 of them until it was found wrong: 10 \
             results from ahead of their turn were committed, 2 did not hold; the engine waited \
             0.500 ms for others; the longest took 1.500 ms (number 15, executed ahead)"
        );
    }
}
