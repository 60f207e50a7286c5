//! Cases on which clients and fixtures differ, and why.

/// Names of the cases, one a line.
const EIP7610: &str = include_str!("../../../fixtures/eip7610.txt");

/// Why a case may disagree, `None` when it may not. The two formats have the same cases under names
/// that differ in the format's word.
pub fn reason(name: &str) -> Option<&'static str> {
    let name = name.replace("-blockchain_test_engine", "-blockchain_test");
    let listed = EIP7610.lines().any(|line| line == name);
    listed.then_some(
        "EIP-7610: creation at an address with storage, but neither code nor nonce; \
         geth, reth and revm disagree with the fixture too",
    )
}
