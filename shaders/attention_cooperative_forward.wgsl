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

// 0 if the references stay in an iteration, 1 if they change before the first sums, 2 if sums must
// be rescaled.
var<workgroup> growth: atomic<u32>;

fn load(part: u32, at: u32) -> pack {
    return pack(qkv[at]);
}

fn store(at: u32, value: pack) {
    out[at] = to_activation(value);
}

// Multiplies the rows of all strips of sums by `by`, through `scores`.
fn rescale(sums: ptr<function, Sums>, by: vec4<f32>, strip: u32, cell: vec2<u32>) {
    // unroll
    for (var chunk = 0u; chunk < CHUNKS; chunk++) {
        workgroupBarrier();
        // unroll
        for (var j = 0u; j < COLUMN_MATRICES; j++) {
            // Past the end of the head, this is the last matrix again.
            let d = min(chunk * COLUMN_MATRICES + j, HEAD_MATRICES - 1u);
            // unroll
            for (var i = 0u; i < ROW_MATRICES; i++) {
                let to = j * SIDE * SCORE_STRIDE + strip * STRIP + i * SIDE;
                if (strip < STRIPS) {
                    coopStore((*sums)[i][d], &scores[to / CELL], SCORE_STRIDE / CELL);
                }
            }
        }
        workgroupBarrier();
        // unroll
        for (var j = 0u; j < PER; j++) {
            let at = block_at(cell, j);
            set_scores4(at, scores4(at) * by);
        }
        workgroupBarrier();
        // unroll
        for (var j = 0u; j < COLUMN_MATRICES; j++) {
            let d = min(chunk * COLUMN_MATRICES + j, HEAD_MATRICES - 1u);
            // unroll
            for (var i = 0u; i < ROW_MATRICES; i++) {
                let own_strip = min(strip, STRIPS - 1u);
                let at = j * SIDE * SCORE_STRIDE + own_strip * STRIP + i * SIDE;
                (*sums)[i][d] = coopLoad<Sum>(&scores[at / CELL], SCORE_STRIDE / CELL);
            }
        }
    }
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
    let cell = cell_of(lane);
    let queries = rows_from(first, cell);
    let end = min(first + ROWS, p.time);

    for (var first_strip = 0u; first_strip < STRIPS; first_strip += subgroups) {
        let strip = first_strip + subgroup;
        var own = Rows();
        stage(pair, QUERY, first, 0u, ROWS, lane);
        workgroupBarrier();
        if (strip < STRIPS) {
            load_rows(&own, strip);
        }
        var acc = Sums();
        var reference = vec4<f32>(LOWEST);
        // The sum over this invocation's columns only.
        var sum = vec4<f32>();
        for (var begin = 0u; begin < end; begin += COLUMNS) {
            workgroupBarrier();
            stage(pair, KEY, begin, 0u, COLUMNS, lane);
            stage(pair, VALUE, begin, COLUMNS, COLUMNS, lane);
            if (lane == 0u) {
                atomicStore(&growth, 0u);
            }
            workgroupBarrier();
            if (strip < STRIPS) {
                multiply(&own, 0u, strip);
            }
            workgroupBarrier();
            var probs = scores_of(cell);
            var largest = vec4<f32>(LOWEST);
            // unroll
            for (var j = 0u; j < PER; j++) {
                let key = begin + cell.x + j * LANES;
                let visible = vec4<u32>(key) <= queries;
                probs[j] = select(vec4<f32>(LOWEST), probs[j] * p.scale, visible);
                largest = max(largest, probs[j]);
            }
            if (any(largest > reference + GROWTH)) {
                atomicStore(&growth, select(1u, 2u, begin > 0u));
            }
            let grown = workgroupUniformLoad(&growth);
            if (grown > 0u) {
                let new_reference = max(reference, row_maxima(largest, cell));
                let by = exp(reference - new_reference);
                reference = new_reference;
                sum *= by;
                if (grown > 1u) {
                    rescale(&acc, by, strip, cell);
                }
            }
            // unroll
            for (var j = 0u; j < PER; j++) {
                probs[j] = exp(probs[j] - reference);
                sum += probs[j];
                if (DROPOUT) {
                    let index = mask_index(pair, queries.x, begin + cell.x + j * LANES);
                    let kept = dropout_factors(mask_key, index, ROW_STEP * p.time);
                    // row_factors has the scale of the kept probabilities.
                    probs[j] = select(vec4<f32>(), probs[j], kept > vec4<f32>());
                }
            }
            set_factors(probs, cell);
            workgroupBarrier();
            if (strip < STRIPS) {
                accumulate(&acc, COLUMNS, strip);
            }
        }

        workgroupBarrier();
        let total = row_sums(sum, cell);
        if (cell.x == 0u) {
            let statistic = reference + log(total);
            for (var i = 0u; i < 4u; i++) {
                let row = Y_STEP * cell.y + i;
                row_factors[row] = select(1.0, p.mask.scale, DROPOUT) / total[i];
                if (in_round(row, first_strip, subgroups) && queries[i] < p.time) {
                    log_sum_exp[statistic_at(pair, queries[i])] = statistic[i];
                }
            }
        }
        store_sums(&acc, pair, OUT, first, strip, first_strip, subgroups, lane);
    }
}
