//! pprof's format (`profile.proto`): protobuf, usually compressed with gzip.

use crate::profile::{Builder, Profile};
use flate2::{Compression, read::MultiGzDecoder, write::GzEncoder};
use prost::Message;
use std::{
    collections::HashMap,
    io::{Read, Write},
    time::Duration,
};

/// Maximum number of bytes of a profile, uncompressed.
const BYTES_MAX: u64 = 64 << 20;

/// A profile that cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum ParseError {
    /// The input is damaged.
    #[error("decompress a profile: {0}")]
    Gzip(#[from] std::io::Error),
    /// The input is too long.
    #[error("a profile of more than {} MiB", BYTES_MAX >> 20)]
    TooLong,
    /// The input is no protobuf message of this kind.
    #[error("decode a profile: {0}")]
    Protobuf(#[from] prost::DecodeError),
    /// The input refers to something that it does not contain.
    #[error("a profile that refers to a missing {0}")]
    Missing(&'static str),
    /// The input does not count samples of processor time.
    #[error("a profile without samples of processor time (sample type cpu, in nanoseconds)")]
    NotProcessorTime,
}

#[derive(Clone, Copy, PartialEq, Message)]
struct ValueType {
    #[prost(int64, tag = "1")]
    kind: i64,
    #[prost(int64, tag = "2")]
    unit: i64,
}

#[derive(Clone, PartialEq, Message)]
struct Label {
    #[prost(int64, tag = "1")]
    key: i64,
    #[prost(int64, tag = "2")]
    text: i64,
}

#[derive(Clone, PartialEq, Message)]
struct Sample {
    #[prost(uint64, repeated, tag = "1")]
    locations: Vec<u64>,
    #[prost(int64, repeated, tag = "2")]
    values: Vec<i64>,
    #[prost(message, repeated, tag = "3")]
    labels: Vec<Label>,
}

#[derive(Clone, PartialEq, Message)]
struct Line {
    #[prost(uint64, tag = "1")]
    function: u64,
}

#[derive(Clone, PartialEq, Message)]
struct Location {
    #[prost(uint64, tag = "1")]
    id: u64,
    /// Functions at this address; the last one is that into which the others were inlined.
    #[prost(message, repeated, tag = "4")]
    lines: Vec<Line>,
}

#[derive(Clone, PartialEq, Message)]
struct Function {
    #[prost(uint64, tag = "1")]
    id: u64,
    #[prost(int64, tag = "2")]
    name: i64,
}

#[derive(Clone, PartialEq, Message)]
struct Encoded {
    #[prost(message, repeated, tag = "1")]
    sample_types: Vec<ValueType>,
    #[prost(message, repeated, tag = "2")]
    samples: Vec<Sample>,
    #[prost(message, repeated, tag = "4")]
    locations: Vec<Location>,
    #[prost(message, repeated, tag = "5")]
    functions: Vec<Function>,
    #[prost(string, repeated, tag = "6")]
    strings: Vec<String>,
    #[prost(int64, tag = "10")]
    duration_nanos: i64,
    #[prost(message, optional, tag = "11")]
    period_type: Option<ValueType>,
    #[prost(int64, tag = "12")]
    period: i64,
}

impl Profile {
    /// Decodes a profile, compressed or not.
    ///
    /// # Errors
    /// Returns an error if the input is damaged, longer than 64 MiB, or counts something else than
    /// processor time.
    pub fn parse(bytes: &[u8]) -> Result<Self, ParseError> {
        let mut plain = Vec::new();
        let bytes = if bytes.starts_with(&[0x1f, 0x8b]) {
            MultiGzDecoder::new(bytes).take(BYTES_MAX + 1).read_to_end(&mut plain)?;
            &plain
        } else {
            bytes
        };
        if bytes.len() as u64 > BYTES_MAX {
            return Err(ParseError::TooLong);
        }
        Encoded::decode(bytes)?.read()
    }

    /// Encodes the profile, compressed: `go tool pprof` and other viewers read it. Processes and
    /// threads are labels of samples.
    pub fn encode(&self) -> Vec<u8> {
        let mut strings = Strings::default();
        strings.number("");
        let samples = ValueType { kind: strings.number("samples"), unit: strings.number("count") };
        let time = ValueType { kind: strings.number("cpu"), unit: strings.number("nanoseconds") };
        let (process, thread) = (strings.number("process"), strings.number("thread"));
        let period = i64::try_from(self.period.as_nanos()).unwrap_or(i64::MAX);
        let mut encoded = Encoded {
            sample_types: vec![samples, time],
            duration_nanos: i64::try_from(self.duration.as_nanos()).unwrap_or(i64::MAX),
            period_type: Some(time),
            period,
            ..Encoded::default()
        };
        for stack in self.stacks() {
            let mut labels = vec![Label { key: thread, text: strings.number(&stack.thread) }];
            if !stack.process.is_empty() {
                labels.push(Label { key: process, text: strings.number(&stack.process) });
            }
            let count = i64::try_from(stack.samples).unwrap_or(i64::MAX);
            encoded.samples.push(Sample {
                // A location for each function: 0 is no id.
                locations: stack.functions.iter().map(|number| u64::from(*number) + 1).collect(),
                values: vec![count, count.saturating_mul(period)],
                labels,
            });
        }
        for number in 0..self.functions_len() {
            let id = u64::from(number) + 1;
            let name = strings.number(self.function(number));
            encoded.functions.push(Function { id, name });
            encoded.locations.push(Location { id, lines: vec![Line { function: id }] });
        }
        encoded.strings = strings.texts;
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        // Writing to memory cannot fail.
        let _ = encoder.write_all(&encoded.encode_to_vec());
        encoder.finish().unwrap_or_default()
    }
}

#[derive(Default)]
struct Strings {
    texts: Vec<String>,
    numbers: HashMap<String, i64>,
}

impl Strings {
    fn number(&mut self, text: &str) -> i64 {
        if let Some(number) = self.numbers.get(text) {
            return *number;
        }
        let number = self.texts.len() as i64;
        self.texts.push(text.to_owned());
        self.numbers.insert(text.to_owned(), number);
        number
    }
}

impl Encoded {
    fn text(&self, number: i64) -> Result<&str, ParseError> {
        let text = usize::try_from(number).ok().and_then(|number| self.strings.get(number));
        text.map(String::as_str).ok_or(ParseError::Missing("string"))
    }

    /// Returns whether values of this type are processor time.
    fn is_processor_time(&self, kind: &ValueType) -> Result<bool, ParseError> {
        Ok(self.text(kind.kind)? == "cpu" && self.text(kind.unit)? == "nanoseconds")
    }

    fn read(&self) -> Result<Profile, ParseError> {
        let period_type = self.period_type.as_ref().ok_or(ParseError::NotProcessorTime)?;
        let mut value = None;
        for (at, kind) in self.sample_types.iter().enumerate() {
            if self.is_processor_time(kind)? {
                value = Some(at);
            }
        }
        let period = u64::try_from(self.period).unwrap_or(0);
        let Some(value) = value.filter(|_| period > 0) else {
            return Err(ParseError::NotProcessorTime);
        };
        if !self.is_processor_time(period_type)? {
            return Err(ParseError::NotProcessorTime);
        }
        let mut names = HashMap::new();
        for function in &self.functions {
            names.insert(function.id, self.text(function.name)?);
        }
        let mut locations = HashMap::new();
        for location in &self.locations {
            locations.insert(location.id, location);
        }
        let duration = Duration::from_nanos(u64::try_from(self.duration_nanos).unwrap_or(0));
        let mut builder = Builder::new(Profile::new(duration, Duration::from_nanos(period)));
        for sample in &self.samples {
            let mut functions = Vec::new();
            for id in &sample.locations {
                let location = locations.get(id).ok_or(ParseError::Missing("location"))?;
                for line in &location.lines {
                    let name = names.get(&line.function);
                    functions.push(*name.ok_or(ParseError::Missing("function"))?);
                }
            }
            let (mut process, mut thread) = ("", "");
            for label in &sample.labels {
                match self.text(label.key)? {
                    "process" => process = self.text(label.text)?,
                    "thread" => thread = self.text(label.text)?,
                    _ => {}
                }
            }
            let time = sample.values.get(value).ok_or(ParseError::Missing("value"))?;
            let samples = u64::try_from(*time).unwrap_or(0) / period;
            builder.add(process, thread, functions.into_iter(), samples);
        }
        Ok(builder.finish())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn stacks() -> impl Strategy<Value = Vec<(String, String, Vec<String>, u64)>> {
        let functions = prop::collection::vec("[a-d]{1,2}", 1..6);
        prop::collection::vec(("[xy]?", "[tu]", functions, 1u64..1000), 0..20)
    }

    proptest! {
        #[test]
        fn what_was_encoded_is_read_again(stacks in stacks()) {
            let period = Duration::from_millis(10);
            let mut builder = Builder::new(Profile::new(Duration::from_secs(3), period));
            for (process, thread, functions, samples) in &stacks {
                let functions = functions.iter().map(String::as_str);
                builder.add(process, thread, functions, *samples);
            }
            let profile = builder.finish();
            let read = Profile::parse(&profile.encode()).unwrap();
            let named = |profile: &Profile| {
                let mut stacks = Vec::new();
                for stack in profile.stacks() {
                    let names = stack.functions.iter().map(|number| profile.function(*number));
                    let names = names.map(str::to_owned).collect::<Vec<_>>();
                    let (process, thread) = (stack.process.clone(), stack.thread.clone());
                    stacks.push((process, thread, names, stack.samples));
                }
                stacks.sort();
                stacks
            };
            prop_assert_eq!(named(&read), named(&profile));
            prop_assert_eq!((read.duration, read.period), (profile.duration, profile.period));
        }

        #[test]
        fn damaged_input_is_an_error_or_a_profile(
            bytes in prop::collection::vec(any::<u8>(), 0..200),
            at in any::<prop::sample::Index>(),
        ) {
            let _ = Profile::parse(&bytes);
            let mut builder = Builder::new(Profile::new(Duration::ZERO, Duration::from_millis(1)));
            builder.add("p", "t", ["a", "b"].into_iter(), 3);
            let mut plain = Vec::new();
            let encoded = builder.finish().encode();
            MultiGzDecoder::new(&encoded[..]).read_to_end(&mut plain).unwrap();
            let at = at.index(plain.len());
            plain[at] ^= bytes.first().copied().unwrap_or(1);
            let _ = Profile::parse(&plain);
        }
    }

    #[test]
    fn references_to_nothing_are_errors() {
        let strings = ["", "cpu", "nanoseconds"].map(str::to_owned).to_vec();
        let time = ValueType { kind: 1, unit: 2 };
        let good = Encoded {
            sample_types: vec![time],
            samples: vec![Sample { locations: vec![1], values: vec![10], labels: Vec::new() }],
            locations: vec![Location { id: 1, lines: vec![Line { function: 7 }] }],
            functions: vec![Function { id: 7, name: 1 }],
            strings,
            duration_nanos: 1,
            period_type: Some(time),
            period: 5,
        };
        let parse = |change: &dyn Fn(&mut Encoded)| {
            let mut changed = good.clone();
            change(&mut changed);
            Profile::parse(&changed.encode_to_vec()).map_err(|error| error.to_string())
        };
        assert_eq!(parse(&|_| {}).unwrap().samples(), 2);
        for (missing, change) in [
            ("string", &(|it: &mut Encoded| it.functions[0].name = 9) as &dyn Fn(&mut Encoded)),
            ("string", &|it| it.functions[0].name = -1),
            ("function", &|it| it.functions.clear()),
            ("location", &|it| it.locations.clear()),
            ("value", &|it| it.samples[0].values.clear()),
        ] {
            let said = format!("a profile that refers to a missing {missing}");
            assert_eq!(parse(change).unwrap_err(), said);
        }
        let said = ParseError::NotProcessorTime.to_string();
        assert_eq!(parse(&|it| it.period = 0).unwrap_err(), said);
        assert_eq!(parse(&|it| it.period_type = None).unwrap_err(), said);
        assert_eq!(parse(&|it| it.sample_types[0].unit = 1).unwrap_err(), said);
    }

    #[test]
    fn a_profile_that_swells_is_refused() {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
        let zeros = vec![0; 1 << 20];
        for _ in 0..65 {
            encoder.write_all(&zeros).unwrap();
        }
        let bomb = encoder.finish().unwrap();
        assert!(bomb.len() < 1 << 20);
        assert!(matches!(Profile::parse(&bomb), Err(ParseError::TooLong)));
    }
}
