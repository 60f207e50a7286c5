use bytes::Bytes;
use std::sync::Arc;
use tandem_primitives::{
    Account, AccountUpdate, B256, BlockId, NodeChange, ShardSet, SlotUpdate, StateDiff, TrieDiff,
    U256, WalkTarget,
};
use tandem_proto::{
    convert::{ConvertError, EpochRequest, SessionAnswer, SessionCommand},
    event::ChainEvent,
    multiproof::{self, StateUpdate},
    storage::{
        Block, BlockRecord, BlockRef, Checkpoint, Epoch, Forkchoice, KeptBlock, PendingBlock,
        Promotion, ReadState, TransactionPlace, TrieNodes,
    },
    wire::{
        event::v1 as event, multiproof_workers::v1 as workers, storage_writer::v1 as writer,
        types::v1 as types,
    },
};

/// Returns the receiver's error about a message with one fault.
fn refusal<M: Clone, T: TryFrom<M, Error = ConvertError>>(
    valid: &M,
    spoil: impl FnOnce(&mut M),
) -> String {
    assert!(T::try_from(valid.clone()).is_ok(), "the message is valid before it is spoiled");
    let mut message = valid.clone();
    spoil(&mut message);
    match T::try_from(message) {
        Ok(_) => "accepted".to_owned(),
        Err(error) => error.to_string(),
    }
}

fn key(byte: u8) -> B256 {
    B256::repeat_byte(byte)
}

pub fn id() -> types::BlockId {
    BlockId::new(1, key(1)).into()
}

/// Returns a diff of two accounts: the first has two slots, the second is deleted.
fn diff() -> StateDiff {
    let account = Account { nonce: 1, balance: U256::from(7), code_hash: key(9) };
    let slots = [1, 2].map(|byte| SlotUpdate { key: key(byte), value: U256::from(byte) });
    let update = |byte, account, slots| AccountUpdate {
        address_hash: key(byte),
        account,
        wiped: true,
        slots,
    };
    StateDiff {
        accounts: vec![update(1, Some(account), slots.to_vec()), update(2, None, vec![])],
        codes: vec![(key(9), vec![1, 2, 3].into())],
    }
}

fn commit() -> writer::CommitRequest {
    let block = writer::Block {
        id: Some(id()),
        parent: vec![0; 32].into(),
        diff: Some((&diff()).into()),
        ..Default::default()
    };
    writer::CommitRequest { epoch: 1, block: Some(block), ..Default::default() }
}

fn bad_block(spoil: impl FnOnce(&mut writer::Block)) -> String {
    refusal::<_, (Epoch, Block)>(&commit(), |message| spoil(message.block.as_mut().unwrap()))
}

fn bad_updates(spoil: impl FnOnce(&mut types::AccountUpdates)) -> String {
    let error = bad_block(|block| spoil(block.diff.as_mut().unwrap().accounts.as_mut().unwrap()));
    error.strip_prefix("commit.block.diff.accounts.").map(str::to_owned).unwrap_or(error)
}

fn bad_accounts(spoil: impl FnOnce(&mut types::Accounts)) -> String {
    bad_updates(|updates| spoil(updates.accounts.as_mut().unwrap()))
}

#[test]
fn a_malformed_block_names_the_field() {
    let short = || Bytes::from(vec![0; 31]);
    let expect = [
        (bad_block(|b| b.parent = short()), "commit.block.parent: expected 32 bytes, got 31"),
        (bad_block(|b| b.id = None), "commit.block.id: is missing"),
        (
            bad_block(|b| b.id.as_mut().unwrap().hash = Bytes::new()),
            "commit.block.id.hash: expected 32 bytes, got 0",
        ),
        (
            bad_block(|b| b.transaction_hashes = vec![0; 65].into()),
            "commit.block.transaction_hashes: 65 bytes are not a multiple of 32",
        ),
        (
            bad_block(|b| b.diff.as_mut().unwrap().code_sizes = vec![1, 2]),
            "commit.block.diff.code_sizes: expected 1 items, got 2",
        ),
        (
            bad_block(|b| b.diff.as_mut().unwrap().code_sizes = vec![u32::MAX]),
            "commit.block.diff.codes: expected 4294967295 bytes, got 3",
        ),
        (
            bad_block(|b| b.diff.as_mut().unwrap().code_hashes = short()),
            "commit.block.diff.code_hashes: 31 bytes are not a multiple of 32",
        ),
        (refusal::<_, (Epoch, Block)>(&commit(), |m| m.block = None), "commit.block: is missing"),
    ];
    expect.iter().for_each(|(got, want)| assert_eq!(got, want));
}

