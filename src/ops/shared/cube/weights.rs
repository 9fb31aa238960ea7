//! Parameters of the kernels in `shaders/cuda/weights.cu`, whose launches take the tensors of many weights.

use crate::gpu::cuda::Pointer;

/// How the tensors of a launch share its workgroups: each has a span of one tensor.
pub(in crate::ops) struct Spans {
    /// The elements of each tensor, then the spans of the tensors before it, with room for `most` tensors each.
    pub values: Vec<u32>,
    pub count: usize,
}

impl Spans {
    /// Cuts tensors of `lengths` elements into spans of `span`.
    pub fn of(lengths: impl Iterator<Item = usize>, span: usize, most: usize) -> Self {
        let mut values = vec![0; 2 * most];
        let (elements, first) = values.split_at_mut(most);
        let mut count = 0;
        for (k, length) in lengths.enumerate() {
            (elements[k], first[k]) = (length as u32, count as u32);
            count += length.div_ceil(span);
        }
        Self { values, count }
    }
}

/// Returns the pointers with room for `most`.
pub(in crate::ops) fn padded<'a>(
    pointers: impl Iterator<Item = Pointer<'a>>,
    most: usize,
) -> impl Iterator<Item = Pointer<'a>> {
    pointers.chain(std::iter::repeat_with(|| Pointer::Null)).take(most)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::cuda::has_kernel;
    use crate::ops::{adamw, layer_norm, update_control};

    #[test]
    fn tensors_begin_behind_the_spans_of_those_before() {
        let spans = Spans::of([3, 8, 9].into_iter(), 4, 4);
        assert_eq!((spans.values, spans.count), (vec![3, 8, 9, 0, 0, 1, 3, 0], 6));
    }

    #[test]
    fn sizes_are_those_of_the_kernels() {
        let source = include_str!("../../../../shaders/cuda/weights.cu");
        for (name, value) in [
            ("SQUARES_TENSORS 192", update_control::cuda::TENSORS == 192),
            ("SQUARES_SPAN (16 * 1024)", update_control::NORM_SPAN == 16 * 1024),
            ("UPDATE_TENSORS 64", adamw::cuda::TENSORS == 64),
            ("UPDATE_TURNS 4", adamw::cuda::SPAN == 4 * 256 * 4),
            ("GROUPS_TENSORS 128", layer_norm::cuda::TENSORS == 128),
            ("UNITS 256", layer_norm::cuda::UNITS == 256),
        ] {
            assert!(source.contains(&format!("#define {name}\n")) && value, "{name}");
        }
        for kernel in ["squares", "update_weights", "sum_groups"] {
            assert!(has_kernel(kernel), "{kernel}");
        }
    }
}
