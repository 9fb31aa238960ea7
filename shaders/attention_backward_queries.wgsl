// Gradient of the queries, and delta = rowsum(d_out * out), which attention_backward_keys.wgsl
// reads. With p the probabilities, recomputed from the log-sum-exp: ds = p * (d_out v^T - delta)
// and dq = ds k * scale. The workgroup is one subgroup, each invocation owns ROWS queries, and keys
// are shared by shuffles as in attention_forward.wgsl. Needs dropout_mask.wgsl,
// attention_rows.wgsl.

@group(0) @binding(0) var<storage, read_write> qkv: array<activation>;
@group(0) @binding(1) var<storage, read_write> out: array<activation>;
@group(0) @binding(2) var<storage, read_write> d_out: array<activation>;
// log_sum_exp and delta: [batch, heads, time].
@group(0) @binding(3) var<storage, read_write> log_sum_exp: array<f32>;
@group(0) @binding(4) var<storage, read_write> delta: array<f32>;
@group(0) @binding(5) var<storage, read_write> d_qkv: array<activation>;
@group(0) @binding(6) var<uniform> p: Params;

@compute @workgroup_size(WG)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let pair = p.first_pair + group.y;
    let sequence = pair / p.heads;
    let head = pair % p.heads;
    let key_head = p.heads + head / (p.heads / p.kv_heads);
    let value_head = key_head + p.kv_heads;
    let first = (p.blocks - 1u - group.x) * WG * ROWS;
    let first_query = first + lane * ROWS;
    let mask_key = sequence_key(p.mask, sequence);

    var q: array<array<pack, SIZE>, ROWS>;
    var d_o: array<array<pack, SIZE>, ROWS>;
    var acc: array<array<pack, SIZE>, ROWS>;
    var offset: array<f32, ROWS>;
    var own_delta: array<f32, ROWS>;
    for (var r = 0u; r < ROWS; r++) {
        let at = packed_at(p, sequence, first_query + r, head);
        let row = row_at(p, sequence, first_query + r, head);
        var products = pack();
        for (var d = 0u; d < SIZE; d++) {
            q[r][d] = pack(qkv[at + d]) * p.scale;
            d_o[r][d] = pack(d_out[row + d]);
            products += d_o[r][d] * pack(out[row + d]);
        }
        own_delta[r] = sum_of(products);
        offset[r] = log_sum_exp[pair * p.time + min(first_query + r, p.time - 1u)];
    }

    let end = min(first + WG * ROWS, p.time);
    for (var j = 0u; j < end; j += WG) {
        let key_at = packed_at(p, sequence, j + lane, key_head);
        let value_at = packed_at(p, sequence, j + lane, value_head);
        var scores = array<array<pack, WG>, ROWS>();
        var d_probs = array<array<pack, WG>, ROWS>();
        for (var d = 0u; d < SIZE; d++) {
            let loaded_key = pack(qkv[key_at + d]);
            let loaded_value = pack(qkv[value_at + d]);
            for (var i = 0u; i < WG; i++) {
                let k = subgroupShuffle(loaded_key, i);
                let v = subgroupShuffle(loaded_value, i);
                for (var r = 0u; r < ROWS; r++) {
                    scores[r][i] += q[r][d] * k;
                    d_probs[r][i] += d_o[r][d] * v;
                }
            }
        }
        var d_scores: array<array<f32, WG>, ROWS>;
        for (var r = 0u; r < ROWS; r++) {
            for (var i = 0u; i < WG; i++) {
                // Above the diagonal the score may exceed the log-sum-exp, so it is masked before
                // exp, which could overflow.
                let visible = j + i <= first_query + r;
                let prob = exp(select(LOWEST, sum_of(scores[r][i]) - offset[r], visible));
                var d_prob = sum_of(d_probs[r][i]);
                if (DROPOUT) {
                    let index = (head * p.time + first_query + r) * p.time + j + i;
                    d_prob *= dropout_factor(p.mask, mask_key, index);
                }
                d_scores[r][i] = prob * (d_prob - own_delta[r]);
            }
        }
        for (var d = 0u; d < SIZE; d++) {
            let loaded = pack(qkv[key_at + d]);
            for (var i = 0u; i < WG; i++) {
                let k = subgroupShuffle(loaded, i);
                for (var r = 0u; r < ROWS; r++) {
                    acc[r][d] += d_scores[r][i] * k;
                }
            }
        }
    }

    for (var r = 0u; r < ROWS; r++) {
        let position = first_query + r;
        if (position < p.time) {
            let at = packed_at(p, sequence, position, head);
            for (var d = 0u; d < SIZE; d++) {
                d_qkv[at + d] = to_activation(acc[r][d] * p.scale);
            }
            delta[pair * p.time + position] = own_delta[r];
        }
    }
}
