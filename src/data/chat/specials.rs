//! Special tokens in text that a chat template has rendered.

use std::borrow::Cow;

use fancy_regex::{Regex, escape};

use super::Message;

/// A part of a conversation: text that is tokenized separately, and the special token after it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Span<'a> {
    pub text: Cow<'a, str>,
    pub after: Option<u32>,
}

/// The special tokens of a vocabulary, to find them in text.
#[derive(Clone, Debug)]
pub struct Specials {
    tokens: Vec<(u32, String)>,
    pattern: Regex,
}

/// Messages in which private-use characters replace the special tokens that their text spells.
pub struct Hidden<'a> {
    pub messages: Cow<'a, [Message]>,
    /// One for each token, in their order; none if no text spells one.
    stand_ins: Vec<char>,
}

impl<'a> Hidden<'a> {
    /// Returns messages that spell no special token.
    pub fn none(messages: &'a [Message]) -> Self {
        Self { messages: messages.into(), stand_ins: Vec::new() }
    }
}

impl Specials {
    pub fn new(mut tokens: Vec<(u32, String)>) -> Result<Self, String> {
        // The first alternative that matches wins, so the longest token comes first.
        tokens.sort_by_key(|(_, name)| std::cmp::Reverse(name.len()));
        let names: Vec<_> = tokens.iter().map(|(_, name)| escape(name)).collect();
        let pattern = Regex::new(&names.join("|"));
        let pattern = pattern.map_err(|error| format!("its tokens cannot be found: {error}"))?;
        Ok(Self { tokens, pattern })
    }

    /// Returns the position of the first special token in text.
    pub fn first_in(&self, text: &str) -> Option<usize> {
        let found = self.pattern.find(text).ok().flatten()?;
        (!found.as_str().is_empty()).then(|| found.start())
    }

    /// Replaces the special tokens that messages spell, so that they remain text in a template.
    pub fn hide<'a>(&self, messages: &'a [Message]) -> Result<Hidden<'a>, String> {
        let spells = |message: &Message| self.pattern.is_match(&message.content).unwrap_or(true);
        if !messages.iter().any(spells) {
            return Ok(Hidden::none(messages));
        }
        let private: Vec<char> = ('\u{f0000}'..='\u{ffffd}').collect();
        let is_free = |block: &&[char]| messages.iter().all(|m| !m.content.contains(*block));
        let stand_ins = private.chunks_exact(self.tokens.len().max(1)).find(is_free);
        let stand_ins = stand_ins.ok_or("a message uses too many private-use characters")?;
        let hide = |message: &Message| {
            let mut content = message.content.clone();
            for ((_, name), stand_in) in self.tokens.iter().zip(stand_ins) {
                content = content.replace(name, &stand_in.to_string());
            }
            Message { content, ..*message }
        };
        let messages: Vec<_> = messages.iter().map(hide).collect();
        Ok(Hidden { messages: messages.into(), stand_ins: stand_ins.to_vec() })
    }

    /// Splits rendered text at its special tokens, and restores what was hidden.
    pub fn split(
        &self,
        text: &str,
        hidden: &Hidden<'_>,
        spans: &mut Vec<Span<'static>>,
    ) -> Result<(), String> {
        let reveal = |text: &str| {
            let mut text = text.to_owned();
            for ((_, name), stand_in) in self.tokens.iter().zip(&hidden.stand_ins) {
                text = text.replace(*stand_in, name);
            }
            Cow::Owned(text)
        };
        let mut start = 0;
        for found in self.pattern.find_iter(text) {
            let found = found.map_err(|error| format!("its tokens cannot be found: {error}"))?;
            let token = self.tokens.iter().find(|(_, name)| name == found.as_str());
            spans.push(Span {
                text: reveal(&text[start..found.start()]),
                after: token.map(|(id, _)| *id),
            });
            start = found.end();
        }
        if start < text.len() {
            spans.push(Span { text: reveal(&text[start..]), after: None });
        }
        Ok(())
    }
}
