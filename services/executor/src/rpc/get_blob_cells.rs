//! `engine_getBlobsV4`: single cells of blobs (execution-apis, `src/engine/amsterdam.md`).

use super::get_blobs::{Element, PROOF_LEN, pieces, write_list};
use super::hex::Hex;
use alloy_primitives::FixedBytes;
use serde::{Deserialize, Deserializer};
use std::sync::Arc;
use tandem_http::{Output, Streamed, off_reactor};
use tandem_kzg::{CELL_BYTES, select_cells};
use tandem_proto::blob_validator::{CELLS, CellSet, Proof, StoredBlob};

/// Cells that a caller asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct CellIndices(CellSet);

impl<'de> Deserialize<'de> for CellIndices {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let Hex(bits) = Hex::<FixedBytes<{ CELLS / 8 }>>::deserialize(deserializer)?;
        Ok(Self(CellSet(bits.0)))
    }
}

/// `BlobCellsAndProofsV1`. No cell is missing, because the blobs are kept as a whole.
#[derive(PartialEq, Eq, Debug)]
struct CellsAndProofs {
    cells: Vec<u8>,
    proofs: Vec<Proof>,
}

/// Bytes of a cell in JSON, with quotation marks and `0x`.
const CELL_LEN: usize = 2 * CELL_BYTES + 4;

impl CellsAndProofs {
    const CELLS: &[u8] = br#"{"blob_cells":["#;
    const PROOFS: &[u8] = br#"],"proofs":["#;
    const END: &[u8] = b"]}";

    /// Returns the cells of a blob with their proofs, or `None` if the blob only has the proof of
    /// an older fork.
    fn of(blob: &StoredBlob, indices: CellIndices) -> Option<Self> {
        let proofs = blob.cell_proofs.as_ref().filter(|proofs| proofs.len() == CELLS)?;
        let indices: Vec<usize> = indices.0.iter().collect();
        let cells = select_cells(&blob.blob, &indices).ok()?;
        Some(Self { cells, proofs: indices.iter().map(|index| proofs[*index]).collect() })
    }
}

impl Element for CellsAndProofs {
    fn byte_len(&self) -> usize {
        let count = self.proofs.len();
        let commas = 2 * count.saturating_sub(1);
        let frame = Self::CELLS.len() + Self::PROOFS.len() + Self::END.len();
        frame + commas + count * (CELL_LEN + PROOF_LEN)
    }

    fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(Self::CELLS);
        write_list(self.cells.chunks(CELL_BYTES), out);
        out.extend_from_slice(Self::PROOFS);
        write_list(self.proofs.iter().map(<[u8; 48]>::as_slice), out);
        out.extend_from_slice(Self::END);
    }
}

/// Returns the answer with the cells of these blobs, which are in the order of the request.
/// Extending a blob takes milliseconds, so it does not happen on the reactor.
pub(super) async fn answer(blobs: Vec<Option<Arc<StoredBlob>>>, indices: CellIndices) -> Streamed {
    let found = off_reactor(move || {
        let cells = |blob: Arc<StoredBlob>| CellsAndProofs::of(&blob, indices);
        Ok(blobs.into_iter().map(|blob| blob.and_then(cells)).collect::<Vec<_>>())
    });
    Ok(Output::Pieces(pieces(found.await?)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};
    use tandem_kzg::Setup;
    use tandem_proto::blob_validator::BLOB_BYTES;

    fn indices(cells: &[usize]) -> CellIndices {
        let mut bits = [0; CELLS / 8];
        cells.iter().for_each(|cell| bits[cell / 8] |= 1 << (cell % 8));
        serde_json::from_value(json!(FixedBytes::from(bits))).unwrap()
    }

    /// Returns a blob that differs in each field element, with a made-up proof for each cell.
    fn stored() -> StoredBlob {
        let elements = (0..BLOB_BYTES / 32).flat_map(|element| {
            let mut bytes = [0; 32];
            bytes[28..].copy_from_slice(&(element as u32).to_be_bytes());
            bytes
        });
        StoredBlob {
            blob: elements.collect::<Vec<_>>().into(),
            commitment: [1; 48],
            proof: None,
            cell_proofs: Some((0..CELLS).map(|cell| [cell as u8; 48]).collect()),
        }
    }

    #[test]
    fn the_cells_asked_for_come_with_their_proofs() {
        let blob = stored();
        let all = Setup::load().cells(&blob.blob).unwrap();
        for asked in [vec![0, 7, 8, 63], vec![63, 64, 127], vec![], (0..CELLS).collect()] {
            let found = CellsAndProofs::of(&blob, indices(&asked)).unwrap();
            let want: Vec<_> = asked.iter().map(|cell| Some(all[*cell])).collect();
            let (cells, _) = found.cells.as_chunks::<CELL_BYTES>();
            assert_eq!(cells.iter().copied().map(Some).collect::<Vec<_>>(), want);
            let mut text = Vec::new();
            found.write(&mut text);
            assert_eq!(text.len(), found.byte_len(), "the length announced is the one sent");
            let json: Value = serde_json::from_slice(&text).unwrap();
            let proofs: Vec<_> = asked
                .iter()
                .map(|cell| format!("0x{}", format!("{cell:02x}").repeat(48)))
                .collect();
            assert_eq!(json["proofs"], json!(proofs));
            assert_eq!(json["blob_cells"].as_array().unwrap().len(), asked.len());
            assert_eq!(json.as_object().unwrap().len(), 2);
        }
    }

    #[test]
    fn a_blob_without_proofs_of_cells_is_missing() {
        let blob = StoredBlob { cell_proofs: None, proof: Some([2; 48]), ..stored() };
        assert_eq!(CellsAndProofs::of(&blob, indices(&[1])), None);
    }

    #[test]
    fn indices_are_sixteen_bytes() {
        for wrong in [json!("0x"), json!(format!("0x{}", "f0".repeat(15))), json!(7), json!("ff")] {
            assert!(serde_json::from_value::<CellIndices>(wrong.clone()).is_err(), "{wrong}");
        }
        let bits = format!("0x01{}80", "00".repeat(14));
        let parsed: CellIndices = serde_json::from_value(json!(bits)).unwrap();
        assert_eq!(parsed.0.iter().collect::<Vec<_>>(), [0, 127]);
    }
}
