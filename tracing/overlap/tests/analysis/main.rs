//! Readers, figures, comparison and renderers, through the crate's public functions.
#![allow(clippy::unwrap_used)]

mod clients;
mod common;
mod comparison;
mod critical_path;
mod doubts;
mod formats;
mod hand_counted;
mod properties;
mod robustness;
mod scale;
mod shapes;
mod what_if;
