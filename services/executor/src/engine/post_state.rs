//! State roots in receipts from before Byzantium.

use super::{Engine, overlap::Work, payload::root};
use crate::block::execute::Failure;
use std::sync::Arc;
use tandem_chain::Receipt;
use tandem_primitives::{BlockId, keccak256};
use tandem_proto::multiproof::{Begin, StateUpdate};

impl Engine {
    /// Gives each receipt the state root after its transaction. For each receipt, a temporary block
    /// with all changes so far goes through this process' workers. This is not optimized, because
    /// those blocks were small.
    pub(super) fn set_post_states(
        &self,
        block: BlockId,
        parent: BlockId,
        receipts: &mut [Receipt],
        steps: &[Arc<StateUpdate>],
    ) -> Result<(), Failure> {
        for (index, receipt) in receipts.iter_mut().enumerate().take(steps.len()) {
            let name = [block.hash.as_slice(), &index.to_be_bytes()].concat();
            let partial = BlockId::new(block.number, keccak256(name));
            let begin = Begin::new(partial, parent.hash);
            let mut session =
                self.own_proof.begin(begin).map_err(|error| Failure::Internal(error.into()))?;
            steps[..=index].iter().for_each(|step| session.update(step.clone()));
            let after = root(session, &mut Work::default());
            self.own_proof.discard(partial.hash);
            receipt.post_state = Some(after.map_err(|error| Failure::Internal(error.into()))?);
        }
        Ok(())
    }
}
