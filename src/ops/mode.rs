//! How the ops run: in which implementation, for what kind of device, in what precision.

#[cfg(feature = "wgpu")]
use crate::config::Matrices;
use crate::config::{Abilities, Cublas, Dtype, Precision};
use crate::gpu::cublas::{self, Library};
use crate::gpu::{Backend, DeviceError, DeviceInfo, DeviceKind, DriverTraits};
#[cfg(not(target_arch = "wasm32"))]
use crate::gpu::{OpenDevice, SelectedDevice};
use crate::protocol::Implementation;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpsMode {
    pub implementation: Implementation,
    /// The dtypes of activations and of the factors of products. The CPU has f32 only.
    pub precision: Precision,
    /// True if products may be cuBLASLt's. In the mode of a run, true if they are.
    pub(crate) cublas: bool,
    pub(crate) driver: DriverTraits,
    /// True for a software adapter, which needs other tiles.
    software: bool,
}

impl OpsMode {
    /// The fastest implementation, in f32.
    pub const AUTO: Self = Self::of(Implementation::Auto);
    pub const REFERENCE: Self = Self::of(Implementation::Reference);
    pub const WIDE: Self = Self::of(Implementation::Wide);
    pub const CUBE: Self = Self::of(Implementation::Cube);

    /// Returns the mode of an implementation, in f32, for hardware.
    pub const fn of(implementation: Implementation) -> Self {
        Self {
            implementation,
            precision: Precision::FLOAT32,
            cublas: false,
            driver: DriverTraits::UNKNOWN,
            software: false,
        }
    }

    pub const fn in_precision(self, precision: Precision) -> Self {
        Self { precision, ..self }
    }

    /// Returns the mode with the products that a run wants.
    pub fn with_products(self, cublas: Cublas) -> Self {
        Self { cublas: cublas == Cublas::Auto, ..self }
    }

