//! Payload building: `payloadAttributes` of engine_forkchoiceUpdated, and engine_getPayload.
//!
//! Without a transaction pool, a payload has no transactions: attributes and parent alone determine
//! it. It is built at the first request. Most attributes are never requested: a consensus client
//! that uses blocks from a builder sends attributes each slot.
//!
//! Only the workers of this process compute the payload's root. A wrong root from other workers
//! would go unnoticed until the network refuses the block. Without transactions the computation is
//! tiny.

use super::{Engine, base::Standing, payload::root};
use crate::{
    ahead::senders::Senders,
    block::{
        build::{BuiltPayload, PayloadAttributes, PayloadId},
        execute::{Executed, Failure},
    },
    error::Error,
};
use std::{collections::VecDeque, sync::Arc};
use tandem_chain::{Block, Fork, Payload, Template, validate_body, validate_header};
use tandem_primitives::{B256, BlockId, U256, keccak256};
use tracing::{info, info_span};

/// Extra data of every payload that is built here.
const EXTRA_DATA: &[u8] = b"tandem";

/// Maximum number of remembered build processes. The oldest are evicted first.
const BUILDS_MAX: usize = 16;

/// The build processes.
#[derive(Default)]
pub struct Builds(VecDeque<Build>);

struct Build {
    id: PayloadId,
    parent: B256,
    attributes: PayloadAttributes,
    built: Option<Arc<BuiltPayload>>,
}

impl Builds {
    fn get(&mut self, id: PayloadId) -> Option<&mut Build> {
        self.0.iter_mut().find(|build| build.id == id)
    }

    fn start(&mut self, parent: B256, attributes: PayloadAttributes) -> PayloadId {
        let id = PayloadId::of(parent, &attributes);
        if self.get(id).is_none() {
            if self.0.len() == BUILDS_MAX {
                self.0.pop_front();
            }
            self.0.push_back(Build { id, parent, attributes, built: None });
        }
        id
    }
}

impl Engine {
    /// Begins to build on a valid block (Engine API, paris.md, "Payload building"). The attributes
    /// were checked against the block and the method's version.
    pub(super) fn start_build(&mut self, parent: B256, attributes: PayloadAttributes) -> PayloadId {
        self.builds.start(parent, attributes)
    }

    /// Returns the payload of a build process. Returns `None` for an unknown process, or if its
    /// parent is too far behind the chain to build on.
    pub(super) fn get_payload(
        &mut self,
        id: PayloadId,
    ) -> Result<Option<Arc<BuiltPayload>>, Error> {
        let (parent, attributes) = match self.builds.get(id) {
            None => return Ok(None),
            Some(Build { built: Some(built), .. }) => return Ok(Some(built.clone())),
            Some(build) => (build.parent, build.attributes.clone()),
        };
        let built = match self.build(parent, &attributes) {
            Ok(built) => Arc::new(built),
            Err(Failure::Internal(Error::UnknownBlock)) => return Ok(None),
            Err(Failure::Internal(error)) => return Err(error),
            Err(Failure::Invalid(error)) => {
                return Err(Error::NothingToBuild { parent, reason: Box::new(error) });
            }
        };
        if let Some(build) = self.builds.get(id) {
            build.built = Some(built.clone());
        }
        Ok(Some(built))
    }

    fn build(
        &mut self,
        parent: B256,
        attributes: &PayloadAttributes,
    ) -> Result<BuiltPayload, Failure> {
        let found = self.chain.header_by_hash(parent).map_err(Failure::Internal)?;
        let (parent, parent_header) = found.ok_or(Failure::Internal(Error::UnknownBlock))?;
        let _span = info_span!("build_payload", block.number = parent.number + 1).entered();
        if self.stand_on(parent.hash).map_err(Failure::Internal)? != Standing::Reached {
            return Err(Failure::Internal(Error::UnknownBlock));
        }
        let spec = self.chain.spec.clone();
        let template = Template {
            timestamp: attributes.timestamp,
            prev_randao: attributes.prev_randao,
            fee_recipient: attributes.suggested_fee_recipient,
            withdrawals: attributes.withdrawals.clone(),
            parent_beacon_block_root: attributes.parent_beacon_block_root,
            slot_number: attributes.slot_number,
            gas_limit_target: attributes.target_gas_limit.unwrap_or(self.config.gas_limit_target),
            extra_data: EXTRA_DATA.into(),
        };
        let withdrawals = attributes.withdrawals.as_deref();
        let mut header = template.header(&spec, &parent_header);
        let open = Block::seal(header.clone(), &[], withdrawals).map_err(Failure::Invalid)?;
        let (state_root, executed) = self.execute_open(open, parent)?;
        header.state_root = state_root;
        if spec.fork_at(attributes.timestamp) >= Fork::Prague {
            header.requests_hash = Some(executed.requests.requests_hash());
        }
        let list = executed.access_list;
        header.block_access_list_hash = list.as_ref().map(|list| keccak256(list.rlp()));
        let mut block = Block::seal(header, &[], withdrawals).map_err(Failure::Invalid)?;
        block.access_list = list;
        validate_header(&spec, &block.header, &parent_header)
            .and_then(|()| validate_body(&spec, &block))
            .map_err(Failure::Invalid)?;
        info!(number = block.id.number, hash = %block.id.hash, "payload built");
        Ok(BuiltPayload {
            fork: spec.fork_at(attributes.timestamp),
            payload: Payload::from_block(&block).0,
            // The hash excludes requests without data, and so must the list (prague.md).
            requests: executed.requests.take().into_iter().filter(|r| r.len() > 1).collect(),
            value: U256::ZERO,
        })
    }

    /// Executes a block with an incomplete header; no changes remain.
    fn execute_open(&self, open: Block, parent: BlockId) -> Result<(B256, Executed), Failure> {
        let open = Arc::new(open);
        let senders = Senders::recover(open.clone());
        let policies = self.policies.load();
        let proof = &self.own_proof;
        let mut running = self.execute_streaming(proof, &open, &senders, parent, &policies)?;
        running.finish();
        let state_root = root(running.session, &mut Vec::new());
        proof.discard(open.id.hash);
        let state_root = state_root.map_err(|error| Failure::Internal(error.into()))?;
        Ok((state_root, running.executed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tandem_primitives::Address;

    fn attributes(timestamp: u64) -> PayloadAttributes {
        PayloadAttributes {
            timestamp,
            prev_randao: B256::ZERO,
            suggested_fee_recipient: Address::ZERO,
            withdrawals: None,
            parent_beacon_block_root: None,
            slot_number: None,
            target_gas_limit: None,
        }
    }

    #[test]
    fn the_oldest_build_is_forgotten_first_and_the_same_one_not_begun_again() {
        let mut builds = Builds::default();
        let first = builds.start(B256::ZERO, attributes(0));
        for timestamp in 0..BUILDS_MAX as u64 {
            builds.start(B256::ZERO, attributes(timestamp));
        }
        assert!(builds.get(first).is_some(), "begun once, forgotten too early");
        let newest = builds.start(B256::ZERO, attributes(1_000));
        assert!(builds.get(first).is_none());
        assert!(builds.get(newest).is_some());
        assert_eq!(builds.0.len(), BUILDS_MAX);
    }
}
