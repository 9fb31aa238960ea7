//! `wgpt get`: text and models from the Hugging Face Hub, and files by their URL.
//!
//! Only this folder opens connections, for `wgpt get` and the window's downloads. Other commands look up
//! `hf:ORG/NAME` in the cache, with [`local`] and [`texts`].
//!
//! ```text
//! name     what was typed: a repository and a part of it, a URL, hellaswag
//! address  which URLs are safe, and how they are shown
//! home     the folder and the variables of Hugging Face's own tools
//! client   requests: redirects, the token, retries
//! listing  the files of a repository, and which of them are fetched
//! cache    the folders that Hugging Face's own tools use
//! hash     the hashes that the Hub names files by
//! fetch    one file: continued, measured, verified
//! offer    what will be fetched, and where it goes
//! catalog  a short list of good data sets and models
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
pub use catalog::{CatalogRow, catalog, preset_of};
pub use name::{Download, is_hub_name};
pub use offer::{Fetched, Offer, UNASKED};
