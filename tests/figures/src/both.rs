//! Tandem and geth with the same transactions in their pools.

use crate::driven::Driven;
use alloy_primitives::{Address, B256, Bytes};
use std::{
    collections::{BTreeMap, btree_map::Entry},
    ops::Range,
};

/// Hashes in a request.
const ASKED: usize = 100;

/// Numbers of events by reason, each with the block of the first one.
type Reasons = BTreeMap<String, (u32, u64)>;

/// Two clients, and the transactions that should be in the pools of both.
pub struct Both {
    pub tandem: Driven,
    pub geth: Driven,
    /// Transactions that a client accepted, without those of blocks.
    accepted: BTreeMap<B256, Bytes>,
    /// Refusals by Tandem alone, by reason, each with the block of the first one.
    refusals: Reasons,
    /// Transactions that one pool lacked at a build, by the reason why it did not take them once more.
    lacks: Reasons,
}

impl Both {
    /// Returns two clients with empty pools.
    pub fn new(tandem: Driven, geth: Driven) -> Self {
        let (accepted, refusals, lacks) = Default::default();
        Self { tandem, geth, accepted, refusals, lacks }
    }

    /// Adds a transaction to both pools before the block of this number, and returns whether both accept
    /// it. One that geth refuses goes to neither, so that the pools stay the same.
    pub fn add(&mut self, raw: &Bytes, block: u64) -> bool {
        let Ok(hash) = self.geth.add(raw) else { return false };
        self.accepted.insert(hash, raw.clone());
        let Err(error) = self.tandem.add(raw) else { return true };
        self.refusals.entry(message_of(&error)).or_insert((0, block)).0 += 1;
        false
    }

    /// Makes the pools the same before the block of this number, as far as possible: what one lacks is
    /// added to it once more. Returns whether they are.
    ///
    /// # Errors
    /// If a client does not answer.
    pub fn are_same(&mut self, block: u64) -> anyhow::Result<bool> {
        Ok(self.compare(block)? || self.compare(block)?)
    }

    /// Returns whether the pools have the same transactions that can be executed: geth's pool does not
    /// tell of those with blobs that come too early, and may keep some whose nonce is used up. What one
    /// pool lacks is added to it. Transactions that neither has are forgotten.
    fn compare(&mut self, block: u64) -> anyhow::Result<bool> {
        let hashes: Vec<_> = self.accepted.keys().copied().collect();
        let mut nonces: [BTreeMap<Address, Range<u64>>; 2] = Default::default();
        let mut are_same = true;
        for hashes in hashes.chunks(ASKED) {
            let (own, geths) = (self.tandem.has(hashes)?, self.geth.has(hashes)?);
            for (hash, found) in hashes.iter().zip(own.into_iter().zip(geths)) {
                if found == (None, None) {
                    self.accepted.remove(hash);
                    continue;
                }
                let clients = [&mut self.tandem, &mut self.geth];
                let mut can = [false; 2];
                for (at, (client, found)) in clients.into_iter().zip([found.0, found.1]).enumerate()
                {
                    let Some((sender, nonce)) = found else { continue };
                    can[at] = match nonces[at].entry(sender) {
                        Entry::Occupied(nonces) => nonces.get().contains(&nonce),
                        Entry::Vacant(vacant) => {
                            vacant.insert(client.executable(sender)?).contains(&nonce)
                        }
                    };
                }
                let (name, lacks) = match can {
                    [true, false] => ("geth", &mut self.geth),
                    [false, true] => ("Tandem", &mut self.tandem),
                    _ => continue,
                };
                are_same = false;
                if let Err(error) = lacks.add(&self.accepted[hash]) {
                    let reason = format!("{name} lacks one: {}", message_of(&error));
                    self.lacks.entry(reason).or_insert((0, block)).0 += 1;
                }
            }
        }
        Ok(are_same)
    }

    /// Returns the number of transactions that Tandem alone refused, and why.
    pub fn refusals(&self) -> (u32, String) {
        (self.refusals.values().map(|(count, _)| count).sum(), text_of(&self.refusals))
    }

    /// Returns why transactions were in one pool only.
    pub fn lacks(&self) -> String {
        text_of(&self.lacks)
    }
}

fn text_of(reasons: &Reasons) -> String {
    let text = |(why, (count, block)): (&String, &(u32, u64))| {
        format!("{count}: {why}, first before block {block}")
    };
    let texts: Vec<_> = reasons.iter().map(text).collect();
    texts.join("; ")
}

/// Returns the message of an error that a client answered with, without what differs from one transaction
/// to the next.
fn message_of(error: &anyhow::Error) -> String {
    let text = error.to_string();
    let message = text.split("\"message\":\"").nth(1).unwrap_or(&text);
    message.chars().take_while(|letter| !matches!(letter, ':' | '"')).collect()
}
