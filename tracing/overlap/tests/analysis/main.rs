//! Readers, figures, comparison and renderers, through the crate's public functions.
#![allow(clippy::unwrap_used)]

mod common;
mod comparison;
mod doubts;
mod formats;
mod hand_counted;
mod properties;
mod robustness;
mod scale;
mod shapes;
mod what_if;