    /// Returns the library of the products of a run, which decides on the last bits of its losses, or `None`
    /// if wgpt's own kernels compute them.
    pub fn products(self) -> Option<&'static Library> {
        cublas::library().filter(|_| self.cublas)
    }

    /// Returns a warning if a run in `precision` on a device would use a library that is there but of no use.
    #[cfg(not(target_arch = "wasm32"))]
    pub fn unusable_products(self, precision: Precision, device: &DeviceInfo) -> Option<String> {
        let wants = self.in_precision(precision).wants_cublas(device);
        let reason = wants.then(cublas::obstacle).flatten()?;
        Some(format!(
            "cuBLASLt is not used: {reason}. wgpt's own kernels compute; --cublas=off removes this warning"
        ))
    }

    /// Returns true if a run on a device uses cuBLASLt where it is. Nobody else may look for it.
    fn wants_cublas(self, device: &DeviceInfo) -> bool {
        self.cublas
            && self.implementation == Implementation::Auto
            && self.precision.dtype() != Dtype::Float32
            && device.id.backend == Backend::Cuda
    }

    /// Describes the precision of a run and the library of its products.
    pub fn arithmetic(self) -> String {
        let products = self.products().map_or_else(String::new, |it| format!(" by {}", it.name));
        format!("{}{products}", self.precision)
    }

    /// Returns the mode for the driver of a device.
    pub const fn for_driver(self, driver: DriverTraits) -> Self {
        Self { driver, ..self }
    }

    /// Returns the mode for a device of this kind. Without it, software adapters take the tiles of GPUs.
    pub fn on(self, kind: DeviceKind) -> Self {
        Self { software: kind == DeviceKind::Software, ..self }
    }

    /// Returns the mode of a run in `dtype` on a device.
    ///
    /// # Errors
    /// If the device does not compute in it.
    pub fn for_run(self, dtype: Dtype, device: &DeviceInfo) -> Result<Self, DeviceError> {
        let abilities = self.abilities(device);
        let Some(precision) = abilities.precision(dtype) else {
            return Err(DeviceError::Dtype {
                id: device.id,
                name: device.name.clone(),
                dtype,
                known: abilities.dtypes(),
            });
        };
        let mut mode = self.in_precision(precision).on(device.kind);
        mode.cublas = mode.wants_cublas(device) && cublas::library().is_some();
        Ok(mode.for_driver(DriverTraits::of(device, None)))
    }

    /// Returns the next slower way to compute in `dtype` on a device, if its kernels in this mode cannot be
    /// trusted: without cuBLASLt, without matrix units, which are removed from `device`, and after that by tensor operations.
    /// `None` if there is no other way in that dtype.
    pub fn slower(self, dtype: Dtype, device: &mut DeviceInfo) -> Option<Self> {
        let run = self.for_run(dtype, device).ok()?;
        if run.cublas {
            return Some(Self { cublas: false, ..self });
        }
        let precision = run.precision;
        let tiles = device.abilities.without_matrices();
        let in_tiles = tiles.precision(dtype).filter(|in_tiles| *in_tiles != precision);
        if self.implementation == Implementation::Auto && in_tiles.is_some() {
            device.abilities = tiles;
            return Some(self);
        }
        let reference = Self { implementation: Implementation::Reference, ..self };
        (!self.is_reference() && reference.for_run(dtype, device).is_ok()).then_some(reference)
    }

    /// Opens a device for training steps in `dtype`, and returns it with the mode of the steps. If the user
    /// has not named the device and it cannot be opened, this opens the CPU.
    #[cfg(not(target_arch = "wasm32"))]
    pub fn open(
        self,
        dtype: Dtype,
        mut device: SelectedDevice,
    ) -> Result<(OpenDevice, Self), DeviceError> {
        loop {
            let mode = self.for_run(dtype, &device.info)?.for_driver(device.driver);
            match device.open(mode.precision) {
                Ok(device) => return Ok((device, mode)),
                Err(error) => device = device.fallback(error)?,
            }
        }
    }

    /// Returns what this implementation computes in on a device: only the device's own kernels
    /// multiply cooperative matrices, and tensor operations do not mix dtypes.
    pub fn abilities(self, device: &DeviceInfo) -> Abilities {
        match self.implementation {
            Implementation::Auto => device.abilities,
            Implementation::Reference => Abilities::default(),
            Implementation::Wide | Implementation::Cube => device.abilities.without_matrices(),
        }
    }

    #[cfg(feature = "wgpu")]
    pub(super) fn matrices(self) -> Option<Matrices> {
        self.precision.matrices().filter(|_| self.implementation == Implementation::Auto)
    }

    #[cfg(feature = "wgpu")]
    pub(super) fn narrow_tiles(self) -> bool {
        self.software && self.implementation == Implementation::Auto
    }

    pub(super) fn is_reference(self) -> bool {
        self.implementation == Implementation::Reference
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Matrices;
    use crate::protocol::DeviceId;

    #[test]
    fn what_is_not_trusted_is_replaced_by_the_next_slower_way() {
        let of = |abilities| DeviceInfo { abilities, ..DeviceInfo::cpu() };
        let matrices = Some(Matrices::Sixteen);
        let vulkan = Abilities { float16: true, matrices, ..Abilities::default() };
        let cuda = Abilities { tf32: true, bfloat16: true, float16: true, ..Abilities::default() };
        let (tiles, reference) = (Implementation::Auto, Implementation::Reference);
        for (abilities, dtype, expected) in [
            (vulkan, Dtype::Auto, vec![(tiles, Dtype::Float32), (reference, Dtype::Float32)]),
            // A dtype that was asked for is never changed.
            (vulkan, Dtype::Float16, vec![(tiles, Dtype::Float16)]),
            (vulkan, Dtype::Float32, vec![(reference, Dtype::Float32)]),
            (cuda, Dtype::Auto, vec![(tiles, Dtype::Float32), (reference, Dtype::Float32)]),
            (cuda, Dtype::Bfloat16, vec![]),
        ] {
            let (mut device, mut mode, mut ways) = (of(abilities), OpsMode::AUTO, Vec::new());
            while let Some(slower) = mode.slower(dtype, &mut device) {
                let run = slower.for_run(dtype, &device).unwrap();
                assert_eq!(run.precision.matrices(), None);
                ways.push((run.implementation, run.precision.dtype()));
                mode = slower;
            }
            assert_eq!(ways, expected, "{abilities:?} in {dtype}");
        }
    }

    #[test]
    fn only_tensor_cores_of_cuda_want_cublas() {
        let abilities =
            Abilities { tf32: true, bfloat16: true, float16: true, ..Abilities::default() };
        let id = |backend| DeviceId { backend, index: 0 };
        let on = |backend| DeviceInfo { id: id(backend), abilities, ..DeviceInfo::cpu() };
        let wants = |mode: OpsMode, dtype, backend| {
            let precision = abilities.precision(dtype).unwrap();
            mode.in_precision(precision).wants_cublas(&on(backend))
        };
        let auto = OpsMode::AUTO.with_products(Cublas::Auto);
        for dtype in [Dtype::Tf32, Dtype::Bfloat16, Dtype::Float16] {
            assert!(wants(auto, dtype, Backend::Cuda), "{dtype}");
            assert!(!wants(auto, dtype, Backend::Vulkan), "{dtype}");
            assert!(!wants(auto.with_products(Cublas::Off), dtype, Backend::Cuda), "{dtype}");
            assert!(!wants(OpsMode::CUBE.with_products(Cublas::Auto), dtype, Backend::Cuda));
        }
        assert!(!wants(auto, Dtype::Float32, Backend::Cuda));
    }

    #[test]
    fn only_a_devices_own_kernels_multiply_matrices() {
        let matrices = Some(Matrices::Sixteen);
        let device = DeviceInfo {
            kind: DeviceKind::Discrete,
            abilities: Abilities { float16: true, matrices, ..Abilities::default() },
            ..DeviceInfo::cpu()
        };
        let precision =
            |mode: OpsMode, dtype| mode.for_run(dtype, &device).map(|mode| mode.precision);
        let auto = precision(OpsMode::AUTO, Dtype::Auto).unwrap();
        assert_eq!((auto.dtype(), auto.matrices()), (Dtype::Float16, matrices));
        for mode in [OpsMode::WIDE, OpsMode::CUBE] {
            assert_eq!(precision(mode, Dtype::Auto).unwrap(), Precision::FLOAT32);
            let float16 = precision(mode, Dtype::Float16).unwrap();
            assert_eq!((float16.dtype(), float16.matrices()), (Dtype::Float16, None));
        }
        assert_eq!(precision(OpsMode::REFERENCE, Dtype::Auto).unwrap(), Precision::FLOAT32);
        for (mode, dtype, end) in [
            (OpsMode::AUTO, Dtype::Bfloat16, "not support bfloat16; it supports float32, float16"),
            (OpsMode::REFERENCE, Dtype::Float16, "not support float16; it supports float32"),
        ] {
            let error = precision(mode, dtype).unwrap_err().to_string();
            assert!(error.ends_with(end), "{error}");
        }
    }
}
