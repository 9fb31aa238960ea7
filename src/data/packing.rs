//! Windows of a split: the inputs of a sequence and their targets.
//!
//! A split of text has a window at every token. A split of conversations has windows of whole
//! conversations in the order of the file: as many as fit, then padding. No window begins or ends within a
//! conversation, unless the conversation is longer than a window; then we keep its end. Attention also sees
//! the earlier conversations of a window. To hide them, every attention kernel would need a mask. A model
//! learns to ignore them, because special tokens mark where each one begins and ends.

use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use super::windows::{eval_starts, train_start};
use super::{ChatTemplate, DataError, Split};

/// Tokens that are read at a time in search of conversations.
const SEARCHED: usize = 1 << 16;

#[derive(Debug)]
pub(super) struct Conversations {
    template: ChatTemplate,
    /// The first token of each, and the end of the split.
    bounds: Vec<u64>,
    /// The windows of the last request.
    packed: Mutex<Option<Arc<Packing>>>,
}

impl Conversations {
    pub fn find(split: &Split, name: &str, template: ChatTemplate) -> Result<Self, DataError> {
        let mut bounds = Vec::new();
        for from in (0..split.len()).step_by(SEARCHED) {
            let ids = split.window(from, SEARCHED.min((split.len() - from) as usize))?;
            let begins = (from..).zip(ids).filter(|(_, id)| *id == template.begin);
            bounds.extend(begins.map(|(at, _)| at));
        }
        if bounds.first() != Some(&0) {
            let problem = format!("{name} does not begin with a conversation");
            return Err(DataError::bad(
                problem,
                "the file was replaced: prepare the data again with --force",
            ));
        }
        bounds.push(split.len());
        Ok(Self { template, bounds, packed: Mutex::new(None) })
    }

    fn pack(&self, block_size: u64) -> Arc<Packing> {
        // The content is valid even if a thread has panicked.
        let mut packed = self.packed.lock().unwrap_or_else(PoisonError::into_inner);
        packed.take_if(|packing| packing.block_size != block_size);
        // No window begins with the token that separates conversations.
        let separator = u64::from(self.template.is_separated());
        packed
            .get_or_insert_with(|| Packing::new(&self.bounds, separator, block_size).into())
            .clone()
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packing {
    block_size: u64,
    separator: u64,
    /// The tokens of the conversations in each window.
    windows: Vec<Range<u64>>,
    pub conversations: u64,
    /// The number of conversations that are longer than a window and lose their first tokens.
    pub cut: u64,
}

impl Packing {
    /// Packs the conversations between `bounds` in their order, each into the window of the one before
    /// if it fits.
    fn new(bounds: &[u64], separator: u64, block_size: u64) -> Self {
        // The last token of a window is only a target.
        let room = block_size.saturating_add(1 + separator);
        let mut windows: Vec<Range<u64>> = Vec::new();
        let mut cut = 0;
        for pair in bounds.windows(2) {
            let start = pair[0];
            let end = pair[1];
            cut += u64::from(end - start > room);
            match windows.last_mut() {
                Some(last) if end - last.start <= room => last.end = end,
                _ => windows.push(start..end),
            }
        }
        Self {
            block_size,
            separator,
            windows,
            conversations: bounds.len().saturating_sub(1) as u64,
            cut,
        }
    }

    /// Returns the share of positions that no conversation fills.
    pub fn padding(&self) -> f64 {
        let filled = |window: &Range<u64>| {
            let tokens = (window.end - window.start).saturating_sub(1 + self.separator);
            tokens.min(self.block_size)
        };
        let filled: u64 = self.windows.iter().map(filled).sum();
        1.0 - filled as f64 / (self.windows.len() as f64 * self.block_size as f64).max(1.0)
    }
}

#[derive(Debug)]
pub struct Windows<'a> {
    split: &'a Split,
    block_size: u64,
    packed: Option<(&'a ChatTemplate, Arc<Packing>)>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Window {
    /// The inputs, as many as a block has.
    pub tokens: Vec<u32>,
    /// The token after each token; `None` where it does not count in the loss.
    pub targets: Vec<Option<u32>>,
}

impl Split {
    pub fn windows(&self, block_size: usize) -> Windows<'_> {
        let block_size = block_size as u64;
        let packed = self.conversations.as_ref();
        let packed = packed.map(|found| (&found.template, found.pack(block_size)));
        Windows { split: self, block_size, packed }
    }

    /// Reads a conversation; `None` after the last one, and for text.
    pub fn conversation(&self, conversation: usize) -> Result<Option<Vec<u32>>, DataError> {
        let Some(Conversations { template, bounds, .. }) = &self.conversations else {
            return Ok(None);
        };
        let Some(&[from, to]) = bounds.get(conversation..).and_then(|rest| rest.first_chunk())
        else {
            return Ok(None);
        };
        let mut ids = self.window(from, (to - from) as usize)?;
        ids.drain(..usize::from(template.is_separated()));
        Ok(Some(ids))
    }

    /// Reads the prompt for the first answer of a conversation; `None` after the last one, and for text.
    pub fn first_prompt(&self, conversation: usize) -> Result<Option<Vec<u32>>, DataError> {
        let (Some(found), Some(mut ids)) = (&self.conversations, self.conversation(conversation)?)
        else {
            return Ok(None);
        };
        let answer = found.template.counted(&ids).iter().position(|counts| *counts);
        ids.truncate(answer.unwrap_or(0));
        Ok(Some(ids))
    }

    /// Returns true if the loss counts only what the assistant says.
    pub fn has_conversations(&self) -> bool {
        self.conversations.is_some()
    }
}

impl Windows<'_> {
    /// Returns how conversations are packed; `None` for text.
    pub fn packing(&self) -> Option<&Packing> {
        self.packed.as_ref().map(|(_, packing)| &**packing)
    }

