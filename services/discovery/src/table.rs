//! Thread that asks peer-table: its calls block, and the socket must not.

use crate::state::Question;
use std::sync::Arc;
use tandem_actor::Inbox;
use tandem_discv4::node_id;
use tandem_proto::{
    event::Contact,
    peer_table::{PeerTableApi, Result},
};
use tokio::sync::mpsc::Sender;
use tracing::{debug, debug_span};

/// Number of nodes in an answer: `k` of the protocol, and some that the asker cannot use.
const CLOSEST: usize = 24;
/// Number of nodes whose records are requested at a time.
const ENRS: usize = 3;

/// Answer of peer-table to a question.
pub type Answer = (Question, Result<Vec<Contact>>);

/// Answers questions until no asker or no receiver is left.
pub fn run(inbox: &Inbox<Question>, table: &Arc<dyn PeerTableApi>, answers: &Sender<Answer>) {
    // No timer is needed: an asker that stops drops the mailbox.
    while let Some(envelope) = inbox.wait() {
        let question = envelope.message;
        let _span = debug_span!("ask_table", question = name(&question)).entered();
        let answer = match &question {
            Question::Neighbors { target, .. } => table.closest(*target, CLOSEST),
            Question::Seeds { target } => table.closest(node_id(target), CLOSEST),
            Question::Candidate { .. } => {
                table.sample_for_lookup().map(|contact| contact.into_iter().collect())
            }
            Question::EnrCandidates => candidates(table.as_ref()),
        };
        if let Err(error) = &answer {
            debug!(%error, "peer-table did not answer");
        }
        if answers.blocking_send((question, answer)).is_err() {
            return;
        }
    }
}

fn name(question: &Question) -> &'static str {
    match question {
        Question::Neighbors { .. } => "neighbors",
        Question::Seeds { .. } => "seeds",
        Question::Candidate { .. } => "candidate",
        Question::EnrCandidates => "enr candidates",
    }
}

fn candidates(table: &dyn PeerTableApi) -> Result<Vec<Contact>> {
    let mut contacts: Vec<Contact> = Vec::new();
    for _ in 0..ENRS {
        let Some(contact) = table.sample_for_enr()? else { break };
        // The node stays a candidate, so it may be drawn again.
        if contacts.iter().all(|other| other.id != contact.id) {
            contacts.push(contact);
        }
    }
    Ok(contacts)
}
