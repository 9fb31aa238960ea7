//! `wgpt get`: texts and models from the Hugging Face Hub, and files by their address.
//!
//! This folder alone opens connections, for `wgpt get` and the downloads of the window. Other commands find
//! what was fetched by its name, `hf:ORG/NAME`, with [`local`] and [`texts`], which read the cache.
//!
//! ```text
//! name     what was typed: a repository with a part, an address, hellaswag
//! address  which addresses are safe, and how they are shown
//! home     the folder and the variables of Hugging Face's own tools
//! client   requests: redirects, the token, retries
//! listing  the files of a repository, and which of them are fetched
//! cache    the folders that Hugging Face's own tools use
//! hash     the hashes that the Hub names files by
//! fetch    one file: continued, measured, verified
//! offer    what will be fetched, and where it goes
//! catalog  a short list of good texts and models
//! ```

mod address;
mod cache;
mod catalog;
mod client;
mod error;
mod fetch;
mod hash;
mod home;
mod listing;
mod name;
mod offer;

pub use cache::{local, texts};
pub use catalog::{CatalogRow, catalog};
pub use name::{Download, is_hub_name};
pub use offer::{Fetched, Offer, UNASKED};
