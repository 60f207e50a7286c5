//! Rules of execution requests for the block's logs and state where alloy-evm is too lenient. It
//! decodes any ABI encoding of a deposit, and its system calls to addresses without code succeed.

use crate::error::Error;
use alloy_consensus::TxReceipt;
use alloy_eips::{
    eip7002::WITHDRAWAL_REQUEST_PREDEPLOY_ADDRESS, eip7251::CONSOLIDATION_REQUEST_PREDEPLOY_ADDRESS,
};
use alloy_evm::block::system_calls::{
    BUILDER_DEPOSIT_REQUEST_PREDEPLOY_ADDRESS, BUILDER_EXIT_REQUEST_PREDEPLOY_ADDRESS,
};
use alloy_primitives::{Address, B256, Log, U256, b256};
use revm::Database;
use tandem_chain::{BlockError, Fork, Receipt};
use tandem_primitives::EMPTY_CODE_HASH;

/// `keccak256("DepositEvent(bytes,bytes,bytes,bytes,bytes)")` (EIP-6110).
const DEPOSIT_EVENT: B256 =
    b256!("0x649bbc62d0e31342afea4e5cd82d4049e7e1ee912fc0889aa790803be39038c5");

/// Number of data bytes of a deposit log.
const DEPOSIT_LEN: usize = 576;

/// Constant words of a deposit log's data, each with its byte offset: the offsets and the lengths
/// of the five fields.
const DEPOSIT_WORDS: [(usize, u64); 10] = [
    (0, 160),
    (32, 256),
    (64, 320),
    (96, 384),
    (128, 512),
    (160, 48),
    (256, 32),
    (320, 8),
    (384, 96),
    (512, 8),
];

/// Contracts with a queue of requests. Amsterdam adds the last two.
pub const REQUEST_CONTRACTS: [Address; 4] = [
    WITHDRAWAL_REQUEST_PREDEPLOY_ADDRESS,
    CONSOLIDATION_REQUEST_PREDEPLOY_ADDRESS,
    BUILDER_DEPOSIT_REQUEST_PREDEPLOY_ADDRESS,
    BUILDER_EXIT_REQUEST_PREDEPLOY_ADDRESS,
];

/// Checks the logs of the deposit contract (EIP-6110, `is_valid_deposit_event_data`).
///
/// # Errors
/// [`BlockError::DepositLayout`].
pub fn check_deposits(contract: Address, receipts: &[Receipt]) -> Result<(), BlockError> {
    match receipts.iter().position(|receipt| !have_deposit_layout(contract, receipt.logs())) {
        Some(index) => Err(BlockError::DepositLayout { index }),
        None => Ok(()),
    }
}

/// Returns whether all logs of the deposit contract among these have the layout of deposits.
pub fn have_deposit_layout(contract: Address, logs: &[Log]) -> bool {
    let is_deposit =
        |log: &&Log| log.address == contract && log.topics().first() == Some(&DEPOSIT_EVENT);
    logs.iter().filter(is_deposit).all(|log| has_deposit_layout(&log.data.data))
}

fn has_deposit_layout(data: &[u8]) -> bool {
    data.len() == DEPOSIT_LEN
        && DEPOSIT_WORDS
            .iter()
            .all(|(at, want)| U256::from_be_slice(&data[*at..at + 32]) == U256::from(*want))
}

