use crate::PointFault;
use blst::{BLST_ERROR, min_pk::PublicKey};

/// Checks that the bytes are a point of G1, which includes infinity (EIP-4844, `validate_kzg_g1`).
///
/// The KZG library makes the same check but only reports that some argument is bad. This function
/// names the bad point afterwards. (A public key of the scheme "minimal pubkey size" is a point of
/// G1.)
pub fn check(bytes: &[u8; 48]) -> Result<(), PointFault> {
    let point = match PublicKey::uncompress(bytes) {
        Ok(point) => point,
        Err(BLST_ERROR::BLST_POINT_NOT_ON_CURVE) => return Err(PointFault::NotOnCurve),
        Err(_) => return Err(PointFault::Encoding),
    };
    match point.validate() {
        Ok(()) | Err(BLST_ERROR::BLST_PK_IS_INFINITY) => Ok(()),
        Err(_) => Err(PointFault::NotInSubgroup),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_way_to_be_no_point_has_its_name() {
        let mut infinity = [0; 48];
        infinity[0] = 0xc0;
        assert_eq!(check(&infinity), Ok(()));
        assert_eq!(check(&[0; 48]), Err(PointFault::Encoding), "not marked as compressed");
        assert_eq!(check(&[0xff; 48]), Err(PointFault::Encoding));
        // Every x for which x³ + 4 is a square gives a point; few of these points are in G1.
        let small_x = |x| {
            let mut bytes = [0; 48];
            (bytes[0], bytes[47]) = (0x80, x);
            check(&bytes)
        };
        let faults: Vec<_> = (1..40).map(small_x).collect();
        assert!(faults.contains(&Err(PointFault::NotOnCurve)));
        assert!(faults.contains(&Err(PointFault::NotInSubgroup)));
    }
}