    /// Returns the tokens of the training window for sequence `sequence` of the global batch in step
    /// `step`. Windows are drawn independently and uniformly.
    pub fn training(&self, seed: u64, step: u64, sequence: u64) -> Range<u64> {
        let draw = |tokens, block_size| train_start([seed, step, sequence], tokens, block_size);
        match self.packing() {
            Some(Packing { windows, .. }) => {
                windows[draw(windows.len() as u64, 0) as usize].clone()
            }
            None => self.at(draw(self.split.len(), self.block_size)),
        }
    }

    /// Returns the tokens of up to `wanted` evaluation windows, evenly spread over the split and
    /// always the same.
    pub fn evaluation(&self, wanted: u64) -> Vec<Range<u64>> {
        let spread = |tokens, block_size| eval_starts(tokens, block_size, wanted).into_iter();
        match self.packing() {
            Some(Packing { windows, .. }) => {
                let chosen = spread(windows.len() as u64 + 1, 1);
                chosen.map(|index| windows[index as usize].clone()).collect()
            }
            None => {
                let starts = spread(self.split.len(), self.block_size);
                starts.map(|start| self.at(start)).collect()
            }
        }
    }

    /// Returns the tokens of a window of text, with the target after the last.
    fn at(&self, start: u64) -> Range<u64> {
        start..start.saturating_add(self.block_size).saturating_add(1)
    }

