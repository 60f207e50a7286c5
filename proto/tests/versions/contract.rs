//! Contract of the `.proto` files, one promise per line: `proto/released/VERSION.txt`.

use prost::Message;
use prost_types::{
    DescriptorProto, EnumDescriptorProto, FieldDescriptorProto, FileDescriptorProto,
    FileDescriptorSet, ServiceDescriptorProto,
    field_descriptor_proto::{Label, Type},
};
use std::collections::BTreeMap;
use tandem_proto::wire::DESCRIPTORS;

/// Promises by key (`field tandem.event.v1.ChainEvent 1`), with their content.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Contract(pub BTreeMap<String, String>);

impl Contract {
    /// Returns the contract of this version.
    pub fn current() -> Self {
        Self::of(&FileDescriptorSet::decode(DESCRIPTORS).unwrap())
    }

    pub fn of(files: &FileDescriptorSet) -> Self {
        let mut contract = Self::default();
        let ours = files.file.iter().filter(|file| file.package().starts_with("tandem."));
        ours.for_each(|file| contract.add_file(file));
        contract
    }

    /// Reads the text written by [`Self::render`].
    pub fn parse(text: &str) -> Self {
        let lines = text.lines().filter(|line| !line.starts_with('#'));
        let pairs = lines.map(|line| line.split_once(" = ").expect("a line KEY = WHAT"));
        Self(pairs.map(|(key, what)| (key.to_owned(), what.to_owned())).collect())
    }

    pub fn render(&self) -> String {
        self.0.iter().map(|(key, what)| format!("{key} = {what}\n")).collect()
    }

    /// Returns the promises that `newer` does not keep.
    pub fn breaks(&self, newer: &Self) -> Vec<String> {
        let broken = self.0.iter().filter_map(|(key, was)| match newer.0.get(key) {
            Some(is) if is == was => None,
            Some(is) => Some(format!("{key}: was {was}, is {is}")),
            None => Some(format!("{key}: was {was}, is gone")),
        });
        broken.collect()
    }

    fn add(&mut self, key: String, what: String) {
        let before = self.0.insert(key, what);
        assert!(before.is_none(), "two of one name");
    }

    fn add_file(&mut self, file: &FileDescriptorProto) {
        let package = file.package();
        file.message_type.iter().for_each(|message| self.add_message(package, message));
        file.enum_type.iter().for_each(|it| self.add_enum(package, it));
        file.service.iter().for_each(|service| self.add_service(package, service));
    }

    fn add_message(&mut self, scope: &str, message: &DescriptorProto) {
        let name = format!("{scope}.{}", message.name());
        self.add(format!("message {name}"), "there".to_owned());
        for field in &message.field {
            let number = field.number();
            self.add(format!("field {name} {number}"), describe(field, message));
        }
        for range in &message.reserved_range {
            for number in range.start()..range.end() {
                self.add(format!("field {name} {number}"), "reserved".to_owned());
            }
        }
        message.nested_type.iter().for_each(|nested| self.add_message(&name, nested));
        message.enum_type.iter().for_each(|nested| self.add_enum(&name, nested));
    }

    fn add_enum(&mut self, scope: &str, found: &EnumDescriptorProto) {
        let name = format!("{scope}.{}", found.name());
        for value in &found.value {
            self.add(format!("value {name} {}", value.number()), value.name().to_owned());
        }
    }

    fn add_service(&mut self, package: &str, service: &ServiceDescriptorProto) {
        for method in &service.method {
            let stream = |streams: bool| if streams { "stream " } else { "" };
            let what = format!(
                "{}{} to {}{}",
                stream(method.client_streaming()),
                method.input_type(),
                stream(method.server_streaming()),
                method.output_type(),
            );
            self.add(format!("method {package}.{}/{}", service.name(), method.name()), what);
        }
    }
}

/// Describes a field: name, type, whether it is repeated, and its `oneof`.
fn describe(field: &FieldDescriptorProto, message: &DescriptorProto) -> String {
    let kind = match field.r#type() {
        Type::Message | Type::Enum => field.type_name().to_owned(),
        other => other.as_str_name().trim_start_matches("TYPE_").to_lowercase(),
    };
    let many = if field.label() == Label::Repeated { "repeated " } else { "" };
    let mut what = format!("{} {many}{kind}", field.name());
    if field.proto3_optional() {
        what += " optional";
    } else if let Some(index) = field.oneof_index {
        what += &format!(" of {}", message.oneof_decl[index as usize].name());
    }
    what
}
