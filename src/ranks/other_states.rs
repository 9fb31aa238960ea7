//! Sends the states of a sharded optimizer to rank 0, which writes them to a checkpoint.
//!
//! Rank 0 asks for one piece after the other and writes each before it asks for the next. So it holds one
//! piece of other ranks at a time, and can end at any moment, for example when its disk is full.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use super::sharding::overlaps;
use super::{Group, RanksError};
use crate::model::{Parameter, STAGED_ELEMENTS, values};

/// A part of a tensor that rank 0 asks for.
#[derive(Debug, Serialize, Deserialize)]
struct StatePiece {
    name: String,
    first: usize,
    /// At most [`STAGED_ELEMENTS`].
    elements: usize,
}

/// The states of the other ranks, on rank 0. Each other rank must [`send`] its own.
pub struct OtherStates<'a> {
    /// `None` if this rank has all states, or if another one has not answered.
    pub group: Option<&'a mut Group>,
}

impl OtherStates<'_> {
    /// Reads the first `elements` of a tensor piece by piece: calls `write` with their bytes.
    pub fn read<E: From<RanksError>>(
        &mut self,
        name: &str,
        elements: usize,
        mut write: impl FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        for first in (0..elements).step_by(STAGED_ELEMENTS) {
            let elements = STAGED_ELEMENTS.min(elements - first);
            let bytes = self.piece(StatePiece { name: name.to_string(), first, elements })?;
            write(&bytes)?;
        }
        Ok(())
    }

    fn piece(&mut self, piece: StatePiece) -> Result<Vec<u8>, RanksError> {
        let missing = RanksError::Message { reason: format!("`{}` is missing", piece.name) };
        let length = size_of::<f32>() * piece.elements;
        let Some(group) = self.group.take() else { return Err(missing) };
        let mut answers = group.share(Some(piece)).and_then(|_| group.gather(&[]))?.into_iter();
        self.group = Some(group);
        answers.find(|answer| answer.len() == length).ok_or(missing)
    }

    /// Tells the other ranks that rank 0 asks for nothing more.
    pub fn end(self) -> Result<(), RanksError> {
        match self.group {
            Some(group) => group.share(None::<StatePiece>).map(drop),
            None => Ok(()),
        }
    }
}

/// Sends rank 0 the pieces of `states` that it asks for, until it ends.
pub async fn send(group: &mut Group, states: &[Parameter]) -> Result<(), RanksError> {
    while let Some(StatePiece { name, first, elements }) = group.share(None::<StatePiece>)? {
        let asked_for = |state: &&Parameter| state.name == name && !state.parts.is_empty();
        let bytes = match states.iter().find(asked_for) {
            Some(state) => bytes_of(state, first..first + elements).await,
            None => Vec::new(),
        };
        group.gather(&bytes)?;
    }
    Ok(())
}

/// Reads elements of a tensor from its device, as the bytes of a checkpoint.
async fn bytes_of(tensor: &Parameter, wanted: Range<usize>) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (index, range) in overlaps(tensor.parts.iter().map(|part| part.dims()[0]), wanted) {
        let piece = tensor.parts[index].clone().narrow(0, range.start, range.len());
        bytes.extend_from_slice(values(piece).await.as_bytes());
    }
    bytes
}
