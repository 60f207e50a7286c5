use crate::EMPTY_CODE_HASH;
use alloy_primitives::{B256, U256};
use std::fmt;

/// Account as the flat state stores it: every field except the storage root, which only the trie
/// holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Account {
    /// Number of transactions sent, or of contracts created.
    pub nonce: u64,
    /// Balance in wei.
    pub balance: U256,
    /// Keccak-256 of the code, [`EMPTY_CODE_HASH`] for an account without code.
    pub code_hash: B256,
}

impl Default for Account {
    fn default() -> Self {
        Self { nonce: 0, balance: U256::ZERO, code_hash: EMPTY_CODE_HASH }
    }
}

/// Error: the bytes do not encode an account.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AccountDecodeError;

impl fmt::Display for AccountDecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("malformed account record")
    }
}

impl std::error::Error for AccountDecodeError {}

impl Account {
    /// Returns whether the account is empty by EIP-161: no nonce, no balance, no code.
    pub fn is_empty(&self) -> bool {
        self.nonce == 0 && self.balance.is_zero() && self.code_hash == EMPTY_CODE_HASH
    }

    /// Appends the record that the database stores.
    ///
    /// The first byte holds the length of the nonce (low nibble, 0 to 8) and whether there is a
    /// code hash (high bit). The second byte holds the length of the balance. Nonce, balance and
    /// code hash follow, without leading zeros.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let nonce = self.nonce.to_be_bytes();
        let nonce = &nonce[self.nonce.leading_zeros() as usize / 8..];
        let balance = self.balance.to_be_bytes::<32>();
        let balance = &balance[self.balance.leading_zeros() / 8..];
        let has_code = self.code_hash != EMPTY_CODE_HASH;
        out.push(nonce.len() as u8 | if has_code { 0x80 } else { 0 });
        out.push(balance.len() as u8);
        out.extend_from_slice(nonce);
        out.extend_from_slice(balance);
        if has_code {
            out.extend_from_slice(self.code_hash.as_slice());
        }
    }

    /// Reads a record written by [`Account::encode`].
    ///
    /// # Errors
    /// [`AccountDecodeError`] when the lengths do not match the bytes.
    pub fn decode(bytes: &[u8]) -> Result<Self, AccountDecodeError> {
        let (&[flags, balance_len], rest) = bytes.split_first_chunk().ok_or(AccountDecodeError)?;
        let (nonce_len, balance_len) = (usize::from(flags & 0x7f), usize::from(balance_len));
        let code_len = if flags & 0x80 != 0 { 32 } else { 0 };
        if nonce_len > 8 || balance_len > 32 || rest.len() != nonce_len + balance_len + code_len {
            return Err(AccountDecodeError);
        }
        let (nonce, rest) = rest.split_at(nonce_len);
        let (balance, code) = rest.split_at(balance_len);
        let nonce = nonce.iter().fold(0, |n, &byte| n << 8 | u64::from(byte));
        let code_hash = if code.is_empty() { EMPTY_CODE_HASH } else { B256::from_slice(code) };
        Ok(Self { nonce, balance: U256::from_be_slice(balance), code_hash })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_account_survives_its_record() {
        for account in [
            Account::default(),
            Account { nonce: 1, balance: U256::from(7), code_hash: EMPTY_CODE_HASH },
            Account { nonce: u64::MAX, balance: U256::MAX, code_hash: B256::repeat_byte(9) },
            Account { nonce: 256, balance: U256::from(256), code_hash: B256::ZERO },
        ] {
            let mut record = Vec::new();
            account.encode(&mut record);
            assert_eq!(Account::decode(&record), Ok(account));
            assert_eq!(Account::decode(&record[..record.len() - 1]), Err(AccountDecodeError));
            record.push(0);
            assert_eq!(Account::decode(&record), Err(AccountDecodeError));
        }
    }
}