#[test]
fn malformed_account_updates_name_the_field() {
    let keys = |bytes: &[u8]| bytes.iter().flat_map(|&byte| [byte; 32]).collect::<Bytes>();
    let values = |lengths: &'static [u8], digits: &'static [u8]| {
        Some(types::Uint256List { lengths: lengths.into(), digits: digits.into() })
    };
    let expect = [
        (
            bad_updates(|u| u.address_hashes = keys(&[2, 1])),
            "address_hashes[1]: is not in ascending order",
        ),
        (bad_updates(|u| u.address_hashes = keys(&[1, 1])), "address_hashes[1]: is there twice"),
        (bad_updates(|u| u.address_hashes = keys(&[1])), "accounts.flags: expected 1 items, got 2"),
        (bad_updates(|u| u.wiped = vec![1, 1]), "wiped[1]: is not in ascending order"),
        (bad_updates(|u| u.wiped = vec![0, 2]), "wiped[1]: 2 is not in 0..=1"),
        (bad_updates(|u| u.slot_counts = vec![2]), "slot_counts: expected 2 items, got 1"),
        (
            bad_updates(|u| u.slot_counts = vec![u32::MAX; 2]),
            "slot_keys: expected 8589934590 items, got 2",
        ),
        (
            bad_updates(|u| u.slot_keys = keys(&[2, 1])),
            "[0].slot_keys[1]: is not in ascending order",
        ),
        (bad_updates(|u| u.slot_keys = keys(&[2, 2])), "[0].slot_keys[1]: is there twice"),
        (bad_updates(|u| u.slot_values = None), "slot_values.lengths: expected 2 items, got 0"),
        (
            bad_updates(|u| u.slot_values = values(&[1, 33], &[1])),
            "slot_values.lengths[1]: 33 is not in 0..=32",
        ),
        (
            bad_updates(|u| u.slot_values = values(&[1, 2], &[1])),
            "slot_values.digits: expected 3 bytes, got 1",
        ),
        (
            bad_updates(|u| u.slot_values = values(&[1, 2], &[1, 0, 1])),
            "slot_values.digits[1]: starts with a zero byte",
        ),
        (bad_accounts(|a| a.flags = vec![4, 0].into()), "accounts.flags[0]: 4 is not in 0..=3"),
        (bad_accounts(|a| a.flags = vec![3, 2].into()), "accounts.flags[1]: 2 is not in 0..=3"),
        (bad_accounts(|a| a.nonces.clear()), "accounts.nonces: expected 1 items, got 0"),
        (bad_accounts(|a| a.balances = None), "accounts.balances.lengths: expected 1 items, got 0"),
        (
            bad_accounts(|a| a.code_hashes = Bytes::new()),
            "accounts.code_hashes: expected 32 bytes, got 0",
        ),
    ];
    for (got, want) in expect {
        let got = got.strip_prefix("commit.block.diff.accounts").unwrap_or(&got);
        assert_eq!(got, want);
    }
}

#[test]
fn an_update_may_come_in_any_order_but_names_nothing_twice() {
    let command = |diff: StateDiff| {
        let update = StateUpdate { accounts: diff.accounts };
        let command = workers::process_block_request::Command::Update((&update).into());
        workers::ProcessBlockRequest { session: 1, command: Some(command) }
    };
    let mut reversed = diff();
    reversed.accounts.reverse();
    reversed.accounts[1].slots.reverse();
    assert!(SessionCommand::try_from(command(reversed)).is_ok());

    let mut twice = diff();
    twice.accounts.push(twice.accounts[0].clone());
    let error = SessionCommand::try_from(command(twice)).unwrap_err();
    assert_eq!(error.field(), "process_block.update.accounts.address_hashes[2]");

    let mut twice = diff();
    let slot = twice.accounts[0].slots[0];
    twice.accounts[0].slots.push(slot);
    let error = SessionCommand::try_from(command(twice)).unwrap_err();
    assert_eq!(error.field(), "process_block.update.accounts[0].slot_keys[2]");
}

