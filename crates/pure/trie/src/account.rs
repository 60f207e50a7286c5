//! Values of the account trie (yellow paper, section 4.1) and of storage tries.

use crate::encode::{push_string, start_list, string_len};
use alloy_rlp::{Decodable, Header};
use smallvec::SmallVec;
use tandem_primitives::{Account, B256, U256};

/// Length of the storage root and the code hash at the end of an account leaf, in bytes, with their
/// headers.
const HASHES_LEN: usize = 66;

/// Appends the value of an account leaf: the RLP of nonce, balance, storage root and code hash.
pub fn account_leaf(account: &Account, storage_root: B256, out: &mut Vec<u8>) {
    let nonce = account.nonce.to_be_bytes();
    let nonce = &nonce[account.nonce.leading_zeros() as usize / 8..];
    let balance = account.balance.to_be_bytes::<32>();
    let balance = &balance[account.balance.leading_zeros() / 8..];
    start_list(string_len(nonce) + string_len(balance) + HASHES_LEN, out);
    push_string(nonce, out);
    push_string(balance, out);
    push_string(storage_root.as_slice(), out);
    push_string(account.code_hash.as_slice(), out);
}

/// Returns the storage root in the value of an account leaf, or `None` when the value is not an
/// account.
pub fn storage_root(mut leaf: &[u8]) -> Option<B256> {
    let header = Header::decode(&mut leaf).ok()?;
    if !header.list || header.payload_length != leaf.len() {
        return None;
    }
    let _nonce = Header::decode_bytes(&mut leaf, false).ok()?;
    let _balance = Header::decode_bytes(&mut leaf, false).ok()?;
    let root = Header::decode_bytes(&mut leaf, false).ok()?;
    let code_hash = Header::decode_bytes(&mut leaf, false).ok()?;
    (leaf.is_empty() && code_hash.len() == 32).then(|| root.try_into().ok())?
}

/// Returns the account and its storage root from the value of an account leaf, or `None` when the
/// value is not an account.
pub fn decode_account_leaf(mut leaf: &[u8]) -> Option<(Account, B256)> {
    let root = storage_root(leaf)?;
    Header::decode(&mut leaf).ok()?;
    let nonce = u64::decode(&mut leaf).ok()?;
    let balance = U256::decode(&mut leaf).ok()?;
    Header::decode_bytes(&mut leaf, false).ok()?;
    let code_hash = B256::decode(&mut leaf).ok()?;
    Some((Account { nonce, balance, code_hash }, root))
}

/// Returns the value of a storage leaf: the RLP of the integer.
pub fn slot_leaf(value: &U256) -> SmallVec<[u8; 33]> {
    let bytes = value.to_be_bytes::<32>();
    let bytes = &bytes[value.leading_zeros() / 8..];
    let mut leaf = SmallVec::new();
    if bytes.len() != 1 || bytes[0] >= 0x80 {
        leaf.push(0x80 + bytes.len() as u8);
    }
    leaf.extend_from_slice(bytes);
    leaf
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloy_trie::TrieAccount;

    #[test]
    fn leaves_are_encoded_as_the_field_does() {
        for (nonce, balance) in [
            (0, U256::ZERO),
            (1, U256::from(127)),
            (128, U256::from(1u128 << 90)),
            (u64::MAX, U256::MAX),
        ] {
            let account = Account { nonce, balance, code_hash: B256::repeat_byte(3) };
            let root = B256::repeat_byte(7);
            let mut ours = Vec::new();
            account_leaf(&account, root, &mut ours);
            let theirs =
                TrieAccount { nonce, balance, storage_root: root, code_hash: account.code_hash };
            assert_eq!(ours, alloy_rlp::encode(theirs));
            assert_eq!(storage_root(&ours), Some(root));
            assert_eq!(decode_account_leaf(&ours), Some((account, root)));
            assert_eq!(storage_root(&ours[..ours.len() - 1]), None);
            assert_eq!(decode_account_leaf(&ours[..ours.len() - 1]), None);
            assert_eq!(slot_leaf(&balance).as_slice(), alloy_rlp::encode(balance));
        }
    }
}
