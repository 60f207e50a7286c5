//! The own address as others see it.

use std::{
    collections::VecDeque,
    net::{IpAddr, SocketAddr},
    time::Duration,
};

/// Largest number of voters remembered.
const VOTES_MAX: usize = 64;
/// Time for which a vote counts: addresses change.
const VOTE_LIFETIME: Duration = Duration::from_secs(30 * 60);

struct Vote {
    voter: IpAddr,
    claim: SocketAddr,
    at: Duration,
}

/// Votes of pongs on the own addresses. There is one address in each family, and IPv4 and IPv6 are
/// voted on separately. Each network has one vote, so that one party with many adjacent addresses
/// does not decide.
#[derive(Default)]
pub struct External {
    v4: Ballot,
    v6: Ballot,
}

#[derive(Default)]
struct Ballot {
    votes: VecDeque<Vote>,
}

/// Returns the network of an address: 24 bits of IPv4, 48 of IPv6.
fn network(ip: IpAddr) -> IpAddr {
    match ip {
        IpAddr::V4(ip) => IpAddr::V4((ip.to_bits() >> 8 << 8).into()),
        IpAddr::V6(ip) => IpAddr::V6((ip.to_bits() >> 80 << 80).into()),
    }
}

impl External {
    /// Counts a vote. Returns the address that more than half of at least `min` voters of its
    /// family claim. A voter who claims an address of the other family cannot have seen it.
    pub fn vote(
        &mut self,
        now: Duration,
        voter: IpAddr,
        claim: SocketAddr,
        min: usize,
    ) -> Option<SocketAddr> {
        let ballot = match (voter, claim) {
            (IpAddr::V4(_), SocketAddr::V4(_)) => &mut self.v4,
            (IpAddr::V6(_), SocketAddr::V6(_)) => &mut self.v6,
            _ => return None,
        };
        ballot.vote(now, network(voter), claim);
        ballot.majority(min)
    }
}

impl Ballot {
    fn vote(&mut self, now: Duration, voter: IpAddr, claim: SocketAddr) {
        self.votes.retain(|vote| vote.voter != voter && now < vote.at + VOTE_LIFETIME);
        if self.votes.len() == VOTES_MAX {
            self.votes.pop_front();
        }
        self.votes.push_back(Vote { voter, claim, at: now });
    }

    fn majority(&self, min: usize) -> Option<SocketAddr> {
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
            external.vote(Duration::ZERO, IpAddr::from(voter), at(claim), 3)
        };
        assert_eq!(vote([1, 1, 1, 1], "5.5.5.5:30303"), None);
        assert_eq!(vote([2, 1, 1, 1], "5.5.5.5:30303"), None);
        assert_eq!(vote([3, 1, 1, 1], "6.6.6.6:1"), Some(at("5.5.5.5:30303")));
        // A thousand neighbours have one vote.
        for host in 0..=255 {
            assert_eq!(vote([3, 1, 1, host], "6.6.6.6:1"), Some(at("5.5.5.5:30303")));
        }
        assert_eq!(vote([4, 1, 1, 1], "6.6.6.6:1"), None);
        assert_eq!(vote([5, 1, 1, 1], "6.6.6.6:1"), Some(at("6.6.6.6:1")));
    }

    #[test]
    fn each_family_is_voted_on_apart() {
        let mut external = External::default();
        let mut vote = |voter: &str, claim| {
            external.vote(Duration::ZERO, voter.parse().unwrap(), at(claim), 2)
        };
        let (four, six) = ("5.5.5.5:30303", "[2001:db8::5]:30303");
        assert_eq!(vote("1.0.0.1", four), None);
        assert_eq!(vote("2001:db8:1::1", six), None, "one voter of each");
        assert_eq!(vote("2.0.0.1", four), Some(at(four)));
        // Many more votes of the other family change nothing.
        for network in 2..50 {
            assert_eq!(vote(&format!("2001:db8:{network}::1"), six), Some(at(six)));
        }
        assert_eq!(vote("3.0.0.1", four), Some(at(four)));
        // A voter cannot see an address of the other family.
        assert_eq!(vote("2001:db8:90::1", "6.6.6.6:1"), None);
        assert_eq!(vote("4.0.0.1", "[2001:db8::6]:1"), None);
    }

    #[test]
    fn old_votes_expire() {
        let mut external = External::default();
        let mut vote =
            |now, voter| external.vote(now, IpAddr::from([voter, 0, 0, 1]), at("5.5.5.5:1"), 3);
        let known: Vec<_> = (1..=3).map(|voter| vote(Duration::ZERO, voter)).collect();
        assert_eq!(known, [None, None, Some(at("5.5.5.5:1"))]);
        assert_eq!(vote(VOTE_LIFETIME, 4), None);
    }
}
