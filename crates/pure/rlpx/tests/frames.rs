//! Frames between two sides: they arrive as they were sent, and damage of any byte is an error.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used)]

use proptest::prelude::*;
use rand::{SeedableRng, rngs::StdRng};
use tandem_discv4::NodeKey;
use tandem_rlpx::{
    DISCONNECT, Decoder, DisconnectReason, Encoder, Error, HEADER_BYTES, HELLO_BYTES_MAX,
    Initiator, Limits, MAC_BYTES, MESSAGE_BYTES_MAX, Message, accept, decode_disconnect,
    encode_disconnect,
};

/// Returns the two ends of one direction.
fn direction(seed: u64) -> (Encoder, Decoder) {
    let mut rng = StdRng::seed_from_u64(seed);
    let [a, b] = [NodeKey::random(&mut rng), NodeKey::random(&mut rng)];
    let initiator = Initiator::start(&a, *b.public(), &mut rng).unwrap();
    let (at_b, ack) = accept(&b, initiator.auth(), &mut rng).unwrap();
    (initiator.finish(&ack).unwrap().encoder, at_b.decoder)
}

fn compressed(seed: u64) -> (Encoder, Decoder) {
    let (mut encoder, mut decoder) = direction(seed);
    encoder.compress();
    decoder.decompress(Limits::of_messages(MESSAGE_BYTES_MAX));
    (encoder, decoder)
}

fn sealed(encoder: &mut Encoder, id: u64, content: &[u8]) -> Vec<u8> {
    let mut frame = Vec::new();
    encoder.encode(id, content, &mut frame).unwrap();
    frame
}

fn open(decoder: &mut Decoder, frame: &[u8]) -> Result<Message, Error> {
    let (header, body) = frame.split_first_chunk::<HEADER_BYTES>().unwrap();
    let bytes = decoder.header(header)?;
    let mut body = body.to_vec();
    body.truncate(bytes);
    decoder.body(body)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn messages_arrive_in_order_as_they_were_sent(
        messages in prop::collection::vec(
            (any::<u64>(), prop::collection::vec(any::<u8>(), 0..300)), 1..8),
        compress: bool,
    ) {
        let (mut encoder, mut decoder) = if compress { compressed(1) } else { direction(1) };
        for (id, content) in messages {
            let frame = sealed(&mut encoder, id, &content);
            prop_assert_eq!(open(&mut decoder, &frame).unwrap(), Message { id, content });
        }
    }

    #[test]
    fn a_frame_is_of_one_session_and_one_place(content in prop::collection::vec(any::<u8>(), 0..99)) {
        let (mut encoder, mut decoder) = compressed(1);
        let first = sealed(&mut encoder, 5, &content);
        let second = sealed(&mut encoder, 5, &content);
        prop_assert_eq!(open(&mut decoder, &second), Err(Error::Mac("header")));
        prop_assert_eq!(open(&mut compressed(2).1, &first), Err(Error::Mac("header")));
    }
}

#[test]
fn damage_of_any_byte_and_any_truncation_is_an_error() {
    let frame = sealed(&mut compressed(1).0, 17, &[3; 40]);
    assert_eq!(open(&mut compressed(1).1, &frame).unwrap().content, [3; 40]);
    for index in 0..frame.len() {
        for bit in 0..8 {
            let mut damaged = frame.clone();
            damaged[index] ^= 1 << bit;
            let place = if index < HEADER_BYTES { "header" } else { "body" };
            assert_eq!(open(&mut compressed(1).1, &damaged), Err(Error::Mac(place)), "{index}");
        }
    }
    for end in HEADER_BYTES..frame.len() {
        let error = open(&mut compressed(1).1, &frame[..end]).unwrap_err();
        assert!(matches!(error, Error::BodySize { .. }), "{end}: {error}");
    }
}

#[test]
fn a_giant_frame_is_refused_at_its_header() {
    let content = vec![0; HELLO_BYTES_MAX + 10];
    let frame = sealed(&mut direction(1).0, 0, &content);
    let error = direction(1).1.header(frame.first_chunk().unwrap()).unwrap_err();
    let expected =
        Error::FrameSize { bytes: content.len() + 1, max: Limits::HELLO.frame_bytes_max };
    assert_eq!(error, expected);
    let mut decoder = direction(1).1;
    decoder.decompress(Limits::of_messages(MESSAGE_BYTES_MAX));
    let body = decoder.header(frame.first_chunk().unwrap()).unwrap();
    assert_eq!(body, frame.len() - HEADER_BYTES);
    assert_eq!(body % MAC_BYTES, 0);
}

#[test]
fn a_message_that_would_decompress_to_too_much_is_refused() {
    let (mut encoder, mut decoder) = direction(1);
    encoder.compress();
    decoder.decompress(Limits::of_messages(1000));
    let frame = sealed(&mut encoder, 1, &[0; 1001]);
    assert!(frame.len() < 200, "well compressed");
    let error = open(&mut decoder, &frame).unwrap_err();
    assert_eq!(error, Error::MessageSize { bytes: 1001, max: 1000 });
}

#[test]
fn what_peers_would_refuse_is_not_sent() {
    let (mut encoder, mut out) = (direction(1).0, Vec::new());
    let error = encoder.encode(0, &vec![0; MESSAGE_BYTES_MAX + 1], &mut out).unwrap_err();
    let expected = Error::MessageSize { bytes: MESSAGE_BYTES_MAX + 1, max: MESSAGE_BYTES_MAX };
    assert_eq!((error, out.len()), (expected, 0));
}

#[test]
fn content_that_is_not_compressed_is_refused_where_it_has_to_be() {
    let (mut encoder, mut decoder) = (direction(1).0, compressed(1).1);
    let frame = sealed(&mut encoder, 1, &[0xff; 20]);
    assert_eq!(open(&mut decoder, &frame), Err(Error::Decompress));
}

/// A peer that gives up before it has read the Hello does not know yet that messages are compressed.
#[test]
fn a_disconnect_is_understood_with_and_without_compression() {
    for reason in [DisconnectReason::Timeout, DisconnectReason::Requested] {
        for compress in [false, true] {
            let (mut encoder, mut decoder) = direction(1);
            if compress {
                encoder.compress();
            }
            decoder.decompress(Limits::of_messages(MESSAGE_BYTES_MAX));
            let frame = sealed(&mut encoder, DISCONNECT, &encode_disconnect(reason));
            let message = open(&mut decoder, &frame).unwrap();
            assert_eq!(decode_disconnect(&message.content), Ok(reason), "{compress}");
        }
    }
    let (mut encoder, mut decoder) = direction(1);
    decoder.decompress(Limits::of_messages(MESSAGE_BYTES_MAX));
    let frame = sealed(&mut encoder, DISCONNECT, &[0xc2, 0x0b, 0x0b]);
    assert_eq!(open(&mut decoder, &frame), Err(Error::Decompress), "longer than a reason");
}
