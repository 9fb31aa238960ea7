use burn::tensor::{DType, IndexingUpdateOp, Int, Tensor, TensorData};

use super::{CrossEntropyInputs, HeadGradients, IGNORED};
use crate::ops::shared::dispatch::Reference;

pub(super) fn compute(inputs: CrossEntropyInputs<Reference>) -> (Tensor<1>, Option<HeadGradients>) {
    let CrossEntropyInputs { x, mut wte, loss_scale, targets, loss, with_gradients, trained } =
        inputs;
    let device = x.device();
    let c = x.dims()[1];
    let shard_rows: Vec<usize> = wte.iter().map(|shard| shard.dims()[0]).collect();
    let wte = if wte.len() == 1 { wte.remove(0) } else { Tensor::cat(wte, 0) };
    let w = wte.narrow(0, 0, loss.vocab);
    let scale: Tensor<1> = match loss_scale {
        Some(state) => state.narrow(0, 0, 1),
        None => Tensor::full([1], loss.scale, (&device, DType::F32)),
    };
    let zeros = |rows| Tensor::<2>::zeros([rows, c], (&device, DType::F32));
    let mut gradients = with_gradients.then(|| (Vec::new(), zeros(loss.vocab)));
    let mut total = Tensor::<1>::zeros([1], (&device, DType::F32));
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
        if let Some((dx, dw)) = &mut gradients {
            let minus_one = Tensor::full([n, 1], -1.0, (&device, DType::F32));
            let d = (exp / sum).scatter(1, ids, minus_one, IndexingUpdateOp::Add);
            let d = d * (scale.clone().unsqueeze::<2>() * counted);
            if trained {
                *dw = dw.clone() + d.clone().transpose().matmul(x);
            }
            dx.push(d.matmul(w.clone()));
        }
    }
    let gradients = gradients.map(|(dx, dw)| {
        let padding = shard_rows.iter().sum::<usize>() - loss.vocab;
        let dw = if padding > 0 { Tensor::cat(vec![dw, zeros(padding)], 0) } else { dw };
        let wte = if trained { dw.split_with_sizes(shard_rows, 0) } else { Vec::new() };
        HeadGradients { x: Tensor::cat(dx, 0), wte }
    });
    (total * loss.scale, gradients)
}
