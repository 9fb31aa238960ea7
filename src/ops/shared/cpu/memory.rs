//! Memory of tensors that is used again.
//!
//! A training step makes tensors of the same sizes as the step before. Allocators return their memory
//! to the system in between or fill it with zeros, which costs a step of a small model a tenth of its
//! time in page faults and writes. So ops give the memory of tensors that they consume to a list, and
//! take memory for their outputs from it.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use burn::backend::TensorMetadata;

use super::CpuTensor;

/// Bytes that the list holds at most: the activations and gradients of GPT-2 124M, of a few sequences.
const MAX_BYTES: usize = 1 << 30;

/// Shorter vectors are not worth a search: an allocator keeps some ready.
const MIN_LEN: usize = 4096;

struct Free {
    vectors: VecDeque<Vec<f32>>,
    bytes: usize,
}

static FREE: Mutex<Free> = Mutex::new(Free { vectors: VecDeque::new(), bytes: 0 });

/// Returns a vector of `len` elements of any value: the caller overwrites them all.
pub(in crate::ops) fn take(len: usize) -> Vec<f32> {
    if len >= MIN_LEN {
        let mut free = FREE.lock().unwrap_or_else(PoisonError::into_inner);
        let found = free.vectors.iter().rposition(|vector| vector.len() == len);
        if let Some(vector) = found.and_then(|at| free.vectors.remove(at)) {
            free.bytes -= size_of_val(vector.as_slice());
            return vector;
        }
    }
    vec![0.0; len]
}

/// Makes the memory of a vector available to [`take`].
pub(in crate::ops) fn give(vector: Vec<f32>) {
    let bytes = size_of_val(vector.as_slice());
    if vector.len() < MIN_LEN || bytes > MAX_BYTES {
        return;
    }
    let mut free = FREE.lock().unwrap_or_else(PoisonError::into_inner);
    free.bytes += bytes;
    free.vectors.push_back(vector);
    while free.bytes > MAX_BYTES {
        // The sizes of a model that no longer runs are the oldest.
        let Some(oldest) = free.vectors.pop_front() else { break };
        free.bytes -= size_of_val(oldest.as_slice());
    }
}

/// Makes the memory of tensors available to [`take`], if nothing else holds them.
pub(in crate::ops) fn recycle(tensors: impl IntoIterator<Item = CpuTensor>) {
    for tensor in tensors {
        let whole = tensor.as_slice::<f32>().is_some()
            && tensor.storage::<f32>().len() == tensor.shape().num_elements();
        if whole
            && tensor.is_unique()
            && let Ok(vector) = tensor.into_data().try_into_vec::<f32>()
        {
            give(vector);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::shared::cpu::from_values;

    #[test]
    fn the_memory_of_a_tensor_that_nothing_holds_is_used_again() {
        // No other test has tensors of this size.
        const LEN: usize = 12_347;
        let tensor = || from_values(vec![1.0; LEN], [LEN].into());
        let (kept, consumed) = (tensor(), tensor());
        let at = consumed.as_slice::<f32>().map(|values| values.as_ptr());
        recycle([kept.clone(), consumed]);
        let again = take(LEN);
        assert_eq!(Some(again.as_ptr()), at);
        assert_ne!(Some(take(LEN).as_ptr()), kept.as_slice::<f32>().map(|values| values.as_ptr()));
    }
}
