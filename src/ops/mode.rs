//! How the ops run: in which implementation, for what kind of device, in what precision.

use crate::config::{Matrices, Precision};
use crate::gpu::Kind;

/// An implementation of the ops.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Implementation {
    /// The fastest that the device has.
    #[default]
    Auto,
    /// The tensor-op reference everywhere, for comparisons.
    Reference,
    /// [`Implementation::Auto`] with the tiles of GPUs on software adapters too, to test those
    /// tiles without a GPU.
    Wide,
    /// The kernels of devices that do not compile WGSL on every device that runs kernels, to test
    /// those kernels without one.
    Cube,
}

/// How the ops run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpsMode {
    /// The implementation.
    pub implementation: Implementation,
    /// What activations are stored in and what products multiply. The implementation for the CPU
    /// has f32 only.
    pub precision: Precision,
    /// True if the device is a software adapter, whose kernels take other tiles.
    software: bool,
}

impl OpsMode {
    /// The fastest implementation, in f32.
    pub const AUTO: Self = Self::of(Implementation::Auto);
    /// The reference, in f32.
    pub const REFERENCE: Self = Self::of(Implementation::Reference);
    /// [`Implementation::Wide`] in f32.
    pub const WIDE: Self = Self::of(Implementation::Wide);
    /// [`Implementation::Cube`] in f32.
    pub const CUBE: Self = Self::of(Implementation::Cube);

    /// Returns the mode of an implementation, in f32, for hardware.
    pub const fn of(implementation: Implementation) -> Self {
        Self { implementation, precision: Precision::FLOAT32, software: false }
    }

    /// Returns the mode in another precision.
    pub const fn in_precision(self, precision: Precision) -> Self {
        Self { precision, ..self }
    }

    /// Returns the mode for a device of this kind. Without it, a software adapter computes the same
    /// values with the slower tiles of GPUs.
    pub fn on(self, kind: Kind) -> Self {
        Self { software: kind == Kind::Software, ..self }
    }

    /// The cooperative matrices that products use.
    #[cfg(feature = "wgpu")]
    pub(super) fn matrices(self) -> Option<Matrices> {
        self.precision.matrices().filter(|_| self.implementation == Implementation::Auto)
    }

    /// Returns true if the kernels take the tiles of software adapters.
    #[cfg(feature = "wgpu")]
    pub(super) fn narrow_tiles(self) -> bool {
        self.software && self.implementation == Implementation::Auto
    }

    #[cfg(not(target_arch = "wasm32"))]
    pub(super) fn is_reference(self) -> bool {
        self.implementation == Implementation::Reference
    }
}
