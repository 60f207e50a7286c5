//! Contents of the stream, as a client of NATS sees them.

use async_nats::jetstream::{
    self,
    message::PublishMessage,
    stream::{Info, Stream},
};
use std::{
    collections::BTreeMap,
    fmt::Debug,
    time::{Duration, Instant},
};
use tandem_bus_tests::{DEADLINE, NatsServer, eventually};
use tandem_primitives::{B256, BlockId};
use tandem_proto::{
    convert::FeedDecoder,
    feed::FeedMessage,
    feed_log::{FEED_STREAM, FeedNote},
};
use tokio::{runtime::Runtime, time::sleep};

/// Asks until there is an answer: servers that choose a leader have none for a moment.
async fn answered<T, E: Debug>(mut ask: impl AsyncFnMut() -> Result<T, E>) -> T {
    let end = Instant::now() + DEADLINE;
    loop {
        match ask().await {
            Ok(answer) => return answer,
            Err(error) => assert!(Instant::now() < end, "{error:?}"),
        }
        sleep(Duration::from_millis(50)).await;
    }
}

/// Stream of a server.
pub struct Stored {
    context: jetstream::Context,
    stream: Stream,
}

impl Stored {
    /// Connects to a stream that is there.
    pub async fn find(server: &NatsServer) -> Self {
        answered(async || Self::open(server).await.ok_or("no stream")).await
    }

    /// Connects, and finds the stream if it is there.
    pub async fn open(server: &NatsServer) -> Option<Self> {
        let client = async_nats::connect(server.url()).await.ok()?;
        let context = jetstream::new(client);
        let stream = context.get_stream(FEED_STREAM).await.ok()?;
        Some(Self { context, stream })
    }

    pub async fn info(&self) -> Info {
        answered(async || self.stream.get_info().await).await
    }

    /// Removes all messages.
    pub async fn purge(&self) {
        answered(async || self.stream.purge().await).await;
    }

    /// Appends what a publisher of this turn would leave if it died within a block.
    pub async fn append_half_a_block(&self, note: FeedNote, payload: Vec<u8>) {
        let subject = self.stream.cached_info().config.subjects[0].clone();
        let message = PublishMessage::build()
            .header("Tandem-Note", note.to_string().as_str())
            .payload(payload.into());
        self.context.send_publish(subject, message).await.unwrap().await.unwrap();
    }
}

/// Contents of a stream, read from its beginning.
#[derive(Debug, Default)]
pub struct Contents {
    /// Block at which a reader stands at the end.
    pub at: BlockId,
    /// Number of the last turn.
    pub turn: u64,
    /// Times that each block occurs, by hash.
    pub blocks: BTreeMap<B256, u64>,
    /// Number of turns, messages, and messages that bring a part of a block only.
    pub turns: u64,
    pub messages: u64,
    pub parts: u64,
}

/// Reads the whole stream, and checks that each message leads on from the one before.
pub fn contents(server: &NatsServer, runtime: &Runtime) -> Contents {
    runtime.block_on(async {
        let stored = Stored::find(server).await;
        let state = stored.info().await.state;
        let (mut contents, mut decoder) = (Contents::default(), FeedDecoder::default());
        // The state of a stream without messages is 0 to 0, and there is no message 0.
        for sequence in state.first_sequence.max(1)..=state.last_sequence {
            let read = async || stored.stream.get_raw_message(sequence).await;
            let message = answered(read).await;
            let note = message.headers.get("Tandem-Note").unwrap().as_str();
            let note: FeedNote = note.parse().unwrap();
            assert!(note.turn >= contents.turn, "turn {} after {}", note.turn, contents.turn);
            if note.turn > contents.turn {
                decoder = FeedDecoder::default();
                contents.turn = note.turn;
                contents.turns += 1;
            }
            contents.messages += 1;
            match decoder.take_encoded(message.payload).unwrap() {
                None => contents.parts += 1,
                Some(FeedMessage::Status(_)) if contents.messages == 1 => contents.at = note.at,
                Some(FeedMessage::Status(_)) => {}
                Some(FeedMessage::Resume(block)) => {
                    assert!(block.number < contents.at.number);
                    contents.at = block;
                }
                Some(FeedMessage::Block(block)) => {
                    assert_eq!(block.id.number, contents.at.number + 1);
                    contents.at = block.id;
                    *contents.blocks.entry(block.id.hash).or_default() += 1;
                }
            }
            assert_eq!(note.at, contents.at, "message {sequence}");
        }
        contents
    })
}

/// Waits until a reader of the whole stream stands at this block.
pub fn wait_for(server: &NatsServer, block: BlockId, runtime: &Runtime) {
    eventually("the block at the end of the stream", || {
        runtime.block_on(Stored::open(server))?;
        (contents(server, runtime).at == block).then_some(())
    });
}
