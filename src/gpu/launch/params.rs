//! The parameters of kernels: structs that `shaders/` declares too. `tests/shaders.rs` compares both.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParamType {
    U32,
    F32,
    /// A struct with fields of these names. It begins at a multiple of 16 bytes.
    Struct(&'static [(&'static str, ParamType)]),
    Array(&'static [(&'static str, ParamType)]),
}

impl ParamType {
    const fn array_of(element: Self) -> Self {
        match element {
            ParamType::Struct(fields) => ParamType::Array(fields),
            _ => panic!("WGSL aligns the elements of a uniform array to 16 bytes: only structs"),
        }
    }
}

pub trait Param {
    const TYPE: ParamType;

    /// Appends the value to the words of the buffer.
    fn write(&self, words: &mut Vec<u32>);
}

macro_rules! one_word {
    ($($rust:ty, $wgsl:ident, $word:expr;)+) => {$(
        impl Param for $rust {
            const TYPE: ParamType = ParamType::$wgsl;

            fn write(&self, words: &mut Vec<u32>) {
                words.push($word(*self));
            }
        }
    )+};
}
one_word! {
    u32, U32, u32::from;
    usize, U32, |count| count as u32;
    f32, F32, f32::to_bits;
}

impl<P: Param> Param for Vec<P> {
    const TYPE: ParamType = ParamType::array_of(P::TYPE);

    fn write(&self, words: &mut Vec<u32>) {
        self.iter().for_each(|element| element.write(words));
    }
}

/// A kernel without parameters.
impl Param for () {
    const TYPE: ParamType = ParamType::Struct(&[]);

    fn write(&self, _: &mut Vec<u32>) {}
}

macro_rules! params {
    ($(
        $(#[$attribute:meta])*
        $visibility:vis struct $name:ident {
            $($(#[$of_field:meta])* $field_visibility:vis $field:ident: $type:ty),* $(,)?
        }
    )+) => {$(
        $(#[$attribute])*
        #[derive(Clone, Debug, Default)]
        $visibility struct $name {
            $($(#[$of_field])* $field_visibility $field: $type),*
        }

        impl $crate::gpu::kernel::Param for $name {
            const TYPE: $crate::gpu::kernel::ParamType = $crate::gpu::kernel::ParamType::Struct(&[
                $((stringify!($field), <$type as $crate::gpu::kernel::Param>::TYPE)),*
            ]);

            fn write(&self, words: &mut Vec<u32>) {
                words.resize(words.len().next_multiple_of(4), 0);
                $($crate::gpu::kernel::Param::write(&self.$field, words);)*
            }
        }
    )+};
}
pub(crate) use params;
