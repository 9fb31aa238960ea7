//! The place of one head's rows, and its dropout.

use crate::ops::AttentionShape;

#[derive(Clone, Copy)]
pub(super) struct AttentionHead<'a> {
    pub shape: &'a AttentionShape,
    /// `sequence * heads + head`.
    pub index: usize,
    /// The model's width.
    pub c: usize,
    pub size: usize,
}

impl<'a> AttentionHead<'a> {
    pub fn new(index: usize, c: usize, shape: &'a AttentionShape) -> Self {
        Self { shape, index, c, size: c / shape.heads }
    }

    /// The head's part `part` of position `t` and all that follows, in rows of `parts * c` elements.
    #[inline(always)]
    pub fn row<'b>(&self, rows: &'b [f32], t: usize, part: usize, parts: usize) -> &'b [f32] {
        let (sequence, head) = (self.index / self.shape.heads, self.index % self.shape.heads);
        let row = sequence * self.shape.time + t;
        &rows[(row * parts + part) * self.c + head * self.size..]
    }

    /// Drops out the probabilities, or their gradients, of one query's row.
    #[inline(always)]
    pub fn drop_out(&self, row: &mut [f32], query: usize) {
        let Some(dropout) = self.shape.dropout else { return };
        let AttentionShape { heads, time, .. } = *self.shape;
        let key = dropout.sequence_key(self.index / heads);
        let first = ((self.index % heads * time + query) * time) as u32;
        for (i, value) in row.iter_mut().enumerate() {
            let kept = dropout.keeps(key, first + i as u32);
            *value = if kept { *value * dropout.scale() } else { 0.0 };
        }
    }
}

pub(super) fn parts<const N: usize>(mut memory: &mut [f32], lens: [usize; N]) -> [&mut [f32]; N] {
    lens.map(|len| memory.split_off_mut(..len).expect("memory has the sum of the lengths"))
}
