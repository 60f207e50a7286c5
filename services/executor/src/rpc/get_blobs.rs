//! `engine_getBlobs` in its versions (execution-apis, `src/engine/cancun.md` and `osaka.md`).

use super::engine_types::unsupported_fork;
use alloy_primitives::B256;
use bytes::Bytes;
use std::sync::Arc;
use tandem_chain::Fork;
use tandem_http::Pieces;
use tandem_http::{Output, Streamed, to_result};
use tandem_http::{RpcError, code};
use tandem_proto::blob_validator::{BLOB_BYTES, CELLS, Proof, StoredBlob};
use tandem_proto::limits::GET_BLOBS_MAX;

/// Version of the method.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Version {
    /// `BlobAndProofV1`, `null` for each missing blob. Ends with Osaka.
    V1,
    /// `BlobAndProofV2`, and `null` as a whole if any blob is missing.
    V2,
    /// `BlobAndProofV2`, `null` for each missing blob.
    V3,
}

/// Ability of a version to answer while the head is on this fork.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Service {
    /// The version answers from the pool.
    Serves,
    /// The version answers `null`: blobs have no cell proofs yet ("otherwise unable to serve blob
    /// pool data").
    Unable,
}

impl Version {
    /// Returns whether this version serves on this fork.
    ///
    /// # Errors
    /// -38005 for V1 from Osaka on.
    pub(super) fn check_fork(self, fork: Fork) -> Result<Service, RpcError> {
        match self {
            Self::V1 if fork >= Fork::Osaka => Err(unsupported_fork("getBlobs", 1, Some(fork))),
            Self::V2 | Self::V3 if fork < Fork::Osaka => Ok(Service::Unable),
            _ => Ok(Service::Serves),
        }
    }

    /// Returns the answer for an unreadable pool: V1 treats all blobs as missing, the others answer
    /// `null`.
    pub(super) fn unable(self, asked: usize) -> Streamed {
        match self {
            Self::V1 => self.answer(vec![None; asked]),
            Self::V2 | Self::V3 => Ok(Output::Json(to_result(&())?)),
        }
    }

    /// Returns the answer with these blobs, which are in the order of the request.
    pub(super) fn answer(self, blobs: Vec<Option<Arc<StoredBlob>>>) -> Streamed {
        let found: Vec<_> = blobs.into_iter().map(|blob| self.item(blob?)).collect();
        if self == Self::V2 && found.iter().any(Option::is_none) {
            return self.unable(found.len());
        }
        Ok(Output::Pieces(pieces(found)))
    }

    /// Returns the blob with the proofs of this version, or `None` if it only has other proofs.
    fn item(self, blob: Arc<StoredBlob>) -> Option<Item> {
        let proofs = match self {
            Self::V1 => blob.proof.is_some().then_some(Proofs::Blob)?,
            Self::V2 | Self::V3 => {
                let cells = blob.cell_proofs.as_ref()?;
                (cells.len() == CELLS).then_some(Proofs::Cells)?
            }
        };
        (blob.blob.len() == BLOB_BYTES).then_some(Item { blob, proofs })
    }
}

/// Checks the number of requested blobs.
///
/// # Errors
/// -38004 for more than 128, the number that the specification requires to be served.
pub(super) fn check_count(hashes: &[B256]) -> Result<(), RpcError> {
    if hashes.len() <= GET_BLOBS_MAX {
        return Ok(());
    }
    let reason = format_args!("{} blobs, at most {GET_BLOBS_MAX}", hashes.len());
    Err(RpcError::engine(code::TOO_LARGE_REQUEST, reason))
}

/// Element of an answer, whose length is known before it is written.
pub(super) trait Element: Send + 'static {
    /// Returns the bytes of its JSON.
    fn byte_len(&self) -> usize;

    /// Appends its JSON.
    fn write(&self, out: &mut Vec<u8>);
}

#[derive(Clone, Copy)]
enum Proofs {
    Blob,
    Cells,
}

