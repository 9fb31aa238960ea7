use std::sync::Arc;

use burn::tensor::{DType, IndexingUpdateOp, Int, Tensor, TensorData};

use super::{CrossEntropy, HeadGradients, IGNORED};

pub(super) fn forward(
    x: Tensor<2>,
    wte: Vec<Tensor<2>>,
    targets: Arc<[u32]>,
    loss: CrossEntropy,
) -> Tensor<1> {
    chunked(x, joined(wte), &targets, &loss, None)
}

fn joined(mut shards: Vec<Tensor<2>>) -> Tensor<2> {
    if shards.len() == 1 { shards.remove(0) } else { Tensor::cat(shards, 0) }
}

/// The gradients so far: `dx` chunk by chunk, and the sum of `dw` `[vocab, c]`.
struct Grads {
    dx: Vec<Tensor<2>>,
    dw: Tensor<2>,
    /// The factor of the gradients, `[1, 1]`.
    scale: Tensor<2>,
}

/// Computes the loss of all rows, a chunk at a time; with `grads`, also the gradients.
fn chunked(
    x: Tensor<2>,
    wte: Tensor<2>,
    targets: &[u32],
    loss: &CrossEntropy,
    mut grads: Option<&mut Grads>,
) -> Tensor<1> {
    let device = x.device();
    let w = wte.narrow(0, 0, loss.vocab);
    let mut total = Tensor::zeros([1], (&device, DType::F32));
    for (index, targets) in targets.chunks(loss.chunk).enumerate() {
        let n = targets.len();
        let x = x.clone().narrow(0, index * loss.chunk, n);
        // One for each target that counts and zero for the others.
        let counted = targets.iter().map(|&id| f32::from(id != IGNORED)).collect();
        let counted =
            Tensor::<2>::from_data(TensorData::new(counted, [n, 1]), (&device, DType::F32));
        // Any token will do for a row that does not count.
        let id = |&id: &u32| if id == IGNORED { 0 } else { id as i32 };
        let ids = TensorData::new(targets.iter().map(id).collect(), [n, 1]);
        let ids = Tensor::<2, Int>::from_data(ids, (&device, DType::I32));

        let logits = x.clone().matmul(w.clone().transpose());
        let shifted = logits.clone() - logits.max_dim(1);
        let at_target = shifted.clone().gather(1, ids.clone());
        let exp = shifted.exp();
        let sum = exp.clone().sum_dim(1);
        total = total + ((sum.clone().log() - at_target) * counted.clone()).sum();
        if let Some(grads) = &mut grads {
            let minus_one = Tensor::full([n, 1], -1.0, (&device, DType::F32));
            let d = (exp / sum).scatter(1, ids, minus_one, IndexingUpdateOp::Add);
            let d = d * (grads.scale.clone() * counted);
            grads.dw = grads.dw.clone() + d.clone().transpose().matmul(x);
            grads.dx.push(d.matmul(w.clone()));
        }
    }
    total * loss.scale
}

pub(super) fn gradients(
    x: Tensor<2>,
    wte: Vec<Tensor<2>>,
    loss_scale: Option<Tensor<1>>,
    targets: Arc<[u32]>,
    loss: CrossEntropy,
) -> (Tensor<1>, HeadGradients) {
    let (device, c) = (x.device(), x.dims()[1]);
    let rows: Vec<usize> = wte.iter().map(|shard| shard.dims()[0]).collect();
    let padding = rows.iter().sum::<usize>() - loss.vocab;
    let zeros = |rows| Tensor::zeros([rows, c], (&device, DType::F32));
    let scale = match loss_scale {
        Some(state) => state.narrow(0, 0, 1),
        None => Tensor::full([1], loss.scale, (&device, DType::F32)),
    };
    let mut grads = Grads { dx: Vec::new(), dw: zeros(loss.vocab), scale: scale.unsqueeze() };
    let value = chunked(x, joined(wte), &targets, &loss, Some(&mut grads));
    let Grads { dx, mut dw, .. } = grads;
    if padding > 0 {
        dw = Tensor::cat(vec![dw, zeros(padding)], 0);
    }
    let wte = if rows.len() == 1 { vec![dw] } else { dw.split_with_sizes(rows, 0) };
    (value, HeadGradients { x: Tensor::cat(dx, 0), wte })
}