fn bad_trie_diff(spoil: impl FnOnce(&mut types::TrieNodes)) -> String {
    let mut diff = TrieDiff::default();
    diff.push(NodeChange { owner: None, path: &[3], rlp: Some(&[1, 2]) });
    diff.push(NodeChange { owner: Some(key(1)), path: &[4, 5], rlp: None });
    let valid = (key(1), ShardSet::EMPTY, &diff).into();
    let error =
        refusal::<writer::PutTrieDiffRequest, (B256, ShardSet, TrieDiff)>(&valid, |message| {
            spoil(message.diff.as_mut().unwrap().changes.as_mut().unwrap());
        });
    error.strip_prefix("put_trie_diff.diff.changes.").map(str::to_owned).unwrap_or(error)
}

#[test]
fn malformed_trie_nodes_name_the_field() {
    fn account(nodes: &mut types::TrieNodes) -> &mut types::NodeList {
        nodes.account_nodes.as_mut().unwrap()
    }
    let expect = [
        (
            bad_trie_diff(|n| account(n).paths = vec![16].into()),
            "account_nodes.paths[0]: 16 is not in 0..=15",
        ),
        (
            bad_trie_diff(|n| account(n).path_lengths = vec![65].into()),
            "account_nodes.path_lengths[0]: 65 is not in 0..=64",
        ),
        (
            bad_trie_diff(|n| account(n).path_lengths = vec![2].into()),
            "account_nodes.paths: expected 2 bytes, got 1",
        ),
        (
            bad_trie_diff(|n| account(n).node_sizes = vec![]),
            "account_nodes.node_sizes: expected 1 items, got 0",
        ),
        (
            bad_trie_diff(|n| account(n).node_sizes = vec![3]),
            "account_nodes.nodes: expected 3 bytes, got 2",
        ),
        (
            bad_trie_diff(|n| account(n).node_sizes = vec![65_535]),
            "account_nodes.node_sizes[0]: 65535 is not in 0..=65534",
        ),
        (
            bad_trie_diff(|n| n.owners = vec![1; 33].into()),
            "owners: 33 bytes are not a multiple of 32",
        ),
        (bad_trie_diff(|n| n.owner_counts = vec![1, 0]), "owner_counts: expected 1 items, got 2"),
        (bad_trie_diff(|n| n.owner_counts = vec![2]), "owner_counts: expected 1 items, got 2"),
        (bad_trie_diff(|n| n.storage_nodes = None), "owner_counts: expected 0 items, got 1"),
    ];
    expect.iter().for_each(|(got, want)| assert_eq!(got, want));

    let put: writer::PutTrieDiffRequest = (key(1), ShardSet::EMPTY, &TrieDiff::default()).into();
    let bad_put = |spoil: fn(&mut writer::PutTrieDiffRequest)| {
        refusal::<_, (B256, ShardSet, TrieDiff)>(&put, spoil)
    };
    let shards = "put_trie_diff.shards: 65536 is not in 0..=65535";
    assert_eq!(bad_put(|m| m.shards = 1 << 16), shards);
    let wiped = "put_trie_diff.diff.wiped: 1 bytes are not a multiple of 32";
    assert_eq!(bad_put(|m| m.diff.as_mut().unwrap().wiped = vec![1].into()), wiped);

    let walk = TrieNodes { base: BlockId::default(), nodes: vec![] }.into();
    let absent = refusal::<writer::WalkTrieResponse, TrieNodes>(&walk, |message| {
        message.nodes = Some(types::TrieNodes {
            account_nodes: Some(types::NodeList {
                path_lengths: vec![0].into(),
                node_sizes: vec![0],
                ..Default::default()
            }),
            ..Default::default()
        });
    });
    assert_eq!(absent, "walk_trie.nodes.account_nodes.node_sizes[0]: 0 is not in 1..=65534");
}