/// Element of the answer.
struct Item {
    blob: Arc<StoredBlob>,
    proofs: Proofs,
}

/// Bytes of a proof in JSON, with quotation marks and `0x`.
pub(super) const PROOF_LEN: usize = 2 * size_of::<Proof>() + 4;

impl Item {
    const BLOB: &[u8] = br#"{"blob":"0x"#;
    const PROOF: &[u8] = br#"","proof":"#;
    const PROOFS: &[u8] = br#"","proofs":["#;
}

impl Element for Item {
    fn byte_len(&self) -> usize {
        let blob = Self::BLOB.len() + 2 * BLOB_BYTES;
        match self.proofs {
            Proofs::Blob => blob + Self::PROOF.len() + PROOF_LEN + "}".len(),
            Proofs::Cells => blob + Self::PROOFS.len() + CELLS * (PROOF_LEN + 1) + "}".len(),
        }
    }

    fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(Self::BLOB);
        write_hex(&self.blob.blob, out);
        match self.proofs {
            Proofs::Blob => {
                out.extend_from_slice(Self::PROOF);
                self.blob.proof.iter().for_each(|proof| write_proof(proof, out));
            }
            Proofs::Cells => {
                out.extend_from_slice(Self::PROOFS);
                for (index, proof) in self.blob.cell_proofs.iter().flatten().enumerate() {
                    if index > 0 {
                        out.push(b',');
                    }
                    write_proof(proof, out);
                }
                out.push(b']');
            }
        }
        out.push(b'}');
    }
}

fn write_proof(proof: &Proof, out: &mut Vec<u8>) {
    write_data(proof, out);
}

/// Appends bytes as DATA with its quotation marks.
pub(super) fn write_data(bytes: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(b"\"0x");
    write_hex(bytes, out);
    out.push(b'"');
}

/// Appends the elements of an array of DATA, without its brackets.
pub(super) fn write_list<'a>(list: impl Iterator<Item = &'a [u8]>, out: &mut Vec<u8>) {
    for (index, bytes) in list.enumerate() {
        if index > 0 {
            out.push(b',');
        }
        write_data(bytes, out);
    }
}

fn write_hex(bytes: &[u8], out: &mut Vec<u8>) {
    let start = out.len();
    out.resize(start + 2 * bytes.len(), 0);
    // Fails only for an output of another length.
    if const_hex::encode_to_slice(bytes, &mut out[start..]).is_err() {
        out.truncate(start);
    }
}

const NULL: &[u8] = b"null";

