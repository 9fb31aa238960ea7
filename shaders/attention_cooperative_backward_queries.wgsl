// Gradient of the queries, and delta = rowsum(d_out * out), which
// attention_cooperative_backward_keys.wgsl reads. With p the probabilities, recomputed from the
// log-sum-exp: ds = p * (d_out v^T - delta) * scale and dq = ds k. A workgroup owns ROWS queries
// and loops over the keys up to its last query. Needs attention_cooperative.wgsl.

@group(0) @binding(0) var<storage, read_write> qkv: array<activation>;
@group(0) @binding(1) var<storage, read_write> out: array<activation>;
@group(0) @binding(2) var<storage, read_write> d_out: array<activation>;
// log_sum_exp and delta: [batch, heads, time].
@group(0) @binding(3) var<storage, read_write> log_sum_exp: array<f32>;
@group(0) @binding(4) var<storage, read_write> delta: array<f32>;
@group(0) @binding(5) var<storage, read_write> d_qkv: array<activation>;
@group(0) @binding(6) var<uniform> p: Params;

fn stored(part: u32, at: u32) -> activation {
    if (part == OUT) {
        return out[at];
    }
    if (part == D_OUT) {
        return d_out[at];
    }
    return qkv[at];
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
    let query = first + lane / SHARE;
    let end = min(first + ROWS, p.time);

    var products = 0.0;
    for (var d = lane % SHARE; d < SIZE4; d += SHARE) {
        products += dot(row4(pair, D_OUT, query, d), row4(pair, OUT, query, d));
    }
    let own_delta = row_sum(products, lane);
    let offset = log_sum_exp[statistic_at(pair, query)];
    if (lane % SHARE == 0u && query < p.time) {
        delta[statistic_at(pair, query)] = own_delta;
    }

    for (var first_strip = 0u; first_strip < STRIPS; first_strip += subgroups) {
        let strip = first_strip + subgroup;
        var own = Rows();
        var own_d_out = Rows();
        stage(pair, QUERY, first + first_strip * STRIP, 0u, ROWS, lane);
        workgroupBarrier();
        load_rows(&own, min(subgroup, STRIPS - 1u));
        workgroupBarrier();
        stage(pair, D_OUT, first + first_strip * STRIP, 0u, ROWS, lane);
        workgroupBarrier();
        load_rows(&own_d_out, min(subgroup, STRIPS - 1u));
        var acc = Sums();
        for (var begin = 0u; begin < end; begin += COLUMNS) {
            workgroupBarrier();
            if (TURNED) {
                stage_turned(pair, KEY, begin, true, lane);
            } else {
                stage(pair, KEY, begin, 0u, COLUMNS, lane);
            }
            stage(pair, VALUE, begin, COLUMNS, COLUMNS, lane);
            workgroupBarrier();
            if (strip < STRIPS) {
                multiply(&own, 0u, strip);
            }
            subgroup_barrier();
            var probs = scores_of(lane);
            subgroup_barrier();
            if (strip < STRIPS) {
                multiply(&own_d_out, COLUMNS, strip);
            }
            subgroup_barrier();
            var d_scores = scores_of(lane);
            // unroll
            for (var j = 0u; j < PER; j++) {
                let visible = columns_from(begin, lane, j) <= vec4<u32>(query);
                // Above the diagonal the score may exceed the log-sum-exp, so it is masked before
                // exp, which could overflow.
                let prob = exp(select(vec4<f32>(LOWEST), probs[j] * p.scale - offset, visible));
                if (DROPOUT) {
                    let index = mask_index(pair, query, begin + column_of(lane, j));
                    d_scores[j] *= dropout_factors(mask_key, index, 1u);
                }
                // This is scaled before it is rounded to f16, because the factor is below 1.
                d_scores[j] = prob * (d_scores[j] - own_delta) * p.scale;
            }
            set_factors(d_scores, lane);
            subgroup_barrier();
            if (strip < STRIPS && TURNED) {
                accumulate_turned(&acc, strip);
            } else if (strip < STRIPS) {
                accumulate(&acc, 0u, strip);
            }
        }
        store_sums(&acc, pair, QUERY, first, strip, first_strip, subgroups, lane);
    }
}
