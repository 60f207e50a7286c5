//! Accounts whose keys follow from a seed.

use alloy_consensus::{SignableTransaction, Signed};
use alloy_eips::eip7702::{Authorization, SignedAuthorization};
use alloy_primitives::{Address, B256, Signature, keccak256};
use anyhow::Context;
use secp256k1::{Message, SECP256K1, SecretKey};
use std::{fs, path::Path};

/// An account whose key is known.
#[derive(Clone, Debug)]
pub struct Wallet {
    key: SecretKey,
    /// Address of the account.
    pub address: Address,
}

impl Wallet {
    /// Returns the account of a seed with this number.
    pub fn derived(seed: u64, number: u64) -> Self {
        let mut text = b"tandem spam".to_vec();
        text.extend(seed.to_be_bytes());
        text.extend(number.to_be_bytes());
        let mut hash = keccak256(text);
        loop {
            match SecretKey::from_byte_array(hash.0) {
                Ok(key) => return Self::new(key),
                // Nearly every number is a key.
                Err(_) => hash = keccak256(hash),
            }
        }
    }

    /// Returns the account whose key a file holds, as 64 hexadecimal digits.
    ///
    /// # Errors
    /// Returns an error that names the file, but not its content.
    pub fn load(path: &Path) -> anyhow::Result<Self> {
        let named =
            || format!("{}: expected a private key of 64 hexadecimal digits", path.display());
        let text = fs::read_to_string(path).with_context(|| path.display().to_string())?;
        let bytes: B256 = text.trim().parse().ok().with_context(named)?;
        Ok(Self::new(SecretKey::from_byte_array(bytes.0).ok().with_context(named)?))
    }

    fn new(key: SecretKey) -> Self {
        let public = key.public_key(SECP256K1).serialize_uncompressed();
        Self { key, address: Address::from_raw_public_key(&public[1..]) }
    }

    /// Returns the key as a file holds it.
    pub fn key_text(&self) -> String {
        const_hex::encode(self.key.secret_bytes())
    }

    /// Signs a transaction.
    pub fn sign<T: SignableTransaction<Signature>>(&self, transaction: T) -> Signed<T> {
        let signature = self.signature(transaction.signature_hash());
        transaction.into_signed(signature)
    }

    /// Signs an authorization to set this account's code (EIP-7702).
    pub fn authorize(&self, authorization: Authorization) -> SignedAuthorization {
        let signature = self.signature(authorization.signature_hash());
        authorization.into_signed(signature)
    }

    fn signature(&self, hash: B256) -> Signature {
        let message = Message::from_digest(hash.0);
        let signature = SECP256K1.sign_ecdsa_recoverable(message, &self.key);
        let (recovery, compact) = signature.serialize_compact();
        Signature::from_bytes_and_parity(&compact, i32::from(recovery) == 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloy_consensus::TxLegacy;

    #[test]
    fn a_signature_leads_back_to_the_account() {
        let wallet = Wallet::derived(7, 3);
        let signed = wallet.sign(TxLegacy { chain_id: Some(1), ..TxLegacy::default() });
        assert_eq!(signed.recover_signer().unwrap(), wallet.address);
        assert_ne!(Wallet::derived(7, 4).address, wallet.address);
        assert_ne!(Wallet::derived(8, 3).address, wallet.address);
    }

    #[test]
    fn a_file_without_a_key_is_refused_and_not_shown() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("key");
        for wrong in ["", "0x12", &"0".repeat(64), &"z".repeat(64)] {
            fs::write(&file, wrong).unwrap();
            let error = format!("{:#}", Wallet::load(&file).unwrap_err());
            assert!(error.contains("64 hexadecimal digits"), "{error}");
        }
        // The key 1, whose address is well known.
        fs::write(&file, format!("0x{:064x}\n", 1)).unwrap();
        let address = Wallet::load(&file).unwrap().address;
        assert_eq!(address.to_string(), "0x7E5F4552091A69125d5DfCb7b8C2659029395Bdf");
    }
}