/// Returns the first post-transaction system contract without code. A block without these contracts
/// is invalid (EIP-7002, 7251, 8282).
///
/// # Errors
/// Returns an error if the state cannot be read.
pub fn missing_contract(
    fork: Fork,
    state: &mut impl Database<Error = Error>,
) -> Result<Option<Address>, Error> {
    let contracts = match fork >= Fork::Amsterdam {
        true => &REQUEST_CONTRACTS[..],
        false => &REQUEST_CONTRACTS[..2],
    };
    for &address in contracts {
        if state.basic(address)?.is_none_or(|account| account.code_hash == EMPTY_CODE_HASH) {
            return Ok(Some(address));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloy_primitives::Bytes;
    use revm::state::{AccountInfo, Bytecode};

    fn deposit_data() -> Vec<u8> {
        let mut data = vec![0; DEPOSIT_LEN];
        for (at, word) in DEPOSIT_WORDS {
            data[at + 24..at + 32].copy_from_slice(&word.to_be_bytes());
        }
        data
    }

    fn receipt(address: Address, topics: Vec<B256>, data: Vec<u8>) -> Receipt {
        let log = Log::new(address, topics, Bytes::from(data)).unwrap();
        Receipt { logs: vec![log], ..Receipt::default() }
    }

    #[test]
    fn deposits_have_the_layout_of_the_deposit_contract() {
        let contract = Address::repeat_byte(7);
        let check = |receipts: &[Receipt]| check_deposits(contract, receipts);
        let good = receipt(contract, vec![DEPOSIT_EVENT], deposit_data());
        assert_eq!(check(&[good.clone(), good.clone()]), Ok(()));
        // Every fixed word, and the length.
        for (at, _) in DEPOSIT_WORDS {
            for byte in [at, at + 31] {
                let mut data = deposit_data();
                data[byte] ^= 1;
                let bad = receipt(contract, vec![DEPOSIT_EVENT], data);
                let want = Err(BlockError::DepositLayout { index: 1 });
                assert_eq!(check(&[good.clone(), bad]), want, "byte {byte}");
            }
        }
        for len in [0, 32, DEPOSIT_LEN - 1, DEPOSIT_LEN + 32] {
            let mut data = deposit_data();
            data.resize(len, 0);
            assert!(check(&[receipt(contract, vec![DEPOSIT_EVENT], data)]).is_err(), "{len} bytes");
        }
        // Logs other than deposits.
        for other in [
            receipt(Address::ZERO, vec![DEPOSIT_EVENT], vec![1]),
            receipt(contract, vec![B256::ZERO], vec![1]),
            receipt(contract, vec![], vec![1]),
        ] {
            assert_eq!(check(&[other]), Ok(()));
        }
    }

    /// State of accounts that have this code.
    struct Codes(Vec<(Address, B256)>);

    impl Database for Codes {
        type Error = Error;

        fn basic(&mut self, address: Address) -> Result<Option<AccountInfo>, Error> {
            let found = self.0.iter().find(|(account, _)| *account == address);
            Ok(found.map(|(_, code_hash)| AccountInfo { code_hash: *code_hash, ..<_>::default() }))
        }

        fn code_by_hash(&mut self, _: B256) -> Result<Bytecode, Error> {
            Ok(Bytecode::default())
        }

        fn storage(&mut self, _: Address, _: U256) -> Result<U256, Error> {
            Ok(U256::ZERO)
        }

        fn block_hash(&mut self, _: u64) -> Result<B256, Error> {
            Ok(B256::ZERO)
        }
    }

    #[test]
    fn the_contracts_of_the_fork_must_have_code() {
        let code = B256::repeat_byte(1);
        let withdrawals = WITHDRAWAL_REQUEST_PREDEPLOY_ADDRESS;
        let consolidations = CONSOLIDATION_REQUEST_PREDEPLOY_ADDRESS;
        for (accounts, missing) in [
            (vec![(withdrawals, code), (consolidations, code)], None),
            (vec![(withdrawals, code)], Some(consolidations)),
            (vec![(consolidations, code)], Some(withdrawals)),
            (vec![(withdrawals, EMPTY_CODE_HASH), (consolidations, code)], Some(withdrawals)),
            (vec![(withdrawals, code), (consolidations, EMPTY_CODE_HASH)], Some(consolidations)),
        ] {
            assert_eq!(missing_contract(Fork::Prague, &mut Codes(accounts)).unwrap(), missing);
        }
        for absent in REQUEST_CONTRACTS {
            let others = REQUEST_CONTRACTS.into_iter().filter(|contract| *contract != absent);
            let mut codes = Codes(others.map(|contract| (contract, code)).collect());
            assert_eq!(missing_contract(Fork::Amsterdam, &mut codes).unwrap(), Some(absent));
        }
    }
}
