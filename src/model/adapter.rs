//! The adapter of a linear layer, which is trained in place of the layer's weight.

use burn::tensor::{Device, FloatDType, Tensor, TensorData};

use super::layers::WeightMatrix;
use super::pass::BlockPass;
use crate::gpu;
use crate::ops::{self, Activation, OpsMode};
use crate::plan::AdaptedLayer;

/// A and B of a layer `x W + alpha / rank x A B`.
///
/// A layer may be several matrices side by side, each with an A and a B of its own. Their A are side by side too,
/// so that one product computes all of `x A`. As each column of the layer belongs to one matrix, `b` has the
/// rows of that matrix's B in this column, and `mask` makes it a matrix that multiplies `x A`.
#[derive(Clone, Debug)]
pub(super) struct Adapter {
    /// `[in, parts * rank]`.
    pub a: WeightMatrix,
    /// `[rank, out]`.
    pub b: WeightMatrix,
    /// The number of the layer in its block.
    pub layer: u32,
    /// `alpha / rank`.
    scale: f32,
    mask: Option<Tensor<2>>,
}

/// Returns the mask `[parts * rank, out]` of a layer that is not one matrix: 1 where a row and a column belong to
/// one matrix, else 0.
pub(super) fn mask(layer: &AdaptedLayer, rank: usize, device: &Device) -> Option<Tensor<2>> {
    let [_, out] = layer.shape;
    let rows = layer.parts.len() * rank;
    layer.is_masked().then(|| {
        let mut mask = vec![0.0; rows * out];
        for (row, mask) in mask.chunks_exact_mut(out).enumerate() {
            let (_, columns) = &layer.parts[row / rank];
            mask[columns.clone()].fill(1.0);
        }
        Tensor::from_data(TensorData::new(mask, [rows, out]), device)
    })
}

impl Adapter {
    pub fn new([a, b]: [Tensor<2>; 2], layer: u32, scale: f32, mask: Option<Tensor<2>>) -> Self {
        Self { a: WeightMatrix::new(a), b: WeightMatrix::new(b), layer, scale, mask }
    }

    /// Returns what the adapter multiplies by A, and the activation that is still to come: with dropout, elements of
    /// the activated `x` are dropped. Layers side by side, which have one input, share the mask.
    pub fn input(
        &self,
        x: Tensor<2>,
        activation: Option<Activation>,
        at: BlockPass,
    ) -> (Tensor<2>, Option<Activation>) {
        let mode = at.pass.mode;
        let Some(dropout) = at.adapter_dropout(self.layer) else { return (x, activation) };
        let h = match activation {
            Some(activation) => ops::activate(x, activation, mode),
            None => x,
        };
        (dropout.apply(h, None, mode), None)
    }

    /// Returns A, and B as it multiplies `x A`, `[parts * rank, out]`.
    pub fn factors(&self, mode: OpsMode) -> [Tensor<2>; 2] {
        let factor = |weight: Tensor<2>| {
            if mode.precision.keeps_half_weights() {
                weight.cast(FloatDType::from(gpu::stored(mode.precision.dtype())))
            } else {
                weight
            }
        };
        let b = self.b.weight.clone() * self.scale;
        let b = match &self.mask {
            Some(mask) => {
                let parts = mask.dims()[0] / b.dims()[0];
                b.repeat_dim(0, parts) * mask.clone()
            }
            None => b,
        };
        [self.a.weight.clone(), b].map(factor)
    }

    /// Returns the gradients of `a` and `b`, flat. `of_a` and `of_factor` are the gradients of what
    /// [`factors`](Self::factors) returns.
    pub fn gradients(&self, of_a: Option<Tensor<2>>, of_factor: Tensor<2>) -> Vec<Tensor<1>> {
        let of_b = self.gradient_of_b(of_factor);
        of_a.into_iter().chain([of_b]).map(|gradient| gradient.flatten(0, 1)).collect()
    }

    fn gradient_of_b(&self, of_factor: Tensor<2>) -> Tensor<2> {
        let of_factor = of_factor * self.scale;
        let Some(mask) = &self.mask else { return of_factor };
        let [rank, out] = self.b.weight.dims();
        let parts = mask.dims()[0] / rank;
        let of_parts = (of_factor * mask.clone()).reshape([parts, rank, out]);
        of_parts.sum_dim(0).reshape([rank, out])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Arch, BaseDtype, Precision};
    use crate::model::{
        Architecture, Gpt, Lora, MergedWeights, RandomWeights, WeightError, WeightSource,
    };

    /// Random weights in which B is not zero.
    struct Everywhere(RandomWeights);

    impl WeightSource for Everywhere {
        fn weight(&mut self, name: &str, shape: &[usize]) -> Result<Vec<f32>, WeightError> {
            self.0.weight(&name.replace("lora_B", "lora_A"), shape)
        }
    }

    #[test]
    fn a_merged_model_computes_the_same() {
        let device = Device::flex();
        for (architecture, targets) in [
            (Architecture::tiny(), vec![]),
            (Architecture::tiny_llama(Arch::Qwen2, true), vec![]),
            (Architecture::tiny_llama(Arch::Qwen3, true), vec![]),
            (Architecture::tiny_llama(Arch::Llama, false), vec!["q_proj", "v_proj", "down_proj"]),
        ] {
            let targets: Vec<String> = targets.into_iter().map(str::to_owned).collect();
            let lora = Lora { rank: 3, alpha: 6.0, dropout: 0.0, targets };
            let mut weights = Everywhere(RandomWeights::new(&architecture, 7));
            let adapted = {
                let adapter = (&lora, BaseDtype::Auto);
                Gpt::adapted(Precision::FLOAT32, &architecture, adapter, &mut weights, &device)
                    .unwrap()
            };
            let plain = Gpt::new(&architecture, &mut weights, &device).unwrap();
            let source = || Box::new(Everywhere(RandomWeights::new(&architecture, 7)));
            let mut merged = MergedWeights {
                base: source(),
                adapter: source(),
                architecture: architecture.clone(),
                lora,
            };
            let merged = Gpt::new(&architecture, &mut merged, &device).unwrap();
            let tokens: Vec<u32> = (0..12).map(|position| (7 * position + 3) % 65).collect();
            let [adapted, merged, plain] = [adapted, merged, plain]
                .map(|model| model.logits(tokens.clone().into(), 1, OpsMode::AUTO).into_data());
            let values = |data: &TensorData| data.iter::<f32>().collect::<Vec<_>>();
            let largest = |a: &TensorData, b: &TensorData| {
                let pairs = std::iter::zip(values(a), values(b));
                pairs.map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
            };
            let [off, effect] = [largest(&adapted, &merged), largest(&adapted, &plain)];
            assert!(off < 1e-5 && effect > 1e-2, "{off:e} {effect:e}");
        }
    }
}