/// Returns the array of the items, one piece for each.
pub(super) fn pieces<T: Element>(items: Vec<Option<T>>) -> Pieces {
    let len = |item: &Option<T>| item.as_ref().map_or(NULL.len(), T::byte_len) + 1;
    // A bracket or a comma before each item, and the bracket at the end.
    let total = items.iter().map(len).sum::<usize>().max(1) + 1;
    if items.is_empty() {
        return Pieces::new(total, std::iter::once(Bytes::from_static(b"[]")));
    }
    let last = items.len() - 1;
    let piece = move |(index, item): (usize, Option<T>)| {
        let mut out = Vec::with_capacity(len(&item) + 1);
        out.push(if index == 0 { b'[' } else { b',' });
        match item {
            Some(item) => item.write(&mut out),
            None => out.extend_from_slice(NULL),
        }
        if index == last {
            out.push(b']');
        }
        Bytes::from(out)
    };
    Pieces::new(total, items.into_iter().enumerate().map(piece))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn stored(byte: u8, blob_proof: bool, cell_proofs: bool) -> Option<Arc<StoredBlob>> {
        Some(Arc::new(StoredBlob {
            blob: vec![byte; BLOB_BYTES].into(),
            commitment: [byte; 48],
            proof: blob_proof.then_some([byte; 48]),
            cell_proofs: cell_proofs
                .then(|| (0..CELLS).map(|cell| [byte.wrapping_add(cell as u8); 48]).collect()),
        }))
    }

    fn answer(version: Version, blobs: Vec<Option<Arc<StoredBlob>>>) -> Value {
        let json = match version.answer(blobs).unwrap() {
            Output::Json(json) => json,
            Output::Pieces(pieces) => {
                let len = pieces.byte_len();
                let json = pieces.collect().unwrap();
                assert_eq!(json.get().len(), len, "the length announced is the one sent");
                json
            }
        };
        serde_json::from_str(json.get()).unwrap()
    }

    fn hex(byte: u8, len: usize) -> String {
        format!("0x{}", format!("{byte:02x}").repeat(len))
    }

    fn v1(byte: u8) -> Value {
        json!({"blob": hex(byte, BLOB_BYTES), "proof": hex(byte, 48)})
    }

    fn v2(byte: u8) -> Value {
        let proofs: Vec<_> =
            (0..CELLS).map(|cell| hex(byte.wrapping_add(cell as u8), 48)).collect();
        json!({"blob": hex(byte, BLOB_BYTES), "proofs": proofs})
    }

    #[test]
    fn each_version_has_its_proofs_and_its_way_to_say_that_one_is_missing() {
        let both = |byte| stored(byte, true, true);
        let all = || vec![both(1), both(2), both(1)];
        assert_eq!(answer(Version::V1, all()), json!([v1(1), v1(2), v1(1)]));
        for version in [Version::V2, Version::V3] {
            assert_eq!(answer(version, all()), json!([v2(1), v2(2), v2(1)]));
        }
        let some = || vec![both(1), None, both(2)];
        assert_eq!(answer(Version::V1, some()), json!([v1(1), null, v1(2)]));
        assert_eq!(answer(Version::V2, some()), Value::Null);
        assert_eq!(answer(Version::V3, some()), json!([v2(1), null, v2(2)]));
        let none = || vec![None, None];
        assert_eq!(answer(Version::V1, none()), json!([null, null]));
        assert_eq!(answer(Version::V2, none()), Value::Null);
        assert_eq!(answer(Version::V3, none()), json!([null, null]));
        for version in [Version::V1, Version::V2, Version::V3] {
            assert_eq!(answer(version, Vec::new()), json!([]));
        }
    }

    /// osaka.md, `engine_getBlobsV2`, point 2: a blob with another version's proofs is missing.
    #[test]
    fn a_blob_with_the_other_proofs_alone_is_missing() {
        let (old, new) = (|| stored(1, true, false), || stored(2, false, true));
        assert_eq!(answer(Version::V1, vec![old(), new()]), json!([v1(1), null]));
        assert_eq!(answer(Version::V2, vec![old()]), Value::Null);
        assert_eq!(answer(Version::V2, vec![new()]), json!([v2(2)]));
        assert_eq!(answer(Version::V3, vec![old(), new()]), json!([null, v2(2)]));
    }

    #[test]
    fn the_fork_at_the_head_decides_who_serves() {
        for fork in Fork::MERGED {
            let osaka = fork >= Fork::Osaka;
            let v1 = Version::V1.check_fork(fork).map_err(|error| error.code);
            let want = if osaka { Err(code::UNSUPPORTED_FORK) } else { Ok(Service::Serves) };
            assert_eq!(v1, want, "{fork}");
            for version in [Version::V2, Version::V3] {
                let want = if osaka { Service::Serves } else { Service::Unable };
                assert_eq!(version.check_fork(fork).unwrap(), want, "{fork}");
                let Output::Json(null) = version.unable(2).unwrap() else { panic!("no null") };
                assert_eq!(null.get(), "null");
            }
        }
        assert_eq!(check_count(&[B256::ZERO; GET_BLOBS_MAX]).map_err(|_| ()), Ok(()));
        let error = check_count(&[B256::ZERO; GET_BLOBS_MAX + 1]).unwrap_err();
        assert_eq!(error.code, code::TOO_LARGE_REQUEST);
    }
}
