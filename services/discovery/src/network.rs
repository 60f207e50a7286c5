//! Public facts about the public networks: their chains, and the first nodes to ask.

use serde::{Deserialize, Serialize};
use std::{fmt, str::FromStr};
use tandem_primitives::B256;

/// Public network.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Network {
    /// Ethereum, chain 1.
    Mainnet,
    /// Test network, chain 11155111.
    Sepolia,
    /// Test network, chain 17000; ended by its operators in 2025.
    Holesky,
    /// Test network, chain 560048.
    Hoodi,
}

/// Decodes a constant of this file; a wrong one does not compile.
const fn hash(hex: &str) -> B256 {
    match const_hex::const_decode_to_array(hex.as_bytes()) {
        Ok(bytes) => B256::new(bytes),
        Err(_) => panic!("not 64 hex digits"),
    }
}

/// Builds the URL of a node list, with the key of the Ethereum Foundation that signs it.
macro_rules! list {
    ($name:literal) => {
        concat!(
            "enrtree://AKA3AM6LPBYEUDMVNU3BSVQJ5AD45Y7YPOHJLEF6W26QOE4VTUDPE@all.",
            $name,
            ".ethdisco.net"
        )
    };
}

impl Network {
    /// All public networks.
    pub const ALL: [Self; 4] = [Self::Mainnet, Self::Sepolia, Self::Holesky, Self::Hoodi];

    /// Returns its name, as configuration and command line write it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Mainnet => "mainnet",
            Self::Sepolia => "sepolia",
            Self::Holesky => "holesky",
            Self::Hoodi => "hoodi",
        }
    }

    /// Returns the EIP-155 chain id.
    pub fn chain_id(self) -> u64 {
        match self {
            Self::Mainnet => 1,
            Self::Sepolia => 11_155_111,
            Self::Holesky => 17_000,
            Self::Hoodi => 560_048,
        }
    }

    /// Returns the hash of the first block.
    pub fn genesis_hash(self) -> B256 {
        const MAINNET: B256 =
            hash("d4e56740f876aef8c010b86a40d5f56745a118d0906a34e69aec8c0db1cb8fa3");
        const SEPOLIA: B256 =
            hash("25a5cc106eea7138acab33231d7160d69cb777ee0c2c553fcddf5138993e6dd9");
        const HOLESKY: B256 =
            hash("b5f7f912443c940f21fd611f12828d75b534364ed9e95ca4e307729a4661bde4");
        const HOODI: B256 =
            hash("bbe312868b376a3001692a646dd2d7d1e4406380dfd86b98aa8a34d1557c971b");
        match self {
            Self::Mainnet => MAINNET,
            Self::Sepolia => SEPOLIA,
            Self::Holesky => HOLESKY,
            Self::Hoodi => HOODI,
        }
    }

    /// Returns the nodes that its operators run for newcomers, as `enr:…` or `enode://…`. They are
    /// those of geth 1.17 (`params/bootnodes.go`), for Holesky those of eth-clients/holesky.
    pub fn bootnodes(self) -> impl Iterator<Item = &'static str> {
        let text = match self {
            Self::Mainnet => include_str!("../presets/mainnet.txt"),
            Self::Sepolia => include_str!("../presets/sepolia.txt"),
            Self::Holesky => include_str!("../presets/holesky.txt"),
            Self::Hoodi => include_str!("../presets/hoodi.txt"),
        };
        text.lines()
    }

    /// Returns the list of its nodes in DNS (EIP-1459), kept by the Ethereum Foundation
    /// (ethereum/discv4-dns-lists); `None` if there is none any more.
    pub fn dns_list(self) -> Option<&'static str> {
        match self {
            Self::Mainnet => Some(list!("mainnet")),
            Self::Sepolia => Some(list!("sepolia")),
            Self::Holesky => None,
            Self::Hoodi => Some(list!("hoodi")),
        }
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Network {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|network| network.name() == text);
        found.ok_or_else(|| "expected `mainnet`, `sepolia`, `holesky` or `hoodi`".to_owned())
    }
}
