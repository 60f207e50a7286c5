//! Benches of what this project writes beside other implementations of the same. They stand apart, so that no
//! test waits until the others have compiled.
#![forbid(unsafe_code)]