fn bad_walk(targets: &[WalkTarget], spoil: impl FnOnce(&mut types::WalkTargets)) -> String {
    let valid: writer::WalkTrieRequest = targets.into();
    let error = refusal::<_, Vec<WalkTarget>>(&valid, |m| spoil(m.targets.as_mut().unwrap()));
    error.strip_prefix("walk_trie.").map(str::to_owned).unwrap_or(error)
}

#[test]
fn malformed_reads_name_the_field() {
    let target = WalkTarget { owner: None, key: key(1), from_depth: 1 };
    let walk = |spoil: fn(&mut types::TargetList)| {
        bad_walk(&[target], |targets| spoil(targets.account_targets.as_mut().unwrap()))
    };
    let read = |spoil: fn(&mut writer::ReadStateRequest)| {
        refusal::<_, ReadState>(&writer::ReadStateRequest::default(), spoil)
    };
    let expect = [
        (
            walk(|t| t.from_depths = vec![0].into()),
            "targets.account_targets.from_depths[0]: 0 is not in 1..=64",
        ),
        (
            walk(|t| t.from_depths = vec![65].into()),
            "targets.account_targets.from_depths[0]: 65 is not in 1..=64",
        ),
        (
            walk(|t| t.from_depths = Bytes::new()),
            "targets.account_targets.from_depths: expected 1 items, got 0",
        ),
        (
            walk(|t| t.keys = vec![0; 31].into()),
            "targets.account_targets.keys: 31 bytes are not a multiple of 32",
        ),
        (
            walk(|t| {
                t.keys = vec![0; 8193 * 32].into();
                t.from_depths = vec![1; 8193].into();
            }),
            "targets: 8193 are more than 8192",
        ),
        (
            bad_walk(&[target], |t| t.owner_counts = vec![1]),
            "targets.owner_counts: expected 0 items, got 1",
        ),
        (
            read(|r| r.accounts = vec![0; 31].into()),
            "read_state.accounts: 31 bytes are not a multiple of 32",
        ),
        (
            read(|r| r.slots = vec![0; 32].into()),
            "read_state.slots: 32 bytes are not a multiple of 64",
        ),
        (
            read(|r| r.accounts = vec![0; 65_537 * 32].into()),
            "read_state.accounts: 65537 are more than 65536",
        ),
        (
            read(|r| r.slots = vec![0; 65_537 * 64].into()),
            "read_state.slots: 65537 are more than 65536",
        ),
        (read(|r| r.codes = vec![0; 257 * 32].into()), "read_state.codes: 257 are more than 256"),
    ];
    expect.iter().for_each(|(got, want)| assert_eq!(got, want));
}

#[test]
fn an_answer_must_fit_its_request() {
    let hashes = vec![key(1), key(2)];
    let request =
        ReadState { accounts: hashes.clone(), slots: vec![(key(1), key(1))], codes: hashes };
    let valid = writer::ReadStateResponse {
        base: Some(id()),
        accounts: Some(types::Accounts { flags: vec![0, 0].into(), ..Default::default() }),
        slots: Some(types::Uint256List { lengths: vec![0].into(), digits: Bytes::new() }),
        codes_known: vec![0, 1].into(),
        code_sizes: vec![3],
        codes: vec![1, 2, 3].into(),
    };
    assert!(valid.clone().into_values(&request).is_ok());
    let refused = |spoil: fn(&mut writer::ReadStateResponse)| {
        let mut message = valid.clone();
        spoil(&mut message);
        message.into_values(&request).unwrap_err().to_string()
    };
    let expect = [
        (refused(|a| a.base = None), "read_state.base: is missing"),
        (refused(|a| a.accounts = None), "read_state.accounts.flags: expected 2 items, got 0"),
        (refused(|a| a.slots = None), "read_state.slots.lengths: expected 1 items, got 0"),
        (
            refused(|a| a.codes_known = vec![1].into()),
            "read_state.codes_known: expected 2 items, got 1",
        ),
        (
            refused(|a| a.codes_known = vec![2, 0].into()),
            "read_state.codes_known[0]: 2 is not in 0..=1",
        ),
        (refused(|a| a.code_sizes = vec![]), "read_state.code_sizes: expected 1 items, got 0"),
        (refused(|a| a.code_sizes = vec![2]), "read_state.codes: expected 2 bytes, got 3"),
    ];
    expect.iter().for_each(|(got, want)| assert_eq!(got, want));
}

