//! burn's `flex` backend computes the ops here.

use std::ops::Range;
use std::sync::Arc;

use burn::backend::Flex;
use burn::backend::ops::FloatTensorOps;
use burn::backend::tensor::FloatTensor;

use crate::ops::{
    Activation, AdamW, AttentionShape, CrossEntropy, Dropout, Implementation, OpsMode, Optional,
    Tables, adamw, attention, dropout, embed, layer_norm, linear, linear_cross_entropy, softmax,
};

impl layer_norm::LayerNorm for Flex {
    fn layer_norm_forward(
        x: FloatTensor<Self>,
        gamma: FloatTensor<Self>,
        beta: Optional<Self>,
        mode: OpsMode,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>) {
        if mode.implementation == Implementation::Reference {
            return layer_norm::reference_forward::<Self>(x, gamma, beta.into_option());
        }
        super::layer_norm::forward(x, gamma, beta.into_option())
    }

    fn layer_norm_backward(
        dy: FloatTensor<Self>,
        x: FloatTensor<Self>,
        gamma: FloatTensor<Self>,
        mean: FloatTensor<Self>,
        rstd: FloatTensor<Self>,
        mode: OpsMode,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>) {
        if mode.implementation == Implementation::Reference {
            return layer_norm::reference_backward::<Self>(dy, x, gamma, mean, rstd);
        }
        super::layer_norm::backward(dy, x, gamma, mean, rstd)
    }
}

impl embed::Embed for Flex {
    fn embed_backward(
        dy: FloatTensor<Self>,
        into: Optional<Self>,
        tokens: Arc<[u32]>,
        table: Range<usize>,
        period: usize,
        base_rows: usize,
        mode: OpsMode,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        let into = into.into_option();
        if mode.implementation == Implementation::Reference {
            return embed::reference_backward::<Self>(dy, into, &tokens, table, period, base_rows);
        }
        super::embed::backward(&dy, into, &tokens, table, period, base_rows)
    }
}

impl adamw::Optimize for Flex {
    fn sum_squares(
        x: FloatTensor<Self>,
        sums: FloatTensor<Self>,
        first: usize,
        mode: OpsMode,
    ) -> FloatTensor<Self> {
        if mode.implementation == Implementation::Reference {
            return adamw::reference_sum_squares::<Self>(x, sums, first);
        }
        super::adamw::sum_squares(x, sums, first)
    }

    fn adamw(
        w: FloatTensor<Self>,
        grad: FloatTensor<Self>,
        m: FloatTensor<Self>,
        v: FloatTensor<Self>,
        clip: FloatTensor<Self>,
        scalars: AdamW,
        mode: OpsMode,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>) {
        if mode.implementation == Implementation::Reference {
            return adamw::reference_adamw::<Self>(w, grad, m, v, clip, &scalars);
        }
        super::adamw::update(w, grad, m, v, &clip, &scalars)
    }
}

impl linear::Linear for Flex {
    fn linear(
        x: FloatTensor<Self>,
        w: FloatTensor<Self>,
        b: Optional<Self>,
        residual: Optional<Self>,
        activation: Activation,
        mode: OpsMode,
    ) -> FloatTensor<Self> {
        let (b, residual) = (b.into_option(), residual.into_option());
        if mode.implementation == Implementation::Reference {
            return linear::reference_forward::<Self>(x, w, b, residual, activation);
        }
        let product = Self::float_matmul(super::linear::activate(x, activation), w);
        super::linear::add(product, b, residual)
    }

    fn linear_backward(
        dy: FloatTensor<Self>,
        x: FloatTensor<Self>,
        w: FloatTensor<Self>,
        activation: Activation,
        bias: bool,
        mode: OpsMode,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, Option<FloatTensor<Self>>) {
        if mode.implementation == Implementation::Reference {
            return linear::reference_backward::<Self>(dy, x, w, activation, bias);
        }
        let db = bias.then(|| super::linear::column_sums(&dy));
        let h = super::linear::activate(x.clone(), activation);
        let (dh, dw) = linear::products::<Self>(dy, h, w);
        let dx = match activation {
            Activation::Identity => dh,
            Activation::Gelu(form) => super::linear::gelu_backward(dh, x, form),
        };
        (dx, dw, db)
    }
}

impl linear_cross_entropy::LinearCrossEntropy for Flex {
    fn linear_cross_entropy(
        x: FloatTensor<Self>,
        wte: Tables<Self>,
        targets: Arc<[u32]>,
        loss: CrossEntropy,
        mode: OpsMode,
    ) -> FloatTensor<Self> {
        let (wte, _) = linear_cross_entropy::joined::<Self>(wte);
        if mode.implementation == Implementation::Reference {
            return linear_cross_entropy::reference::<Self>(x, wte, &targets, &loss, None);
        }
        super::cross_entropy::forward(x, wte, &targets, &loss)
    }

    fn linear_cross_entropy_gradients(
        x: FloatTensor<Self>,
        wte: Tables<Self>,
        targets: Arc<[u32]>,
        loss: CrossEntropy,
        mode: OpsMode,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, Vec<FloatTensor<Self>>) {
        if mode.implementation == Implementation::Reference {
            return linear_cross_entropy::reference_gradients::<Self>(x, wte, &targets, &loss);
        }
        let (wte, rows) = linear_cross_entropy::joined::<Self>(wte);
        let (value, dx, dwte) = super::cross_entropy::gradients(x, wte, &targets, &loss);
        (value, dx, linear_cross_entropy::cut::<Self>(dwte, &rows))
    }
}

impl attention::Attention for Flex {
    fn attention_forward(
        qkv: FloatTensor<Self>,
        shape: AttentionShape,
        mode: OpsMode,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        if mode.implementation == Implementation::Reference {
            return attention::reference_forward::<Self>(qkv, &shape);
        }
        super::attention::forward(qkv, &shape)
    }

    fn attention_backward(
        dout: FloatTensor<Self>,
        qkv: FloatTensor<Self>,
        out: FloatTensor<Self>,
        log_sum_exp: FloatTensor<Self>,
        shape: AttentionShape,
        mode: OpsMode,
    ) -> FloatTensor<Self> {
        if mode.implementation == Implementation::Reference {
            return attention::reference_backward::<Self>(dout, qkv, out, log_sum_exp, &shape);
        }
        super::attention::backward(dout, qkv, out, log_sum_exp, &shape)
    }
}

impl dropout::DropoutAdd for Flex {
    fn dropout(
        x: FloatTensor<Self>,
        residual: Optional<Self>,
        time: usize,
        dropout: Dropout,
        mode: OpsMode,
    ) -> FloatTensor<Self> {
        if mode.implementation == Implementation::Reference {
            return dropout::reference::<Self>(x, residual.into_option(), time, &dropout);
        }
        super::dropout::forward(x, residual.into_option(), time, &dropout)
    }
}

impl softmax::Softmax for Flex {}
