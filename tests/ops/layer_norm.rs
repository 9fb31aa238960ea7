//! Compares the fused backward pass of layer norm with separate steps.

use burn::tensor::{Device, Tensor};
use wgpt::ops::{self, NormForm, OpsMode};

use crate::case::{noise, values};
use crate::check::{VALUE, compare};

/// The gradient of the residual stream is added, and the weight gradients of many layers at once equal
/// the gradients of each layer alone, bit by bit.
pub fn check_layer_norms(device: &Device, mode: OpsMode) {
    let form = NormForm::Layer;
    for (rows, width) in [(3, 5), (200, 12), (300, 128)] {
        let matrix = |seed| {
            let values = Tensor::<1>::from_floats(noise(seed, rows * width).as_slice(), device);
            values.reshape([rows, width])
        };
        let gamma = Tensor::<1>::from_floats(noise(9, width).as_slice(), device);
        let backward = |layer: u64, residual: Option<Tensor<2>>| {
            let (x, dy) = (matrix(layer), matrix(layer + 100));
            let (_, statistics) = ops::layer_norm(x.clone(), gamma.clone(), None, form, mode);
            ops::layer_norm_backward(dy, x, gamma.clone(), statistics, residual, form, mode)
        };
        let (dx, _) = backward(0, None);
        let want: Vec<f64> = values(dx + matrix(50)).into_iter().map(f64::from).collect();
        let shared = matrix(50);
        for residual in [matrix(50), shared.clone()] {
            let got = values(backward(0, Some(residual)).0);
            compare(&format!("{mode:?} with a residual"), &got, &want, VALUE).unwrap();
        }
        assert_eq!(values(shared), values(matrix(50)), "{mode:?}: a shared tensor is kept");

        let partial = |layer| backward(layer, None).1;
        let alone =
            (0..9).flat_map(|layer| ops::layer_norm_weight_gradients(vec![partial(layer)], mode));
        let together = ops::layer_norm_weight_gradients((0..9).map(partial).collect(), mode);
        assert_eq!(together.len(), 9);
        for (alone, together) in alone.zip(together) {
            let [alone, together] =
                [alone, together].map(|(dgamma, dbeta)| [dgamma, dbeta].map(values));
            assert_eq!(alone, together, "{mode:?}, {rows} x {width}");
        }
    }
}
