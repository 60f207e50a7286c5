//! Public chains from their genesis files, without the state.

use crate::ChainSpec;
use std::sync::LazyLock;

macro_rules! preset {
    ($name:ident, $file:literal) => {
        static $name: LazyLock<ChainSpec> = LazyLock::new(|| read($file, include_str!($file)));
    };
}

preset!(MAINNET, "../presets/mainnet.json");
preset!(SEPOLIA, "../presets/sepolia.json");
preset!(HOLESKY, "../presets/holesky.json");
preset!(HOODI, "../presets/hoodi.json");

fn read(file: &str, json: &str) -> ChainSpec {
    match ChainSpec::from_genesis_json(json) {
        Ok(spec) => spec,
        // The file is part of the crate, and a test reads it.
        Err(error) => panic!("{file}: {error}"),
    }
}

impl ChainSpec {
    /// Returns the rules of a public chain: mainnet (1), Sepolia (11155111), Holesky (17000) or
    /// Hoodi (560048). Returns `None` for any other id.
    pub fn for_chain_id(chain_id: u64) -> Option<Self> {
        let preset = match chain_id {
            1 => &MAINNET,
            11_155_111 => &SEPOLIA,
            17_000 => &HOLESKY,
            560_048 => &HOODI,
            _ => return None,
        };
        Some(ChainSpec::clone(preset))
    }
}