    pub fn read(&self, tokens: Range<u64>) -> Result<Window, DataError> {
        let block_size = self.block_size as usize;
        let Some((template, packing)) = &self.packed else {
            let ids = self.split.window(tokens.start, (tokens.end - tokens.start) as usize)?;
            let targets = ids.iter().skip(1).copied().map(Some).collect();
            return Ok(Window { tokens: ids.into_iter().take(block_size).collect(), targets });
        };
        let start = tokens.start + packing.separator;
        let mut ids = self.split.window(start, (tokens.end - start) as usize)?;
        let counted = template.counted(&ids);
        let target = |(&id, counts): (&u32, bool)| counts.then_some(id);
        let mut targets: Vec<_> = ids.iter().zip(counted).skip(1).map(target).collect();
        // A conversation that is too long keeps its end.
        targets.drain(..targets.len().saturating_sub(block_size));
        ids.pop();
        ids.drain(..ids.len().saturating_sub(block_size));
        ids.resize(block_size, template.begin);
        targets.resize(block_size, None);
        Ok(Window { tokens: ids, targets })
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{assert_says, characters};
    use super::super::{Message, Role};
    use super::*;
    use proptest::prelude::*;

    fn template() -> ChatTemplate {
        ChatTemplate::new(characters("ab").base().clone())
    }

    /// Returns a split of conversations in which the assistant says `a` so often.
    fn split(answers: &[usize]) -> Split {
        let template = template();
        let conversation = |&answer: &usize| {
            let answer = Message::new(Role::Assistant, "a".repeat(answer));
            template.conversation(&[Message::new(Role::User, "b"), answer]).unwrap()
        };
        let tokens = answers.iter().flat_map(conversation).collect();
        let split = Split::from_memory(tokens, template.vocab_size);
        split.with_conversations("train.bin", Some(&template)).unwrap()
    }

    #[test]
    fn windows_have_whole_conversations() {
        // Each has six tokens and its answer.
        let split = split(&[1, 2, 3, 1]);
        let windows = split.windows(15);
        let packing = windows.packing().unwrap();
        assert_eq!(packing.windows, [0..15, 15..31]);
        assert_eq!((packing.conversations, packing.cut), (4, 0));
        assert!((packing.padding() - 1.0 / 30.0).abs() < 1e-12, "{}", packing.padding());
        let Window { tokens, targets } = windows.read(0..15).unwrap();
        // Begin is 2, user 4, assistant 5, end 6.
        assert_eq!(tokens, [2, 4, 1, 6, 5, 0, 6, 2, 4, 1, 6, 5, 0, 0, 2]);
        let counted = |targets: &[Option<u32>]| -> Vec<(usize, u32)> {
            let targets = targets.iter().enumerate();
            targets.filter_map(|(at, target)| Some((at, (*target)?))).collect()
        };
        assert_eq!(counted(&targets), [(4, 0), (5, 6), (11, 0), (12, 0), (13, 6)]);
        assert_eq!(targets.len(), 15);
        // Another block size packs anew, and the first one is the same again.
        assert_eq!(split.windows(6).packing().unwrap().windows.len(), 4);
        assert_eq!(split.windows(15).packing(), Some(packing));
    }

    #[test]
    fn a_long_conversation_loses_its_first_tokens() {
        let split = split(&[1, 9, 1]);
        let windows = split.windows(7);
        let packing = windows.packing().unwrap();
        assert_eq!((&packing.windows[..], packing.cut), (&[0..7, 7..22, 22..29][..], 1));
        let Window { tokens, targets } = windows.read(7..22).unwrap();
        assert_eq!(tokens, [0; 7]);
        // All of it was said by the assistant, whose token is cut.
        let end = template().end;
        assert_eq!(targets, [[Some(0); 6].as_slice(), &[Some(end)]].concat());
        let split = Split::from_memory(vec![0, 1, 2, 4], 7);
        assert_says(split.with_conversations("val.bin", Some(&template())).unwrap_err(), "val.bin");
    }

    #[test]
    fn training_and_evaluation_choose_packed_windows() {
        let split = split(&[1; 50]);
        let windows = split.windows(15);
        let all = &windows.packing().unwrap().windows;
        assert_eq!(all.len(), 25);
        let drawn: std::collections::HashSet<_> =
            (0..200).map(|step| windows.training(1, step, 3)).collect();
        assert_eq!(drawn, all.iter().cloned().collect());
        assert_eq!(windows.evaluation(u64::MAX), *all);
        let few = windows.evaluation(5);
        assert_eq!(few, [0, 5, 10, 15, 20].map(|index: usize| all[index].clone()));
    }

    #[test]
    fn text_has_windows_everywhere() {
        let split = Split::from_memory((0..100).collect(), 100);
        let windows = split.windows(4);
        assert!(windows.packing().is_none());
        let window = windows.read(windows.training(1, 2, 3)).unwrap();
        let first = window.tokens[0];
        assert_eq!(window.tokens, [first, first + 1, first + 2, first + 3]);
        assert_eq!(window.targets, [1, 2, 3, 4].map(|after| Some(first + after)));
        assert_eq!(windows.evaluation(3).len(), 3);
    }

    proptest! {
        #[test]
        fn each_conversation_is_in_one_window(
            answers in prop::collection::vec(0_usize..30, 1..40), block_size in 1_usize..60,
        ) {
            let split = split(&answers);
            let windows = split.windows(block_size);
            let packing = windows.packing().unwrap();
            let mut counted = 0;
            let mut next = 0;
            for window in &packing.windows {
                prop_assert_eq!(window.start, next);
                next = window.end;
                let Window { tokens, targets } = windows.read(window.clone()).unwrap();
                prop_assert_eq!((tokens.len(), targets.len()), (block_size, block_size));
                // Something to learn in each.
                let here = targets.iter().flatten().count();
                prop_assert!(here > 0);
                counted += here;
            }
            prop_assert_eq!(next, split.len());
            let room = block_size + 1;
            let long = answers.iter().filter(|&&answer| answer + 6 > room).count();
            prop_assert_eq!(packing.cut, long as u64);
            // A window can hold this many targets of the answer and its end.
            let expected: usize = answers.iter().map(|answer| (answer + 1).min(block_size)).sum();
            prop_assert_eq!(counted, expected);
        }
    }
}
