use alloy_hardforks::EthereumHardfork;
use std::fmt;

/// Fork whose rules this client knows, in the order of activation. Forks that change only blob
/// parameters (EIP-7892) are not included: see
/// [`ChainSpec::blob_params_at`](crate::ChainSpec::blob_params_at).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Fork {
    /// First rules.
    Frontier,
    /// DELEGATECALL, low `s` in signatures (EIP-2, 7).
    Homestead,
    /// Gas of I/O instructions (EIP-150).
    TangerineWhistle,
    /// Replay protection, no empty accounts (EIP-155, 161).
    SpuriousDragon,
    /// Status in receipts, ommers in the difficulty (EIP-658, 100).
    Byzantium,
    /// CREATE2, shifts, EXTCODEHASH (EIP-1014, 145, 1052).
    Constantinople,
    /// Constantinople without EIP-1283.
    Petersburg,
    /// CHAINID, gas of storage (EIP-1344, 2200).
    Istanbul,
    /// Difficulty bomb delayed (EIP-2384).
    MuirGlacier,
    /// Typed transactions, access lists (EIP-2718, 2930).
    Berlin,
    /// Base fee (EIP-1559).
    London,
    /// Difficulty bomb delayed (EIP-4345).
    ArrowGlacier,
    /// Difficulty bomb delayed (EIP-5133).
    GrayGlacier,
    /// The merge (EIP-3675).
    Paris,
    /// Withdrawals (EIP-4895).
    Shanghai,
    /// Blobs and beacon roots (EIP-4844, 4788).
    Cancun,
    /// Requests and set-code transactions (EIP-7685, 7702).
    Prague,
    /// Size and gas caps, blob reserve price (EIP-7934, 7825, 7918).
    Osaka,
    /// Block-level access lists, gas of state growth, builder requests (EIP-7928, 8037, 8282).
    Amsterdam,
}

impl Fork {
    /// All forks, in order.
    pub const ALL: [Self; 19] = [
        Self::Frontier,
        Self::Homestead,
        Self::TangerineWhistle,
        Self::SpuriousDragon,
        Self::Byzantium,
        Self::Constantinople,
        Self::Petersburg,
        Self::Istanbul,
        Self::MuirGlacier,
        Self::Berlin,
        Self::London,
        Self::ArrowGlacier,
        Self::GrayGlacier,
        Self::Paris,
        Self::Shanghai,
        Self::Cancun,
        Self::Prague,
        Self::Osaka,
        Self::Amsterdam,
    ];

    /// Forks of proof of stake, in order. All except Paris activate by time.
    pub const MERGED: [Self; 6] =
        [Self::Paris, Self::Shanghai, Self::Cancun, Self::Prague, Self::Osaka, Self::Amsterdam];

    /// Returns the position in [`Fork::ALL`].
    pub(crate) const fn index(self) -> usize {
        self as usize
    }

    /// Converts from the names of alloy-hardforks. Returns `None` for forks outside [`Fork`].
    pub(crate) fn from_alloy(fork: EthereumHardfork) -> Option<Self> {
        Some(match fork {
            EthereumHardfork::Frontier => Self::Frontier,
            EthereumHardfork::Homestead => Self::Homestead,
            EthereumHardfork::Tangerine => Self::TangerineWhistle,
            EthereumHardfork::SpuriousDragon => Self::SpuriousDragon,
            EthereumHardfork::Byzantium => Self::Byzantium,
            EthereumHardfork::Constantinople => Self::Constantinople,
            EthereumHardfork::Petersburg => Self::Petersburg,
            EthereumHardfork::Istanbul => Self::Istanbul,
            EthereumHardfork::MuirGlacier => Self::MuirGlacier,
            EthereumHardfork::Berlin => Self::Berlin,
            EthereumHardfork::London => Self::London,
            EthereumHardfork::ArrowGlacier => Self::ArrowGlacier,
            EthereumHardfork::GrayGlacier => Self::GrayGlacier,
            EthereumHardfork::Paris => Self::Paris,
            EthereumHardfork::Shanghai => Self::Shanghai,
            EthereumHardfork::Cancun => Self::Cancun,
            EthereumHardfork::Prague => Self::Prague,
            EthereumHardfork::Osaka => Self::Osaka,
            EthereumHardfork::Amsterdam => Self::Amsterdam,
            _ => return None,
        })
    }
}

impl fmt::Display for Fork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}
