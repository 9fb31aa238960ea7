//! A build without CUDA uses no library for products.

pub struct Library {
    pub name: String,
    pub from: String,
}

pub fn library() -> Option<&'static Library> {
    None
}

pub fn obstacle() -> Option<&'static str> {
    None
}
