//! The own address as others see it.

use std::{
    collections::VecDeque,
    net::{IpAddr, SocketAddr},
    time::Duration,
};

/// Voters remembered.
const VOTES_MAX: usize = 64;
/// How long a vote counts: addresses change.
const VOTE_LIFETIME: Duration = Duration::from_secs(30 * 60);

struct Vote {
    voter: IpAddr,
    claim: SocketAddr,
    at: Duration,
}

/// What pongs say about the own address. Each network has one vote, so that one party with many
/// addresses side by side does not decide.
#[derive(Default)]
pub struct External {
    votes: VecDeque<Vote>,
}

/// The network that an address is in: 24 bits of IPv4, 48 of IPv6.
fn network(ip: IpAddr) -> IpAddr {
    match ip {
        IpAddr::V4(ip) => IpAddr::V4((ip.to_bits() >> 8 << 8).into()),
        IpAddr::V6(ip) => IpAddr::V6((ip.to_bits() >> 80 << 80).into()),
    }
}

impl External {
    /// Counts a vote.
    pub fn vote(&mut self, now: Duration, voter: IpAddr, claim: SocketAddr) {
        let voter = network(voter);
        self.votes.retain(|vote| vote.voter != voter && now < vote.at + VOTE_LIFETIME);
        if self.votes.len() == VOTES_MAX {
            self.votes.pop_front();
        }
        self.votes.push_back(Vote { voter, claim, at: now });
    }

    /// The address that more than half of at least `min` voters claim.
    pub fn majority(&self, min: usize) -> Option<SocketAddr> {
        if self.votes.len() < min {
            return None;
        }
        // Boyer and Moore: if there is a majority, it is the one left over.
        let (mut leader, mut lead) = (None, 0usize);
        for vote in &self.votes {
            if lead == 0 {
                (leader, lead) = (Some(vote.claim), 1);
            } else if leader == Some(vote.claim) {
                lead += 1;
            } else {
                lead -= 1;
            }
        }
        let count = self.votes.iter().filter(|vote| Some(vote.claim) == leader).count();
        leader.filter(|_| count * 2 > self.votes.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    #[test]
    fn a_majority_of_networks_decides() {
        let mut external = External::default();
        let mut vote = |voter: [u8; 4], claim| {
            external.vote(Duration::ZERO, IpAddr::from(voter), at(claim));
            external.majority(3)
        };
        assert_eq!(vote([1, 1, 1, 1], "5.5.5.5:30303"), None);
        assert_eq!(vote([2, 1, 1, 1], "5.5.5.5:30303"), None);
        assert_eq!(vote([3, 1, 1, 1], "6.6.6.6:1"), Some(at("5.5.5.5:30303")));
        // A thousand neighbours have one voice.
        for host in 0..=255 {
            assert_eq!(vote([3, 1, 1, host], "6.6.6.6:1"), Some(at("5.5.5.5:30303")));
        }
        assert_eq!(vote([4, 1, 1, 1], "6.6.6.6:1"), None);
        assert_eq!(vote([5, 1, 1, 1], "6.6.6.6:1"), Some(at("6.6.6.6:1")));
    }

    #[test]
    fn old_votes_expire() {
        let mut external = External::default();
        for voter in 1..=3 {
            external.vote(Duration::ZERO, IpAddr::from([voter, 0, 0, 1]), at("5.5.5.5:1"));
        }
        assert!(external.majority(3).is_some());
        external.vote(VOTE_LIFETIME, IpAddr::from([4, 0, 0, 1]), at("5.5.5.5:1"));
        assert_eq!(external.majority(3), None);
    }
}
