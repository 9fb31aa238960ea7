// Gradients of keys and values: dv = p^T d_out and dk = ds^T q, with p and ds as in
// attention_cooperative_backward_queries.wgsl. A workgroup owns ROWS keys and loops over the
// queries from its first key on. Needs attention_cooperative.wgsl.

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
fn main(@builtin(workgroup_id) group: vec3<u32>, invocation: Invocation) {
    let lane = invocation.lane;
    let subgroup = subgroup_of(invocation);
    let subgroups = subgroups_of(invocation);
    let pair = pair_of(p.first_pair + group.y);
    let mask_key = sequence_key(p.mask, pair.sequence);
    // The first keys have the most queries, so they start first without reordering.
    let first = group.x * ROWS;
    let cell = cell_of(lane);
    let keys = rows_from(first, cell);
    if (lane < ROWS) {
        row_factors[lane] = 1.0;
    }

    for (var first_strip = 0u; first_strip < STRIPS; first_strip += subgroups) {
        let strip = first_strip + subgroup;
        var own_keys = Rows();
        var own_values = Rows();
        stage(pair, KEY, first, 0u, ROWS, lane);
        workgroupBarrier();
        if (strip < STRIPS) {
            load_rows(&own_keys, strip);
        }
        workgroupBarrier();
        stage(pair, VALUE, first, 0u, ROWS, lane);
        workgroupBarrier();
        if (strip < STRIPS) {
            load_rows(&own_values, strip);
        }
        var d_keys = Sums();
        var d_values = Sums();
        for (var begin = first; begin < p.time; begin += COLUMNS) {
            workgroupBarrier();
            stage(pair, QUERY, begin, 0u, COLUMNS, lane);
            stage(pair, D_OUT, begin, COLUMNS, COLUMNS, lane);
            workgroupBarrier();
            if (strip < STRIPS) {
                multiply(&own_keys, 0u, strip);
            }
            workgroupBarrier();
            var probs = scores_of(cell);
            var dropped = Block();
            // unroll
            for (var j = 0u; j < PER; j++) {
                let query = begin + cell.x + j * LANES;
                let visible = (keys <= vec4<u32>(query)) & vec4<bool>(query < p.time);
                let score = probs[j] * p.scale - log_sum_exp[statistic_at(pair, query)];
                probs[j] = exp(select(vec4<f32>(LOWEST), score, visible));
                dropped[j] = probs[j];
                if (DROPOUT) {
                    let index = mask_index(pair, query, keys.x);
                    dropped[j] *= dropout_factors(mask_key, index, ROW_STEP);
                }
            }
            set_factors(dropped, cell);
            workgroupBarrier();
            if (strip < STRIPS) {
                multiply(&own_values, COLUMNS, strip);
                accumulate(&d_values, COLUMNS, strip);
            }
            workgroupBarrier();
            var d_scores = scores_of(cell);
            // unroll
            for (var j = 0u; j < PER; j++) {
                let query = begin + cell.x + j * LANES;
                if (DROPOUT) {
                    let index = mask_index(pair, query, keys.x);
                    d_scores[j] *= dropout_factors(mask_key, index, ROW_STEP);
                }
                // This is scaled before it is rounded to f16, because the factor is below 1.
                let difference = d_scores[j] - delta[statistic_at(pair, query)];
                d_scores[j] = probs[j] * difference * p.scale;
            }
            set_factors(d_scores, cell);
            workgroupBarrier();
            if (strip < STRIPS) {
                accumulate(&d_keys, 0u, strip);
            }
        }
        store_sums(&d_keys, pair, KEY, first, strip, first_strip, subgroups, lane);
        store_sums(&d_values, pair, VALUE, first, strip, first_strip, subgroups, lane);
    }
}
