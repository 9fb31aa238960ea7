// Gradients of keys and values: dv = p^T d_out and dk = ds^T q * scale, with p and ds as in
// attention_blocked_backward_queries.wgsl. A workgroup owns ROWS keys and loops over the queries
// from its first key on, of each head that shares the keys. Needs attention_blocked.wgsl.

@group(0) @binding(0) var<storage, read_write> qkv: array<activation>;
@group(0) @binding(1) var<storage, read_write> d_out: array<activation>;
// log_sum_exp and delta: [batch, heads, time].
@group(0) @binding(2) var<storage, read_write> log_sum_exp: array<f32>;
@group(0) @binding(3) var<storage, read_write> delta: array<f32>;
@group(0) @binding(4) var<storage, read_write> d_qkv: array<activation>;
@group(0) @binding(5) var<uniform> p: Params;

fn load(part: u32, at: u32) -> pack {
    if (part == D_OUT) {
        return pack(d_out[at]);
    }
    return pack(qkv[at]);
}

fn store(at: u32, value: pack) {
    d_qkv[at] = to_activation(value);
}

@compute @workgroup_size(WG)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    var pair = sharing_pair(p.first_pair + group.y, 0u);
    let mask_key = sequence_key(p.mask, pair.sequence);
    // The first keys have the most queries, so they start first without reordering.
    let first = group.x * ROWS;
    let cell = cell_of(lane);
    let keys = rows_from(first, cell);

    var d_keys = Sums();
    var d_values = Sums();
    for (var nth = 0u; nth < p.heads / p.kv_heads; nth++) {
        pair = sharing_pair(p.first_pair + group.y, nth);
        for (var begin = first; begin < p.time; begin += COLUMNS) {
            var probs = products(pair, KEY, first, QUERY, begin, lane);
            var d_scores = products(pair, VALUE, first, D_OUT, begin, lane);
            // unroll
            for (var j = 0u; j < PER; j++) {
                let query = begin + cell.x + j * LANES;
                let at = statistic_at(pair, query);
                let visible = (keys <= vec4<u32>(query)) & vec4<bool>(query < p.time);
                let score = probs[j] * p.scale - log_sum_exp[at];
                let prob = exp(select(vec4<f32>(LOWEST), score, visible));
                var factors = vec4<f32>(1.0);
                if (DROPOUT) {
                    factors = dropout_factors(mask_key, mask_index(pair, query, keys.x), ROW_STEP);
                }
                probs[j] = prob * factors;
                d_scores[j] = prob * (d_scores[j] * factors - delta[at]);
            }
            accumulate(&d_values, probs, pair, D_OUT, begin, lane);
            accumulate(&d_keys, d_scores, pair, QUERY, begin, lane);
        }
    }
    store_sums(&d_keys, vec4<f32>(p.scale), pair, KEY, first, lane);
    store_sums(&d_values, vec4<f32>(1.0), pair, VALUE, first, lane);
}
