// Gradient of the queries, and delta = rowsum(d_out * out), which attention_backward_keys.wgsl
// reads. With p the probabilities, recomputed from the log-sum-exp: ds = p * (d_out v^T - delta)
// and dq = ds k * scale. Each invocation owns ROWS queries; the workgroup loops over the keys up to
// its last query. Needs dropout_mask.wgsl, attention_rows.wgsl, and attention_rows_staged.wgsl or
// attention_rows_shuffled.wgsl.

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
    let first = (p.blocks - 1u - group.x) * WG * ROWS;
    let first_query = first + lane * ROWS;
    let mask_key = sequence_key(p.mask, sequence);

    var q: array<array<pack, SIZE>, ROWS>;
    var d_o: array<array<pack, SIZE>, ROWS>;
    var acc: array<array<pack, SIZE>, ROWS>;
    var offset: array<f32, ROWS>;
    var own_delta: array<f32, ROWS>;
    for (var r = 0u; r < ROWS; r++) {
        let at = packed_at(p, sequence, first_query + r, head, 0u);
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
    for (var begin = 0u; begin < end; begin += TILE) {
        if (STAGED) {
            for (var i = lane; i < TILE * SIZE; i += WG) {
                let position = begin + i / SIZE;
                let d = i % SIZE;
                let k = pack(qkv[packed_at(p, sequence, position, head, 1u) + d]);
                let v = pack(qkv[packed_at(p, sequence, position, head, 2u) + d]);
                store_rows(i, k, v);
            }
            workgroupBarrier();
        }
        let tile_end = min(begin + TILE, end);
        for (var j = begin; j < tile_end; j += STEP) {
            let tile_row = j - begin;
            let key_at = packed_at(p, sequence, j + lane, head, 1u);
            let value_at = packed_at(p, sequence, j + lane, head, 2u);
            var scores = array<array<pack, STEP>, ROWS>();
            var d_probs = array<array<pack, STEP>, ROWS>();
            for (var d = 0u; d < SIZE; d++) {
                var loaded_key: pack;
                var loaded_value: pack;
                if (!STAGED) {
                    loaded_key = pack(qkv[key_at + d]);
                    loaded_value = pack(qkv[value_at + d]);
                }
                for (var i = 0u; i < STEP; i++) {
                    let k = first_row(loaded_key, i, tile_row + i, d);
                    let v = second_row(loaded_value, i, tile_row + i, d);
                    for (var r = 0u; r < ROWS; r++) {
                        scores[r][i] += q[r][d] * k;
                        d_probs[r][i] += d_o[r][d] * v;
                    }
                }
            }
            var d_scores: array<array<f32, STEP>, ROWS>;
            for (var r = 0u; r < ROWS; r++) {
                for (var i = 0u; i < STEP; i++) {
                    // Above the diagonal the score may exceed the log-sum-exp: masked before exp,
                    // which could overflow.
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
                var loaded: pack;
                if (!STAGED) {
                    loaded = pack(qkv[key_at + d]);
                }
                for (var i = 0u; i < STEP; i++) {
                    let k = first_row(loaded, i, tile_row + i, d);
                    for (var r = 0u; r < ROWS; r++) {
                        acc[r][d] += d_scores[r][i] * k;
                    }
                }
            }
        }
        if (STAGED) {
            workgroupBarrier();
        }
    }

    for (var r = 0u; r < ROWS; r++) {
        let position = first_query + r;
        if (position < p.time) {
            let at = packed_at(p, sequence, position, head, 0u);
            for (var d = 0u; d < SIZE; d++) {
                d_qkv[at + d] = activation(acc[r][d] * p.scale);
            }
            delta[pair * p.time + position] = own_delta[r];
        }
    }
}