fn unset<M: Default, T: TryFrom<M, Error = ConvertError>>() -> String {
    T::try_from(M::default()).err().map(|error| error.to_string()).unwrap_or_default()
}

#[test]
fn an_empty_message_is_refused_where_something_is_required() {
    let expect = [
        (unset::<event::ChainEvent, ChainEvent>(), "chain_event.block: is missing"),
        (
            unset::<writer::GetTrieDiffRequest, B256>(),
            "get_trie_diff.block: expected 32 bytes, got 0",
        ),
        (
            unset::<writer::DiscardRequest, (Epoch, B256)>(),
            "discard.block: expected 32 bytes, got 0",
        ),
        (unset::<writer::GetBlockRequest, BlockRef>(), "get_block.block: is missing"),
        (unset::<writer::GetHeaderRequest, BlockRef>(), "get_header.block: is missing"),
        (unset::<writer::GetAccessListRequest, BlockRef>(), "get_access_list.block: is missing"),
        (
            unset::<writer::GetTransactionRequest, B256>(),
            "get_transaction.hash: expected 32 bytes, got 0",
        ),
        (
            unset::<writer::CanonicalizeRequest, (Epoch, Forkchoice)>(),
            "canonicalize.forkchoice: is missing",
        ),
        (
            unset::<writer::GetCheckpointResponse, Checkpoint>(),
            "get_checkpoint.genesis: is missing",
        ),
        (unset::<writer::PromoteResponse, Promotion>(), "promote.head: is missing"),
        (unset::<writer::ListPendingResponse, Block>(), "list_pending.block: is missing"),
        (unset::<writer::ListPendingResponse, PendingBlock>(), "list_pending.block: is missing"),
        (unset::<writer::ProveRequest, (Epoch, B256)>(), "prove.block: expected 32 bytes, got 0"),
        (unset::<writer::KeepRequest, (Epoch, KeptBlock)>(), "keep.block: is missing"),
        (unset::<writer::GetKeptRequest, B256>(), "get_kept.block: expected 32 bytes, got 0"),
        (unset::<writer::WalkTrieResponse, TrieNodes>(), "walk_trie.base: is missing"),
        (
            unset::<workers::ProcessBlockRequest, SessionCommand>(),
            "process_block.command: is missing",
        ),
        (
            unset::<workers::ProcessBlockResponse, SessionAnswer>(),
            "process_block.answer: is missing",
        ),
        (unset::<workers::DiscardRequest, B256>(), "discard.block: expected 32 bytes, got 0"),
        (unset::<workers::Error, multiproof::Error>(), "kind: is missing"),
        // An absent value is a valid answer there.
        (unset::<writer::GetBlockResponse, Option<BlockRecord>>(), ""),
        (unset::<writer::GetTransactionResponse, Option<TransactionPlace>>(), ""),
        (unset::<writer::GetAccessListResponse, Option<tandem_primitives::Bytes>>(), ""),
        (unset::<writer::GetKeptResponse, Option<KeptBlock>>(), ""),
        (unset::<writer::GetStateDiffsResponse, Option<Arc<StateDiff>>>(), ""),
        // Empty requests are harmless.
        (unset::<writer::ReadStateRequest, ReadState>(), ""),
        (unset::<writer::GetStateDiffsRequest, Vec<B256>>(), ""),
        (unset::<writer::AcquireEpochRequest, EpochRequest>(), ""),
    ];
    expect.iter().for_each(|(got, want)| assert_eq!(got, want));
}

#[test]
fn too_many_state_diffs_at_once_are_refused() {
    let asks = |count: usize| {
        let blocks = vec![0; 32 * count].into();
        Vec::<B256>::try_from(writer::GetStateDiffsRequest { blocks, without_slots: false })
    };
    assert_eq!(asks(4096).unwrap().len(), 4096);
    let refused = asks(4097).unwrap_err().to_string();
    assert_eq!(refused, "get_state_diffs.blocks: 4097 are more than 4096");
}

