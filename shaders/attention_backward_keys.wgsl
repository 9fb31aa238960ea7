// Gradients of keys and values: dv = p^T d_out and dk = ds^T q * scale, with p and ds as in
// attention_backward_queries.wgsl. The workgroup is one subgroup, each invocation owns ROWS keys,
// and queries of all heads that share them, from the first key on, are shared by shuffles as in
// attention_forward.wgsl. Needs dropout_mask.wgsl, attention_rows.wgsl.

@group(0) @binding(0) var<storage, read_write> qkv: array<activation>;
@group(0) @binding(1) var<storage, read_write> d_out: array<activation>;
// log_sum_exp and delta: [batch, heads, time].
@group(0) @binding(2) var<storage, read_write> log_sum_exp: array<f32>;
@group(0) @binding(3) var<storage, read_write> delta: array<f32>;
@group(0) @binding(4) var<storage, read_write> d_qkv: array<activation>;
@group(0) @binding(5) var<uniform> p: Params;

// Returns the log-sum-exp and the delta of a query.
fn statistics_at(pair: u32, position: u32) -> vec2<f32> {
    let at = pair * p.time + min(position, p.time - 1u);
    return vec2<f32>(log_sum_exp[at], delta[at]);
}

@compute @workgroup_size(WG)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let pair = p.first_pair + group.y;
    let sequence = pair / p.kv_heads;
    let sharing = p.heads / p.kv_heads;
    let key_head = p.heads + pair % p.kv_heads;
    let value_head = key_head + p.kv_heads;
    // The first keys have the most queries, so they start first without reordering.
    let first = group.x * WG * ROWS;
    let first_key = first + lane * ROWS;
    let mask_key = sequence_key(p.mask, sequence);

    var k: array<array<pack, SIZE>, ROWS>;
    var v: array<array<pack, SIZE>, ROWS>;
    var d_k: array<array<pack, SIZE>, ROWS>;
    var d_v: array<array<pack, SIZE>, ROWS>;
    for (var r = 0u; r < ROWS; r++) {
        let key_at = packed_at(p, sequence, first_key + r, key_head);
        let value_at = packed_at(p, sequence, first_key + r, value_head);
        for (var d = 0u; d < SIZE; d++) {
            k[r][d] = pack(qkv[key_at + d]) * p.scale;
            v[r][d] = pack(qkv[value_at + d]);
        }
    }

    // Query tiles of all heads that share the keys, head by head.
    let tiles = (p.time - first + WG - 1u) / WG;
    for (var tile = 0u; tile < sharing * tiles; tile++) {
        let head = pair % p.kv_heads * sharing + tile / tiles;
        let j = first + tile % tiles * WG;
        let query_at = packed_at(p, sequence, j + lane, head);
        let row = row_at(p, sequence, j + lane, head);
        var scores = array<array<pack, WG>, ROWS>();
        var d_probs = array<array<pack, WG>, ROWS>();
        for (var d = 0u; d < SIZE; d++) {
            let loaded_query = pack(qkv[query_at + d]);
            let loaded_d_o = pack(d_out[row + d]);
            for (var i = 0u; i < WG; i++) {
                let q = subgroupShuffle(loaded_query, i);
                let d_o = subgroupShuffle(loaded_d_o, i);
                for (var r = 0u; r < ROWS; r++) {
                    scores[r][i] += q * k[r][d];
                    d_probs[r][i] += d_o * v[r][d];
                }
            }
        }
        let loaded_statistics = statistics_at(sequence * p.heads + head, j + lane);
        var probs: array<array<f32, WG>, ROWS>;
        var d_scores: array<array<f32, WG>, ROWS>;
        for (var i = 0u; i < WG; i++) {
            let statistics = subgroupShuffle(loaded_statistics, i);
            for (var r = 0u; r < ROWS; r++) {
                let visible = first_key + r <= j + i && j + i < p.time;
                let prob = exp(select(LOWEST, sum_of(scores[r][i]) - statistics.x, visible));
                var factor = 1.0;
                if (DROPOUT) {
                    let index = (head * p.time + j + i) * p.time + first_key + r;
                    factor = dropout_factor(p.mask, mask_key, index);
                }
                probs[r][i] = prob * factor;
                d_scores[r][i] = prob * (sum_of(d_probs[r][i]) * factor - statistics.y);
            }
        }
        for (var d = 0u; d < SIZE; d++) {
            let loaded_query = pack(qkv[query_at + d]);
            let loaded_d_o = pack(d_out[row + d]);
            for (var i = 0u; i < WG; i++) {
                let q = subgroupShuffle(loaded_query, i);
                let d_o = subgroupShuffle(loaded_d_o, i);
                for (var r = 0u; r < ROWS; r++) {
                    d_k[r][d] += d_scores[r][i] * q;
                    d_v[r][d] += probs[r][i] * d_o;
                }
            }
        }
    }

    for (var r = 0u; r < ROWS; r++) {
        let position = first_key + r;
        if (position < p.time) {
            let key_at = packed_at(p, sequence, position, key_head);
            let value_at = packed_at(p, sequence, position, value_head);
            for (var d = 0u; d < SIZE; d++) {
                d_qkv[key_at + d] = to_activation(d_k[r][d] * p.scale);
                d_qkv[value_at + d] = to_activation(d_v[r][d]);
            }
        }
    }
}
