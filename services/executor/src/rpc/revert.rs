//! Reasons of reverted calls, as Solidity encodes them.

use alloy_primitives::{Bytes, U256};
use tandem_http::{RpcError, code};

/// Selector of `Error(string)`.
const ERROR: [u8; 4] = [0x08, 0xc3, 0x79, 0xa0];
/// Selector of `Panic(uint256)`.
const PANIC: [u8; 4] = [0x4e, 0x48, 0x7b, 0x71];

/// Returns the error object of a reverted `eth_call`. It has code 3, the reason in the message, if
/// any, and the returned bytes as data. Callers match on the wording, which is geth's.
pub(super) fn revert_error(output: &Bytes) -> RpcError {
    let message = match reason(output) {
        Some(reason) => format!("execution reverted: {reason}"),
        None => "execution reverted".to_owned(),
    };
    RpcError::new(code::EXECUTION_REVERTED, message).with_data(output)
}

fn reason(output: &[u8]) -> Option<String> {
    let (&selector, arguments) = output.split_first_chunk::<4>()?;
    match selector {
        ERROR => error_string(arguments),
        PANIC => Some(panic_reason(U256::from_be_slice(arguments.get(..32)?))),
        _ => None,
    }
}

/// Returns the string of ABI-encoded arguments: an offset, and at the offset its length and bytes.
fn error_string(arguments: &[u8]) -> Option<String> {
    let offset = usize::try_from(U256::from_be_slice(arguments.get(..32)?)).ok()?;
    let tail = arguments.get(offset..)?;
    let length = usize::try_from(U256::from_be_slice(tail.get(..32)?)).ok()?;
    let text = tail.get(32..)?.get(..length)?;
    Some(String::from_utf8_lossy(text).into_owned())
}

/// Returns the meaning of a Solidity panic code (Solidity manual, section on panics).
fn panic_reason(panic: U256) -> String {
    let reason = match u64::try_from(panic) {
        Ok(0x00) => "generic panic",
        Ok(0x01) => "assert(false)",
        Ok(0x11) => "arithmetic underflow or overflow",
        Ok(0x12) => "division or modulo by zero",
        Ok(0x21) => "enum overflow",
        Ok(0x22) => "invalid encoded storage byte array accessed",
        Ok(0x31) => "out-of-bounds array access; popping on an empty array",
        Ok(0x32) => "out-of-bounds access of an array or bytesN",
        Ok(0x41) => "out of memory",
        Ok(0x51) => "uninitialized function",
        _ => return format!("unknown panic code: {panic:#x}"),
    };
    reason.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(hex: &str) -> String {
        let output: Bytes = hex.parse().unwrap();
        let error = revert_error(&output);
        assert_eq!(error.code, 3);
        assert_eq!(error.data.unwrap().get(), format!("\"{output}\""));
        error.message.into_owned()
    }

    fn word(number: u64) -> String {
        format!("{number:064x}")
    }

    #[test]
    fn reasons_are_decoded() {
        assert_eq!(message(&format!("0x4e487b71{}", word(1))), "execution reverted: assert(false)");
        assert_eq!(
            message(&format!("0x4e487b71{}", word(0x99))),
            "execution reverted: unknown panic code: 0x99"
        );
        let text =
            format!("0x08c379a0{}{}75736572206572726f72{}", word(32), word(10), "00".repeat(22));
        assert_eq!(message(&text), "execution reverted: user error");
    }

    #[test]
    fn what_is_no_reason_reverts_without_one() {
        let endless = format!("0x08c379a0{}{}", word(32), "f".repeat(64));
        let far = format!("0x08c379a0{}", "f".repeat(64));
        for output in ["0x", "0x08c379", "0x08c379a0", "0x4e487b7100", "0xdeadbeef", &endless, &far]
        {
            assert_eq!(message(output), "execution reverted", "{output}");
        }
    }
}
