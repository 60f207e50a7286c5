//! Rules of `proto/README.md` for changing a contract, checked against every released version.

use crate::{contract::Contract, file, updates};
use prost::Message;
use prost_types::{DescriptorProto, FileDescriptorSet, field_descriptor_proto::Type};
use std::fs;
use tandem_proto::wire::DESCRIPTORS;

#[test]
fn nothing_that_was_released_has_changed() {
    let path = file(&format!("released/{}.txt", env!("CARGO_PKG_VERSION")));
    let current = Contract::current();
    // Written once: a released contract stays as it was.
    if updates() && !path.exists() {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, current.render()).unwrap();
    }
    assert!(path.exists(), "{}: TANDEM_UPDATE=1 writes it", path.display());
    let mut broken = Vec::new();
    for entry in fs::read_dir(path.parent().unwrap()).unwrap() {
        let path = entry.unwrap().path();
        let released = Contract::parse(&fs::read_to_string(&path).unwrap());
        assert!(released.0.len() > 200, "{}: {} lines", path.display(), released.0.len());
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        let changes = released.breaks(&current);
        broken.extend(changes.into_iter().map(|it| format!("since {name}: {it}")));
    }
    assert!(broken.is_empty(), "{broken:#?}");
}

/// Returns the broken promises after one change to the message `tandem.event.v1.WorkerAlive`.
fn breaks_when(change: fn(&mut DescriptorProto)) -> Vec<String> {
    let mut files = FileDescriptorSet::decode(DESCRIPTORS).unwrap();
    let file = files.file.iter_mut().find(|file| file.package() == "tandem.event.v1").unwrap();
    let mut messages = file.message_type.iter_mut();
    change(messages.find(|message| message.name() == "WorkerAlive").unwrap());
    Contract::current().breaks(&Contract::of(&files))
}

#[test]
fn what_breaks_other_versions_is_named() {
    let worker = "field tandem.event.v1.WorkerAlive";
    let removed = breaks_when(|message| drop(message.field.remove(5)));
    assert_eq!(removed, [format!("{worker} 6: was leaving bool, is gone")]);
    let renumbered = breaks_when(|message| message.field[5].number = Some(7));
    assert_eq!(renumbered, [format!("{worker} 6: was leaving bool, is gone")]);
    let retyped = breaks_when(|message| message.field[4].set_type(Type::Uint64));
    assert_eq!(retyped, [format!("{worker} 5: was interval_ms uint32, is interval_ms uint64")]);
    let renamed = breaks_when(|message| message.field[0].name = Some("name".to_owned()));
    assert_eq!(renamed, [format!("{worker} 1: was id string, is name string")]);
    let gone = breaks_when(|message| message.name = Some("WorkerThere".to_owned()));
    assert_eq!(gone.len(), 7, "{gone:?}");
    let added = breaks_when(|message| {
        let mut field = message.field[0].clone();
        (field.name, field.number) = (Some("zone".to_owned()), Some(7));
        message.field.push(field);
    });
    assert!(added.is_empty(), "{added:?}");
}

#[test]
fn calls_that_are_gone_or_different_are_named() {
    let changed = |change: fn(&mut prost_types::MethodDescriptorProto)| {
        let mut files = FileDescriptorSet::decode(DESCRIPTORS).unwrap();
        let mut services = files.file.iter_mut().flat_map(|file| &mut file.service);
        let service = services.find(|service| service.name() == "StorageWriter").unwrap();
        let mut methods = service.method.iter_mut();
        change(methods.find(|method| method.name() == "Commit").unwrap());
        Contract::current().breaks(&Contract::of(&files))
    };
    let commit = "method tandem.storage_writer.v1.StorageWriter/Commit";
    for broken in [
        changed(|method| method.name = Some("CommitBlock".to_owned())),
        changed(|method| method.server_streaming = Some(!method.server_streaming())),
        changed(|method| method.input_type = Some(".tandem.types.v1.BlockId".to_owned())),
    ] {
        assert!(broken.len() == 1 && broken[0].starts_with(commit), "{broken:?}");
    }
}

#[test]
fn a_contract_reads_as_it_was_written() {
    let current = Contract::current();
    assert_eq!(Contract::parse(&current.render()), current);
}
