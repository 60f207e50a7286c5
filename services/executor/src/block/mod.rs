//! Execution of one block: the EVM and its environment, the rules of forks, requests and receipts.

pub mod access_list;
pub mod build;
pub mod collision;
pub mod constantinople;
pub mod dao;
pub mod evm;
pub mod execute;
pub mod fill;
pub mod followed;
pub mod receipts;
pub mod requests;
