// Causal attention: out = softmax(q k^T * scale) v, and the log-sum-exp of each row of scores, by
// an online softmax (Dao et al. 2022, arXiv:2205.14135). The workgroup is one subgroup. Each
// invocation owns ROWS queries, so their softmax needs no exchange. It loads the rows of one key at
// a time, and the others read them by shuffles: WG keys in each iteration, up to the last query.
// Needs dropout_mask.wgsl, attention_rows.wgsl.

@group(0) @binding(0) var<storage, read_write> qkv: array<activation>;
@group(0) @binding(1) var<storage, read_write> out: array<activation>;
// [batch, heads, time].
@group(0) @binding(2) var<storage, read_write> log_sum_exp: array<f32>;
@group(0) @binding(3) var<uniform> p: Params;

@compute @workgroup_size(WG)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let pair = p.first_pair + group.y;
    let sequence = pair / p.heads;
    let head = pair % p.heads;
    let key_head = p.heads + head / (p.heads / p.kv_heads);
    let value_head = key_head + p.kv_heads;
    // The last queries attend to the most keys. They start first, so that no long workgroup is left
    // over at the end of the dispatch.
    let first = (p.blocks - 1u - group.x) * WG * ROWS;
    let first_query = first + lane * ROWS;
    let mask_key = sequence_key(p.mask, sequence);

    var q: array<array<pack, SIZE>, ROWS>;
    var acc: array<array<pack, SIZE>, ROWS>;
    var row_max: array<f32, ROWS>;
    var sum: array<f32, ROWS>;
    for (var r = 0u; r < ROWS; r++) {
        row_max[r] = LOWEST;
        let at = packed_at(p, sequence, first_query + r, head);
        for (var d = 0u; d < SIZE; d++) {
            q[r][d] = pack(qkv[at + d]) * p.scale;
        }
    }

    let end = min(first + WG * ROWS, p.time);
    for (var j = 0u; j < end; j += WG) {
        let key_at = packed_at(p, sequence, j + lane, key_head);
        let value_at = packed_at(p, sequence, j + lane, value_head);
        // This is initialised explicitly, because SwiftShader under Chromium would keep the values
        // of the previous iteration.
        var products = array<array<pack, WG>, ROWS>();
        for (var d = 0u; d < SIZE; d++) {
            let loaded = pack(qkv[key_at + d]);
            for (var i = 0u; i < WG; i++) {
                let k = subgroupShuffle(loaded, i);
                for (var r = 0u; r < ROWS; r++) {
                    products[r][i] += q[r][d] * k;
                }
            }
        }
        var probs: array<array<f32, WG>, ROWS>;
        for (var r = 0u; r < ROWS; r++) {
            var new_max = row_max[r];
            for (var i = 0u; i < WG; i++) {
                probs[r][i] = select(LOWEST, sum_of(products[r][i]), j + i <= first_query + r);
                new_max = max(new_max, probs[r][i]);
            }
            let rescale = exp(row_max[r] - new_max);
            row_max[r] = new_max;
            sum[r] *= rescale;
            for (var i = 0u; i < WG; i++) {
                probs[r][i] = exp(probs[r][i] - new_max);
                sum[r] += probs[r][i];
                if (DROPOUT) {
                    let index = (head * p.time + first_query + r) * p.time + j + i;
                    probs[r][i] *= dropout_factor(p.mask, mask_key, index);
                }
            }
            for (var d = 0u; d < SIZE; d++) {
                acc[r][d] *= rescale;
            }
        }
        for (var d = 0u; d < SIZE; d++) {
            let loaded = pack(qkv[value_at + d]);
            for (var i = 0u; i < WG; i++) {
                let v = subgroupShuffle(loaded, i);
                for (var r = 0u; r < ROWS; r++) {
                    acc[r][d] += probs[r][i] * v;
                }
            }
        }
    }

    for (var r = 0u; r < ROWS; r++) {
        let position = first_query + r;
        if (position < p.time) {
            let at = row_at(p, sequence, position, head);
            for (var d = 0u; d < SIZE; d++) {
                out[at + d] = to_activation(acc[r][d] / sum[r]);
            }
            log_sum_exp[pair * p.time + position] = row_max[r] + log(sum[r]);
        }
    }
}
