// Gradient of the queries, and delta = rowsum(d_out * out), which
// attention_blocked_backward_keys.wgsl reads. With p the probabilities, recomputed from the
// log-sum-exp: ds = p * (d_out v^T - delta) and dq = ds k * scale. A workgroup owns ROWS queries
// and loops over the keys up to its last query. Needs attention_blocked.wgsl.

@group(0) @binding(0) var<storage, read_write> qkv: array<activation>;
@group(0) @binding(1) var<storage, read_write> out: array<activation>;
@group(0) @binding(2) var<storage, read_write> d_out: array<activation>;
// log_sum_exp and delta: [batch, heads, time].
@group(0) @binding(3) var<storage, read_write> log_sum_exp: array<f32>;
@group(0) @binding(4) var<storage, read_write> delta: array<f32>;
@group(0) @binding(5) var<storage, read_write> d_qkv: array<activation>;
@group(0) @binding(6) var<uniform> p: Params;

fn load(part: u32, at: u32) -> pack {
    if (part == OUT) {
        return pack(out[at]);
    }
    if (part == D_OUT) {
        return pack(d_out[at]);
    }
    return pack(qkv[at]);
}

fn store(at: u32, value: pack) {
    d_qkv[at] = to_activation(value);
}

// Returns the deltas of an invocation's rows.
fn deltas(pair: Pair, rows: vec4<u32>, cell: vec2<u32>) -> vec4<f32> {
    var sum = vec4<f32>();
    for (var d = cell.x; d < SIZE4; d += LANES) {
        sum += vec4<f32>(
            dot(row4(pair, D_OUT, rows.x, d), row4(pair, OUT, rows.x, d)),
            dot(row4(pair, D_OUT, rows.y, d), row4(pair, OUT, rows.y, d)),
            dot(row4(pair, D_OUT, rows.z, d), row4(pair, OUT, rows.z, d)),
            dot(row4(pair, D_OUT, rows.w, d), row4(pair, OUT, rows.w, d)),
        );
    }
    return row_sums(sum, cell);
}

@compute @workgroup_size(WG)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let pair = pair_of(p.first_pair + group.y);
    let mask_key = sequence_key(p.mask, pair.sequence);
    let first = (p.blocks - 1u - group.x) * ROWS;
    let cell = cell_of(lane);
    let queries = rows_from(first, cell);

    let delta_of_rows = deltas(pair, queries, cell);
    let offset = vec4<f32>(
        log_sum_exp[statistic_at(pair, queries.x)],
        log_sum_exp[statistic_at(pair, queries.y)],
        log_sum_exp[statistic_at(pair, queries.z)],
        log_sum_exp[statistic_at(pair, queries.w)],
    );

    var acc = Sums();
    let end = min(first + ROWS, p.time);
    for (var begin = 0u; begin < end; begin += COLUMNS) {
        var scores = products(pair, QUERY, first, KEY, begin, lane);
        var d_scores = products(pair, D_OUT, first, VALUE, begin, lane);
        // unroll
        for (var j = 0u; j < PER; j++) {
            let key = begin + cell.x + j * LANES;
            // Above the diagonal the score may exceed the log-sum-exp, so it is masked before exp,
            // which could overflow.
            let score = scores[j] * p.scale - offset;
            let prob = exp(select(vec4<f32>(LOWEST), score, vec4<u32>(key) <= queries));
            if (DROPOUT) {
                let index = mask_index(pair, queries.x, key);
                d_scores[j] *= dropout_factors(mask_key, index, ROW_STEP * p.time);
            }
            d_scores[j] = prob * (d_scores[j] - delta_of_rows);
        }
        accumulate(&acc, d_scores, pair, KEY, begin, lane);
    }

    store_sums(&acc, vec4<f32>(p.scale), pair, QUERY, first, lane);
    if (cell.x == 0u) {
        for (var i = 0u; i < 4u; i++) {
            if (queries[i] < p.time) {
                delta[statistic_at(pair, queries[i])] = delta_of_rows[i];
            }
        }
    }
}
