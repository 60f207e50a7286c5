//! Contract code, prepared for the EVM.

use revm::state::Bytecode;
use tandem_primitives::Bytes;

/// Finds the jump destinations of code, or recognizes a delegation to another account (EIP-7702).
///
/// Code that begins like a delegation without being a valid one cannot be deployed since London
/// (EIP-3541). Such code may be older or part of a genesis file. It then counts as ordinary code,
/// whose first instruction is invalid.
pub fn analyze(code: Bytes) -> Bytecode {
    Bytecode::new_raw_checked(code.clone()).unwrap_or_else(|_| Bytecode::new_legacy(code))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_that_only_begins_like_a_delegation_is_code() {
        let delegation = [&[0xef, 0x01, 0x00][..], &[7; 20]].concat();
        assert!(analyze(delegation.clone().into()).is_eip7702());
        let mut version = delegation.clone();
        version[2] = 1;
        let long = [&delegation[..], &[0]].concat();
        for code in [vec![], vec![0xef], vec![0xef, 0x01], delegation[..22].to_vec(), long, version]
        {
            let analyzed = analyze(code.clone().into());
            assert!(analyzed.is_legacy());
            assert_eq!(analyzed.original_bytes(), code);
        }
    }
}
