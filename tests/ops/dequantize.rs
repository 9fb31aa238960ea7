//! Matrices in 8 bits a weight.

use burn::tensor::{DType, Device, Int, Tensor, TensorData};
use half::f16;
use wgpt::config::Dtype;
use wgpt::gpu;
use wgpt::ops::{self, OpsMode};

use crate::case::values;

/// Compares decoded matrices with the products of their codes and scales, which are exact in f32.
pub fn check_dequantize(device: &Device, mode: OpsMode) {
    let has_float16 = gpu::dtypes(device).contains(&Dtype::Float16);
    let dtypes: &[DType] = if has_float16 { &[DType::F32, DType::F16] } else { &[DType::F32] };
    for [input, out] in [[32, 1], [64, 37], [96, 40], [320, 260]] {
        // Every code occurs.
        let code = |row: usize, column: usize| ((row * 7 + column * 13) % 256) as u8;
        let scale = |row: usize, column: usize| {
            f16::from_f32(((row / 32 * out + column) as f32).sin() * 3.0).to_f32()
        };
        let places = || (0..input).flat_map(|row| (0..out).map(move |column| (row, column)));
        let wanted: Vec<f32> = places()
            .map(|(row, column)| code(row, column) as i8 as f32 * scale(row, column))
            .collect();
        let words: Vec<i32> = (0..input / 4 * out)
            .map(|at| {
                let (row, column) = (at / out * 4, at % out);
                i32::from_le_bytes(std::array::from_fn(|byte| code(row + byte, column)))
            })
            .collect();
        let scales: Vec<f32> = places()
            .filter(|(row, _)| row % 32 == 0)
            .map(|(row, column)| scale(row, column))
            .collect();
        let words = TensorData::new(words, [input / 4, out]);
        let codes = Tensor::<2, Int>::from_data(words, (device, DType::I32));
        for &of_scales in dtypes {
            let data = TensorData::new(scales.clone(), [input / 32, out]).convert_dtype(of_scales);
            let scales = Tensor::<2>::from_data(data, (device, of_scales));
            for &dtype in dtypes {
                let decoded = ops::dequantize(codes.clone(), scales.clone(), dtype, mode);
                assert_eq!(decoded.dtype(), dtype);
                let rounded = |x: &f32| match dtype {
                    DType::F16 => f16::from_f32(*x).to_f32(),
                    _ => *x,
                };
                let wanted: Vec<f32> = wanted.iter().map(rounded).collect();
                let found = values(decoded.cast(DType::F32));
                assert!(found == wanted, "{mode:?}, {input} x {out}, {of_scales:?} to {dtype:?}");
            }
        }
    }
}
