// Causal attention: out = softmax(q k^T * scale) v, and the log-sum-exp of each row of scores, by
// an online softmax (Dao et al. 2022, arXiv:2205.14135). A workgroup owns ROWS queries and loops
// over the keys up to its last query. Needs attention_blocked.wgsl.

@group(0) @binding(0) var<storage, read_write> qkv: array<activation>;
@group(0) @binding(1) var<storage, read_write> out: array<activation>;
// [batch, heads, time].
@group(0) @binding(2) var<storage, read_write> log_sum_exp: array<f32>;
@group(0) @binding(3) var<uniform> p: Params;

fn load(part: u32, at: u32) -> pack {
    return pack(qkv[at]);
}

fn store(at: u32, value: pack) {
    out[at] = to_activation(value);
}

@compute @workgroup_size(WG)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let pair = pair_of(p.first_pair + group.y);
    let mask_key = sequence_key(p.mask, pair.sequence);
    // The last queries attend to the most keys. They start first, so that no long workgroup is left
    // over at the end of the dispatch.
    let first = (p.blocks - 1u - group.x) * ROWS;
    let cell = cell_of(lane);
    let queries = rows_from(first, cell);

    var acc = Sums();
    var row_max = vec4<f32>(LOWEST);
    // The sum over this invocation's columns only.
    var sum = vec4<f32>();
    let end = min(first + ROWS, p.time);
    for (var begin = 0u; begin < end; begin += COLUMNS) {
        var probs = products(pair, QUERY, first, KEY, begin, lane);
        var new_max = row_max;
        // unroll
        for (var j = 0u; j < PER; j++) {
            let key = begin + cell.x + j * LANES;
            probs[j] = select(vec4<f32>(LOWEST), probs[j] * p.scale, vec4<u32>(key) <= queries);
            new_max = max(new_max, probs[j]);
        }
        new_max = row_maxima(new_max, cell);
        let rescale = exp(row_max - new_max);
        row_max = new_max;
        sum *= rescale;
        // unroll
        for (var j = 0u; j < PER; j++) {
            probs[j] = exp(probs[j] - new_max);
            sum += probs[j];
            if (DROPOUT) {
                let index = mask_index(pair, queries.x, begin + cell.x + j * LANES);
                probs[j] *= dropout_factors(mask_key, index, ROW_STEP * p.time);
            }
        }
        // unroll
        for (var j = 0u; j < BLOCKS; j++) {
            acc[j] = mat4x4<f32>(
                acc[j][0] * rescale.x,
                acc[j][1] * rescale.y,
                acc[j][2] * rescale.z,
                acc[j][3] * rescale.w,
            );
        }
        accumulate(&acc, probs, pair, VALUE, begin, lane);
    }

    workgroupBarrier();
    let total = row_sums(sum, cell);
    store_sums(&acc, 1.0 / total, pair, OUT, first, lane);
    if (cell.x == 0u) {
        let row = row_max + log(total);
        for (var i = 0u; i < 4u; i++) {
            if (queries[i] < p.time) {
                log_sum_exp[statistic_at(pair, queries[i])] = row[i];
            }
        }
    }
}
