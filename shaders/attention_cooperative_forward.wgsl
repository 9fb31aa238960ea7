// Causal attention: out = softmax(q k^T * scale) v, and the log-sum-exp of each row of scores, by
// an online softmax (Dao et al. 2022, arXiv:2205.14135). A workgroup owns ROWS queries and loops
// over the keys up to its last query.
//
// Scores are relative to a reference of their row, which need not be its maximum. As long as no
// score exceeds it by more than GROWTH, the sums, which are in matrices that cannot be multiplied
// row by row, stay as they are. A reference is a score of its row, so that the largest probability
// is between 1 and exp(GROWTH), within the range of f16. Needs attention_cooperative.wgsl.

@group(0) @binding(0) var<storage, read_write> qkv: array<activation>;
@group(0) @binding(1) var<storage, read_write> out: array<activation>;
// [batch, heads, time].
@group(0) @binding(2) var<storage, read_write> log_sum_exp: array<f32>;
@group(0) @binding(3) var<uniform> p: Params;

const GROWTH = 8.0;

// One more than the last `begin` at which a score has exceeded its row's reference: of each strip, or,
// where all wait for each other, of all strips.
var<workgroup> growth: array<atomic<u32>, STRIPS>;

fn stored(part: u32, at: u32) -> activation {
    return qkv[at];
}

fn store(at: u32, value: pack) {
    out[at] = to_activation(value);
}

@compute @workgroup_size(WG)
fn main(@builtin(workgroup_id) group: vec3<u32>, invocation: Invocation) {
    let lane = invocation.lane;
    let subgroup = subgroup_of(invocation);
    let subgroups = subgroups_of(invocation);
    let pair = pair_of(p.first_pair + group.y);
    let mask_key = sequence_key(p.mask, pair.sequence);
    // The last queries attend to the most keys. They start first, so that no long workgroup is left
    // over at the end of the dispatch.
    let first = (p.blocks - 1u - group.x) * ROWS;
    let query = first + lane / SHARE;
    let end = min(first + ROWS, p.time);
    let own_growth = select(0u, lane / (STRIP * SHARE), SUBGROUPS > 0u);

    for (var first_strip = 0u; first_strip < STRIPS; first_strip += subgroups) {
        let strip = first_strip + subgroup;
        var own = Rows();
        stage(pair, QUERY, first + first_strip * STRIP, 0u, ROWS, lane);
        if (lane < STRIPS) {
            atomicStore(&growth[lane], 0u);
        }
        workgroupBarrier();
        load_rows(&own, min(subgroup, STRIPS - 1u));
        var acc = Sums();
        var reference = LOWEST;
        // The sum over this invocation's columns only.
        var sum = 0.0;
        for (var begin = 0u; begin < end; begin += COLUMNS) {
            workgroupBarrier();
            stage(pair, KEY, begin, 0u, COLUMNS, lane);
            if (TURNED) {
                stage_turned(pair, VALUE, begin, false, lane);
            } else {
                stage(pair, VALUE, begin, COLUMNS, COLUMNS, lane);
            }
            workgroupBarrier();
            if (strip < STRIPS) {
                multiply(&own, 0u, strip);
            }
            subgroup_barrier();
            var probs = scores_of(lane);
            var maxima = vec4<f32>(LOWEST);
            // unroll
            for (var j = 0u; j < PER; j++) {
                let visible = columns_from(begin, lane, j) <= vec4<u32>(query);
                probs[j] = select(vec4<f32>(LOWEST), probs[j] * p.scale, visible);
                maxima = max(maxima, probs[j]);
            }
            let largest = max(max(maxima.x, maxima.y), max(maxima.z, maxima.w));
            if (largest > reference + GROWTH && in_round(lane, first_strip, subgroups)) {
                atomicStore(&growth[own_growth], begin + 1u);
            }
            subgroup_barrier();
            // The same for all that wait for each other. It is a loop because naga takes no barrier in
            // a branch whose condition it cannot prove to be uniform.
            for (var grown = atomicLoad(&growth[own_growth]) > begin; grown; grown = false) {
                let new_reference = max(reference, row_maximum(largest, lane));
                let by = exp(reference - new_reference);
                reference = new_reference;
                sum *= by;
                rescale(&acc, by, strip, lane);
            }
            // unroll
            for (var j = 0u; j < PER; j++) {
                probs[j] = exp(probs[j] - reference);
                sum += dot(probs[j], vec4<f32>(1.0));
                if (DROPOUT) {
                    let index = mask_index(pair, query, begin + column_of(lane, j));
                    let kept = dropout_factors(mask_key, index, 1u);
                    // The scale of the kept probabilities is applied to the sums.
                    probs[j] = select(vec4<f32>(), probs[j], kept > vec4<f32>());
                }
            }
            set_factors(probs, lane);
            subgroup_barrier();
            if (strip < STRIPS && TURNED) {
                accumulate_turned(&acc, strip);
            } else if (strip < STRIPS) {
                accumulate(&acc, COLUMNS, strip);
            }
        }

        let total = row_sum(sum, lane);
        if (lane % SHARE == 0u && query < p.time && in_round(lane, first_strip, subgroups)) {
            log_sum_exp[statistic_at(pair, query)] = reference + log(total);
        }
        rescale(&acc, select(1.0, p.mask.scale, DROPOUT) / total, strip, lane);
        store_sums(&acc, pair, OUT, first, strip, first_strip, subgroups, lane);
    }
}