#[test]
fn a_long_name_and_a_malformed_status_are_refused() {
    let refused = |executor: &str, lease_ms| {
        let executor = executor.to_owned();
        let wire = writer::AcquireEpochRequest { executor, lease_ms, ..Default::default() };
        EpochRequest::try_from(wire).unwrap_err().to_string()
    };
    let long = refused(&"x".repeat(257), 0);
    assert_eq!(long, "acquire_epoch.executor: 257 are more than 256");
    let ages = refused("", 60_001);
    assert_eq!(ages, "acquire_epoch.lease_ms: 60001 are more than 60000");
    let valid =
        writer::ExecutorAddress { host: "10.0.0.7".to_owned(), engine_port: 1, http_port: 65_535 };
    let refused = |spoil: fn(&mut writer::ExecutorAddress)| {
        let mut address = valid.clone();
        spoil(&mut address);
        let wire = writer::AcquireEpochRequest { address: Some(address), ..Default::default() };
        EpochRequest::try_from(wire).unwrap_err().to_string()
    };
    let no_host = "acquire_epoch.address.host: is neither an IP address nor the name of a host";
    for host in ["", "a/b", "a:1", "user@a", "a b", &"x".repeat(254)] {
        let wire = writer::ExecutorAddress { host: host.to_owned(), ..valid.clone() };
        let wire = writer::AcquireEpochRequest { address: Some(wire), ..Default::default() };
        assert_eq!(EpochRequest::try_from(wire).unwrap_err().to_string(), no_host, "{host}");
    }
    let port = "acquire_epoch.address.engine_port: 0 is not in 1..=65535";
    assert_eq!(refused(|address| address.engine_port = 0), port);
    let port = "acquire_epoch.address.http_port: 65536 is not in 1..=65535";
    assert_eq!(refused(|address| address.http_port = 65_536), port);
    let refused = |spoil: fn(&mut workers::GetStatusResponse)| {
        refusal::<_, multiproof::Status>(&workers::GetStatusResponse::default(), spoil)
    };
    let shards = "get_status.shards: 65536 is not in 0..=65535";
    assert_eq!(refused(|status| status.shards = 1 << 16), shards);
    let tip = "get_status.tip: expected 32 bytes, got 1";
    assert_eq!(refused(|status| status.tip = Some(vec![1].into())), tip);
}

#[test]
fn a_token_of_another_length_is_refused_in_every_call() {
    let token = Bytes::from_static(&[1; 15]);
    macro_rules! refused {
        ($message:ident, $value:ty) => {{
            let wire = writer::$message { token: token.clone(), ..Default::default() };
            <$value>::try_from(wire).unwrap_err().to_string()
        }};
    }
    let held_token = token.clone();
    let wire = writer::AcquireEpochRequest { held_token, ..Default::default() };
    let refused = [
        EpochRequest::try_from(wire).unwrap_err().to_string(),
        refused!(AcquireEpochResponse, Epoch),
        refused!(KeepEpochRequest, (Epoch, std::time::Duration)),
        refused!(CommitRequest, (Epoch, Block)),
        refused!(DiscardRequest, (Epoch, B256)),
        refused!(ProveRequest, (Epoch, B256)),
        refused!(KeepRequest, (Epoch, KeptBlock)),
        refused!(CanonicalizeRequest, (Epoch, Forkchoice)),
        refused!(RewindRequest, (Epoch, u64)),
    ];
    let fields = ["acquire_epoch.held_token", "acquire_epoch.token", "keep_epoch.token"];
    let writes = ["commit", "discard", "prove", "keep", "canonicalize", "rewind"];
    let writes = writes.map(|call| format!("{call}.token"));
    let fields = fields.into_iter().map(str::to_owned).chain(writes);
    let texts: Vec<_> = fields.map(|it| format!("{it}: expected 16 bytes, got 15")).collect();
    assert_eq!(refused.to_vec(), texts);
}

#[test]
fn a_malformed_event_is_none() {
    let event = ChainEvent { block: BlockId::new(7, key(7)) }.encode();
    assert!(ChainEvent::decode(&event).is_some());
    assert_eq!(ChainEvent::decode(&event[..event.len() - 1]), None);
    assert_eq!(ChainEvent::decode(&[]), None);
    // A field that a newer version adds is skipped.
    let newer = [&event[..], &[0x78, 1]].concat();
    assert!(ChainEvent::decode(&newer).is_some());
}
