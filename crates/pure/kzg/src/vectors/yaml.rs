//! Parser for the part of YAML that the vectors use: mappings and lists by indentation, lists in
//! brackets over several lines, hexadecimal strings in quotes, numbers, `true`, `false`, `null`.

/// Value in a vector.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Value {
    Null,
    Bool(bool),
    Number(u64),
    /// String `'0x…'`.
    Bytes(Vec<u8>),
    List(Vec<Value>),
    Map(Vec<(String, Value)>),
}

impl Value {
    /// Returns the value of a key.
    pub fn get(&self, key: &str) -> Option<&Self> {
        let Self::Map(entries) = self else { return None };
        entries.iter().find(|(name, _)| name == key).map(|(_, value)| value)
    }

    pub fn bytes(&self) -> Option<&[u8]> {
        if let Self::Bytes(bytes) = self { Some(bytes) } else { None }
    }

    pub fn list(&self) -> Option<&[Self]> {
        if let Self::List(items) = self { Some(items) } else { None }
    }

    pub fn numbers(&self) -> Option<Vec<u64>> {
        let number = |item: &Self| if let Self::Number(n) = item { Some(*n) } else { None };
        self.list()?.iter().map(number).collect()
    }

    /// Returns the start of the value as text, for messages.
    pub fn summary(&self) -> String {
        let mut text = format!("{self:?}");
        text.truncate(text.floor_char_boundary(80));
        text
    }
}

/// Maximum nesting depth of a value.
const DEPTH_MAX: usize = 8;

/// Parses a document. Returns `None` when the text is outside the supported part of YAML.
pub fn parse(text: &str) -> Option<Value> {
    let mut lines = Vec::new();
    let mut open: Option<(usize, String)> = None;
    for line in text.lines().filter(|line| !line.trim().is_empty()) {
        let content = line.trim();
        // A list in brackets continues until its closing bracket.
        let (indent, joined) = match open.take() {
            Some((indent, begun)) => (indent, format!("{begun} {content}")),
            None => (line.len() - line.trim_start().len(), content.to_owned()),
        };
        if joined.contains('[') && !joined.contains(']') {
            open = Some((indent, joined));
        } else {
            lines.push((indent, joined));
        }
    }
    if open.is_some() {
        return None;
    }
    let mut parser = Parser { lines, next: 0 };
    let value = parser.block(0)?;
    (parser.next == parser.lines.len()).then_some(value)
}

struct Parser {
    lines: Vec<(usize, String)>,
    next: usize,
}

impl Parser {
    /// Parses the value that begins at the next line and consumes all lines of its indentation.
    fn block(&mut self, depth: usize) -> Option<Value> {
        if depth > DEPTH_MAX {
            return None;
        }
        let (indent, first) = self.lines.get(self.next)?;
        let indent = *indent;
        if first.starts_with("- ") {
            self.items(indent, depth)
        } else {
            self.entries(indent, depth)
        }
    }

    fn items(&mut self, indent: usize, depth: usize) -> Option<Value> {
        let mut items = Vec::new();
        while let Some((at, line)) = self.lines.get_mut(self.next) {
            if *at != indent {
                break;
            }
            let Some(rest) = line.strip_prefix("- ") else { break };
            if rest.starts_with("- ") {
                // For a list in a list, the first inner item stands on the same line, indented by
                // the dash.
                let rest = rest.to_owned();
                (*at, *line) = (indent + 2, rest);
                items.push(self.block(depth + 1)?);
            } else {
                items.push(scalar(rest)?);
                self.next += 1;
            }
        }
        Some(Value::List(items))
    }

    fn entries(&mut self, indent: usize, depth: usize) -> Option<Value> {
        let mut entries = Vec::new();
        while let Some((at, line)) = self.lines.get(self.next) {
            if *at != indent || line.starts_with("- ") {
                break;
            }
            let (key, rest) = line.split_once(':')?;
            let (key, rest) = (key.to_owned(), rest.trim().to_owned());
            self.next += 1;
            let value = if rest.is_empty() { self.block(depth + 1)? } else { scalar(&rest)? };
            entries.push((key, value));
        }
        if entries.is_empty() { None } else { Some(Value::Map(entries)) }
    }
}

fn scalar(text: &str) -> Option<Value> {
    if let Some(inner) = text.strip_prefix('[') {
        let inner = inner.strip_suffix(']')?.trim();
        let parts = inner.split(',').map(str::trim).filter(|part| !part.is_empty());
        return parts.map(scalar).collect::<Option<_>>().map(Value::List);
    }
    if let Some(quoted) = text.strip_prefix('\'') {
        let hex = quoted.strip_suffix('\'')?.strip_prefix("0x")?;
        return const_hex::decode(hex).ok().map(Value::Bytes);
    }
    match text {
        "null" => Some(Value::Null),
        "true" => Some(Value::Bool(true)),
        "false" => Some(Value::Bool(false)),
        number => number.parse().ok().map(Value::Number),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_construct_of_the_vectors_is_read() {
        let text = "input:\n  a: '0x0102'\n  n: [1,\n      2,\n    3]\n  l:\n  - '0x01'\n  - '0x'\n  e: []\noutput:\n- - '0x0a'\n  - '0x0b'\n- - '0x0c'\n";
        let value = parse(text).unwrap();
        let input = value.get("input").unwrap();
        assert_eq!(input.get("a").unwrap().bytes(), Some(&[1, 2][..]));
        assert_eq!(input.get("n").unwrap().numbers(), Some(vec![1, 2, 3]));
        assert_eq!(input.get("l").unwrap().list().unwrap().len(), 2);
        assert_eq!(input.get("e").unwrap().list(), Some(&[][..]));
        let bytes = |byte| Value::Bytes(vec![byte]);
        let lists = vec![Value::List(vec![bytes(10), bytes(11)]), Value::List(vec![bytes(12)])];
        assert_eq!(value.get("output"), Some(&Value::List(lists)));
        assert_eq!(parse("output: null").unwrap().get("output"), Some(&Value::Null));
    }

    #[test]
    fn what_is_no_such_document_is_refused() {
        for text in ["", "a", "a: [1", "a: '0x1'", "a: {b: 1}", "a:\n  b: 1\n c: 2", "- x"] {
            assert_eq!(parse(text), None, "{text:?}");
        }
        let deep = (0..100).map(|depth| format!("{}a:\n", " ".repeat(depth))).collect::<String>();
        assert_eq!(parse(&deep), None);
    }
}
