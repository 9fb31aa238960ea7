// Gradient of the queries, and delta = rowsum(d_out * out), which
// attention_cooperative_backward_keys.wgsl reads. With p the probabilities, recomputed from the
// log-sum-exp: ds = p * (d_out v^T - delta) * scale and dq = ds k. A workgroup owns ROWS queries
// and loops over the keys up to its last query. Needs attention_cooperative.wgsl,
// attention_delta.wgsl.

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

@compute @workgroup_size(WG)
fn main(@builtin(workgroup_id) group: vec3<u32>, invocation: Invocation) {
    let lane = invocation.lane;
    let subgroup = subgroup_of(invocation);
    let subgroups = subgroups_of(invocation);
    let pair = pair_of(p.first_pair + group.y);
    let mask_key = sequence_key(p.mask, pair.sequence);
    let first = (p.blocks - 1u - group.x) * ROWS;
    let cell = cell_of(lane);
    let queries = rows_from(first, cell);
    let end = min(first + ROWS, p.time);

    let delta_of_rows = deltas(pair, queries, cell);
    let offset = vec4<f32>(
        log_sum_exp[statistic_at(pair, queries.x)],
        log_sum_exp[statistic_at(pair, queries.y)],
        log_sum_exp[statistic_at(pair, queries.z)],
        log_sum_exp[statistic_at(pair, queries.w)],
    );
    if (cell.x == 0u) {
        for (var i = 0u; i < 4u; i++) {
            row_factors[Y_STEP * cell.y + i] = 1.0;
            if (queries[i] < p.time) {
                delta[statistic_at(pair, queries[i])] = delta_of_rows[i];
            }
        }
    }

    for (var first_strip = 0u; first_strip < STRIPS; first_strip += subgroups) {
        let strip = first_strip + subgroup;
        var own = Rows();
        var own_d_out = Rows();
        stage(pair, QUERY, first, 0u, ROWS, lane);
        workgroupBarrier();
        if (strip < STRIPS) {
            load_rows(&own, strip);
        }
        workgroupBarrier();
        stage(pair, D_OUT, first, 0u, ROWS, lane);
        workgroupBarrier();
        if (strip < STRIPS) {
            load_rows(&own_d_out, strip);
        }
        var acc = Sums();
        for (var begin = 0u; begin < end; begin += COLUMNS) {
            workgroupBarrier();
            stage(pair, KEY, begin, 0u, COLUMNS, lane);
            stage(pair, VALUE, begin, COLUMNS, COLUMNS, lane);
            workgroupBarrier();
            if (strip < STRIPS) {
                multiply(&own, 0u, strip);
            }
            workgroupBarrier();
            var probs = scores_of(cell);
            workgroupBarrier();
            if (strip < STRIPS) {
                multiply(&own_d_out, COLUMNS, strip);
            }
            workgroupBarrier();
            var d_scores = scores_of(cell);
            // unroll
            for (var j = 0u; j < PER; j++) {
                let key = begin + cell.x + j * LANES;
                // Above the diagonal the score may exceed the log-sum-exp, so it is masked before
                // exp, which could overflow.
                let score = probs[j] * p.scale - offset;
                let prob = exp(select(vec4<f32>(LOWEST), score, vec4<u32>(key) <= queries));
                if (DROPOUT) {
                    let index = mask_index(pair, queries.x, key);
                    d_scores[j] *= dropout_factors(mask_key, index, ROW_STEP * p.time);
                }
                // This is scaled before it is rounded to f16, because the factor is below 1.
                d_scores[j] = prob * (d_scores[j] - delta_of_rows) * p.scale;
            }
            set_factors(d_scores, cell);
            workgroupBarrier();
            if (strip < STRIPS) {
                accumulate(&acc, 0u, strip);
            }
        }
        store_sums(&acc, pair, QUERY, first, strip, first_strip, subgroups, lane);
    }
}
