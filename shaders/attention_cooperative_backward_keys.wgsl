// Gradients of keys and values: dv = p^T d_out and dk = ds^T q, with p and ds as in
// attention_cooperative_backward_queries.wgsl. A workgroup owns ROWS keys and loops over the
// queries from its first key on, of each head that shares the keys. Needs attention_cooperative.wgsl.

@group(0) @binding(0) var<storage, read_write> qkv: array<activation>;
@group(0) @binding(1) var<storage, read_write> d_out: array<activation>;
// log_sum_exp and delta: [batch, heads, time].
@group(0) @binding(2) var<storage, read_write> log_sum_exp: array<f32>;
@group(0) @binding(3) var<storage, read_write> delta: array<f32>;
@group(0) @binding(4) var<storage, read_write> d_qkv: array<activation>;
@group(0) @binding(5) var<uniform> p: Params;

// The log-sum-exp and delta of a tile's queries.
var<workgroup> statistics: array<array<vec4<f32>, COLUMNS / 4u>, 2>;

fn stored(part: u32, at: u32) -> activation {
    if (part == D_OUT) {
        return d_out[at];
    }
    return qkv[at];
}

fn store(at: u32, value: pack) {
    d_qkv[at] = to_activation(value);
}

// Returns the values of four positions, the last again past the end.
fn statistics4(pair: Pair, positions: vec4<u32>) -> array<vec4<f32>, 2> {
    var values = array<vec4<f32>, 2>();
    for (var i = 0u; i < 4u; i++) {
        let at = statistic_at(pair, positions[i]);
        values[0][i] = log_sum_exp[at];
        values[1][i] = delta[at];
    }
    return values;
}

@compute @workgroup_size(WG)
fn main(@builtin(workgroup_id) group: vec3<u32>, invocation: Invocation) {
    let lane = invocation.lane;
    let subgroup = subgroup_of(invocation);
    let subgroups = subgroups_of(invocation);
    var pair = sharing_pair(p.first_pair + group.y, 0u);
    let mask_key = sequence_key(p.mask, pair.sequence);
    // The first keys have the most queries, so they start first without reordering.
    let first = group.x * ROWS;
    let key = first + lane / SHARE;

    for (var first_strip = 0u; first_strip < STRIPS; first_strip += subgroups) {
        let strip = first_strip + subgroup;
        var own_keys = Rows();
        var own_values = Rows();
        stage(pair, KEY, first + first_strip * STRIP, 0u, ROWS, lane);
        workgroupBarrier();
        load_rows(&own_keys, min(subgroup, STRIPS - 1u));
        workgroupBarrier();
        stage(pair, VALUE, first + first_strip * STRIP, 0u, ROWS, lane);
        workgroupBarrier();
        load_rows(&own_values, min(subgroup, STRIPS - 1u));
        var d_keys = Sums();
        var d_values = Sums();
        for (var nth = 0u; nth < p.heads / p.kv_heads; nth++) {
            pair = sharing_pair(p.first_pair + group.y, nth);
            for (var begin = first; begin < p.time; begin += COLUMNS) {
                workgroupBarrier();
                if (TURNED) {
                    stage_turned(pair, QUERY, begin, true, lane);
                } else {
                    stage(pair, QUERY, begin, 0u, COLUMNS, lane);
                }
                stage(pair, D_OUT, begin, COLUMNS, COLUMNS, lane);
                if (lane < COLUMNS / 4u) {
                    let values = statistics4(pair, begin + 4u * lane + vec4<u32>(0u, 1u, 2u, 3u));
                    statistics[0][lane] = values[0];
                    statistics[1][lane] = values[1];
                }
                workgroupBarrier();
                if (strip < STRIPS) {
                    multiply(&own_keys, 0u, strip);
                }
                subgroup_barrier();
                var probs = scores_of(lane);
                var dropped = RowPart();
                // unroll
                for (var j = 0u; j < PER; j++) {
                    let queries = columns_from(begin, lane, j);
                    let visible = (vec4<u32>(key) <= queries) & (queries < vec4<u32>(p.time));
                    let score = probs[j] * p.scale - statistics[0][column_of(lane, j) / 4u];
                    probs[j] = exp(select(vec4<f32>(LOWEST), score, visible));
                    dropped[j] = probs[j];
                    if (DROPOUT) {
                        let index = mask_index(pair, queries.x, key);
                        dropped[j] *= dropout_factors(mask_key, index, p.time);
                    }
                }
                set_factors(dropped, lane);
                subgroup_barrier();
                if (strip < STRIPS) {
                    multiply(&own_values, COLUMNS, strip);
                    accumulate(&d_values, COLUMNS, strip);
                }
                subgroup_barrier();
                var d_scores = scores_of(lane);
                // unroll
                for (var j = 0u; j < PER; j++) {
                    if (DROPOUT) {
                        let index = mask_index(pair, begin + column_of(lane, j), key);
                        d_scores[j] *= dropout_factors(mask_key, index, p.time);
                    }
                    // This is scaled before it is rounded to f16, because the factor is below 1.
                    let difference = d_scores[j] - statistics[1][column_of(lane, j) / 4u];
                    d_scores[j] = probs[j] * difference * p.scale;
                }
                set_factors(d_scores, lane);
                subgroup_barrier();
                if (strip < STRIPS && TURNED) {
                    accumulate_turned(&d_keys, strip);
                } else if (strip < STRIPS) {
                    accumulate(&d_keys, 0u, strip);
                }
            }
        }
        store_sums(&d_keys, pair, KEY, first, strip, first_strip, subgroups, lane);
        store_sums(&d_values, pair, VALUE, first, strip, first_strip, subgroups, lane);
    }
}
