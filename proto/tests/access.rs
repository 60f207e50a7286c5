//! Table of permissions, checked against the existing methods.
#![allow(clippy::unwrap_used, missing_docs)]

use prost::Message;
use std::collections::BTreeSet;
use tandem_proto::{
    access::{EXECUTOR, MULTIPROOF_WORKER, ROLES, RULES, permits},
    wire::{
        DESCRIPTORS, multiproof_workers::v1::multiproof_workers_server::SERVICE_NAME as WORKERS,
        storage_writer::v1::storage_writer_server::SERVICE_NAME as STORAGE,
    },
};

/// Returns the methods of the `.proto` files, from their descriptors.
fn methods() -> BTreeSet<(String, String)> {
    let files = FileSet::decode(DESCRIPTORS).unwrap().files;
    let services = files.into_iter().flat_map(|file| {
        let package = file.package;
        file.services.into_iter().map(move |service| (package.clone(), service))
    });
    let methods = services.flat_map(|(package, service)| {
        let name = format!("{package}.{}", service.name);
        service.methods.into_iter().map(move |method| (name.clone(), method.name))
    });
    methods.collect()
}

// Required part of google/protobuf/descriptor.proto.
#[derive(Clone, PartialEq, prost::Message)]
struct FileSet {
    #[prost(message, repeated, tag = "1")]
    files: Vec<File>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct File {
    #[prost(string, tag = "2")]
    package: String,
    #[prost(message, repeated, tag = "6")]
    services: Vec<Service>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Service {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(message, repeated, tag = "2")]
    methods: Vec<Method>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Method {
    #[prost(string, tag = "1")]
    name: String,
}

#[test]
fn every_method_that_there_is_has_one_rule() {
    let ruled: BTreeSet<_> =
        RULES.iter().map(|rule| (rule.service.to_owned(), rule.method.to_owned())).collect();
    assert_eq!(ruled.len(), RULES.len(), "a method has two rules");
    assert_eq!(ruled, methods());
}

#[test]
fn rules_name_roles_that_there_are() {
    for rule in RULES {
        assert!(!rule.roles.is_empty(), "{rule:?}");
        assert!(rule.roles.iter().all(|role| ROLES.contains(role)), "{rule:?}");
    }
}

#[test]
fn the_chain_is_written_by_the_executor_alone() {
    let writes = ["AcquireEpoch", "KeepEpoch", "Commit", "Discard", "Canonicalize", "Rewind"];
    for role in ROLES {
        for method in writes {
            assert_eq!(permits(role, STORAGE, method), role == EXECUTOR, "{role} {method}");
        }
    }
    assert!(permits(MULTIPROOF_WORKER, STORAGE, "WalkTrie"));
    assert!(!permits(MULTIPROOF_WORKER, WORKERS, "ProcessBlock"));
}

#[test]
fn what_is_not_known_is_refused() {
    assert!(!permits(EXECUTOR, STORAGE, "Drop"));
    assert!(!permits(EXECUTOR, "tandem.storage_writer.v2.StorageWriter", "Commit"));
    assert!(!permits("", STORAGE, "Commit"));
    assert!(!permits("Executor", STORAGE, "Commit"));
}
