//! The messages of a conversation.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Instructions for the whole conversation.
    System,
    User,
    Assistant,
}

impl Role {
    /// Every role, in the order of the ids of their tokens.
    pub const ALL: [Self; 3] = [Self::System, Self::User, Self::Assistant];

    /// Returns the text of the token that opens a message of this role.
    pub fn token(self) -> &'static str {
        ["<|system|>", "<|user|>", "<|assistant|>"][self as usize]
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

impl FromStr for Role {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        Self::ALL
            .into_iter()
            .find(|role| role.to_string() == name)
            .ok_or_else(|| format!("unknown role {name:?}, expected system, user or assistant"))
    }
}

/// A message of a conversation, as in the common `messages` form of `.jsonl` files.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Message {
    pub role: Role,
    /// Its text, in which nothing is special.
    pub content: String,
}

impl Message {
    pub fn new(role: Role, content: impl Into<String>) -> Self {
        Self { role, content: content.into() }
    }
}
