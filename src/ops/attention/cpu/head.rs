//! The place of one head's rows, and its dropout.

use crate::ops::AttentionShape;

#[derive(Clone, Copy)]
pub(super) struct AttentionHead<'a> {
    pub shape: &'a AttentionShape,
    sequence: usize,
    /// The head of the queries.
    head: usize,
    pub size: usize,
}

impl<'a> AttentionHead<'a> {
    /// `index` is `sequence * heads + head`.
    pub fn new(index: usize, size: usize, shape: &'a AttentionShape) -> Self {
        Self { shape, sequence: index / shape.heads, head: index % shape.heads, size }
    }

    /// Returns the head of queries that is `nth` after this one.
    pub fn next(self, nth: usize) -> Self {
        Self { head: self.head + nth, ..self }
    }

    /// Returns the elements of a row of packed qkv.
    pub fn packed(&self) -> usize {
        (self.shape.heads + 2 * self.shape.kv_heads) * self.size
    }

    /// Returns the elements of a row of the output.
    pub fn merged(&self) -> usize {
        self.shape.heads * self.size
    }

    // The head's row at position `t`, and all that follows.

    #[inline(always)]
    pub fn q<'b>(&self, qkv: &'b [f32], t: usize) -> &'b [f32] {
        self.row(qkv, t, self.packed(), self.head)
    }

    #[inline(always)]
    pub fn k<'b>(&self, qkv: &'b [f32], t: usize) -> &'b [f32] {
        let head = self.shape.heads + self.head / self.shape.group();
        self.row(qkv, t, self.packed(), head)
    }

    #[inline(always)]
    pub fn v<'b>(&self, qkv: &'b [f32], t: usize) -> &'b [f32] {
        let head = self.shape.heads + self.shape.kv_heads + self.head / self.shape.group();
        self.row(qkv, t, self.packed(), head)
    }

    #[inline(always)]
    pub fn out<'b>(&self, out: &'b [f32], t: usize) -> &'b [f32] {
        self.row(out, t, self.merged(), self.head)
    }

    #[inline(always)]
    fn row<'b>(&self, rows: &'b [f32], t: usize, width: usize, head: usize) -> &'b [f32] {
        &rows[(self.sequence * self.shape.time + t) * width + head * self.size..]
    }

    /// Drops out the probabilities, or their gradients, of one query's row.
    #[inline(always)]
    pub fn drop_out(&self, row: &mut [f32], query: usize) {
        let Some(dropout) = self.shape.dropout else { return };
        let time = self.shape.time;
        let key = dropout.sequence_key(self.sequence);
        let first = ((self.head * time + query) * time) as u32;
        for (i, value) in row.iter_mut().enumerate() {
            let kept = dropout.keeps(key, first + i as u32);
            *value = if kept { *value * dropout.scale() } else { 0.0 };
        }
    }
}

pub(super) fn parts<const N: usize>(mut memory: &mut [f32], lens: [usize; N]) -> [&mut [f32]; N] {
    lens.map(|len| memory.split_off_mut(..len).expect("memory has the sum of the lengths"))
}
