use super::*;
use alloy_consensus::{SignableTransaction, TxEip1559, TxEip4844};
use alloy_primitives::{B256, Signature, U256};
use proptest::{collection::vec, prelude::*};

fn sender(index: u8) -> Address {
    Address::repeat_byte(index)
}

fn refused(rule: TransactionRule) -> Judgment {
    Judgment::Refused(rule, String::new())
}

fn transaction(blobs: usize) -> Transaction {
    let signature = Signature::new(U256::ONE, U256::ONE, false);
    match blobs {
        0 => TxEip1559::default().into_signed(signature).into(),
        _ => {
            let blob_versioned_hashes = vec![B256::ZERO; blobs];
            let draft = TxEip4844 { blob_versioned_hashes, ..TxEip4844::default() };
            draft.into_signed(signature).into()
        }
    }
}

#[test]
fn what_has_no_room_leaves_it_to_smaller_ones_of_others() {
    let mut selection = Selection::new(Room { blobs: 5, bytes: 1_000 });
    let mut offer = |index, blobs, bytes| {
        let admitted = selection.admits(sender(index), &transaction(blobs), bytes);
        if admitted {
            selection.judged(Judgment::Taken);
        }
        admitted
    };
    assert!(offer(1, 4, 100));
    assert!(!offer(2, 2, 100), "two blobs, one is left");
    assert!(!offer(2, 0, 100), "it comes behind one that is not there");
    assert!(offer(3, 1, 100));
    assert!(!offer(4, 1, 100));
    assert!(!offer(5, 0, 800));
    assert!(offer(6, 0, 600));
}

#[test]
fn a_failure_ends_its_sender_except_a_used_nonce() {
    let rules = [
        (refused(TransactionRule::NonceTooLow), true),
        (refused(TransactionRule::InsufficientFunds), false),
        (Judgment::NoRoom, false),
        (Judgment::Taken, true),
    ];
    for (judgment, goes_on) in rules {
        let mut selection = Selection::new(Room { blobs: 0, bytes: 1_000 });
        assert!(selection.admits(sender(1), &transaction(0), 10));
        selection.judged(judgment.clone());
        assert_eq!(selection.admits(sender(1), &transaction(0), 10), goes_on, "{judgment:?}");
        assert!(selection.admits(sender(2), &transaction(0), 10), "{judgment:?}");
    }
}

#[test]
fn misses_are_bounded() {
    let mut selection = Selection::new(Room { blobs: 0, bytes: 1_000_000 });
    for _ in 0..MISSES_MAX {
        assert!(!selection.is_over());
        assert!(selection.admits(sender(1), &transaction(0), 10));
        selection.judged(refused(TransactionRule::NonceTooLow));
    }
    assert!(selection.is_over());
}

/// Candidate: sender, blobs, bytes, judgment if it is executed.
type Offer = (u8, usize, usize, u8);

/// Walks through all candidates with the room that is left, and notes for each sender whether one
/// was left out.
fn model(room: Room, offers: &[Offer]) -> Vec<bool> {
    let mut taken: Vec<Offer> = Vec::new();
    let mut ended = [false; 256];
    let walk = |&(index, blobs, bytes, judgment): &Offer| {
        let ended = &mut ended[usize::from(index)];
        let size = |bytes: usize| {
            bytes
                + if bytes < 56 {
                    1
                } else if bytes < 256 {
                    2
                } else {
                    3
                }
        };
        let blobs_now = taken.iter().map(|it| it.1).sum::<usize>() + blobs;
        let bytes_now = taken.iter().map(|it| size(it.2)).sum::<usize>() + size(bytes);
        let fits = blobs_now as u64 <= room.blobs && bytes_now <= room.bytes;
        let runs = !*ended && fits;
        *ended |= !fits || (runs && judgment == 1);
        if runs && judgment == 0 {
            taken.push((index, blobs, bytes, judgment));
        }
        runs
    };
    offers.iter().map(walk).collect()
}

proptest! {
    #[test]
    fn the_choice_is_that_of_the_model(
        (blobs, bytes) in (0..8_u64, 0..3_000_usize),
        offers in vec((0..6_u8, 0..4_usize, 1..700_usize, 0..3_u8), 0..40),
    ) {
        let room = Room { blobs, bytes };
        let mut selection = Selection::new(room);
        let run = |&(index, blobs, bytes, judgment): &Offer| {
            let admitted = selection.admits(sender(index), &transaction(blobs), bytes);
            if admitted {
                selection.judged(match judgment {
                    0 => Judgment::Taken,
                    1 => refused(TransactionRule::InsufficientFunds),
                    _ => refused(TransactionRule::NonceTooLow),
                });
            }
            admitted
        };
        let got: Vec<_> = offers.iter().map(run).collect();
        prop_assert_eq!(got, model(room, &offers));
    }
}
