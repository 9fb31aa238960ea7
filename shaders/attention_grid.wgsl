// Shared by the attention kernels for GPUs: a workgroup owns ROWS positions and takes COLUMNS of
// the other side at a time. It is a grid of LANES x 16 invocations; (x, y) has a block of four
// rows, Y_STEP * y + ROW_STEP * i, and columns x + LANES * j, j < PER. The file for the kind of
// product declares `cell_of`, the steps, and the memory in which the grid shows vectors: `show`,
// `shown`. Needs dropout_mask.wgsl, attention_heads.wgsl.

const ROWS = 64u;
const COLUMNS = 32u;

// A vector of four rows for each column.
alias Block = array<vec4<f32>, PER>;

// Returns the positions of an invocation's rows in the workgroup's rows that begin at `first`.
fn rows_from(first: u32, cell: vec2<u32>) -> vec4<u32> {
    return first + Y_STEP * cell.y + ROW_STEP * vec4<u32>(0u, 1u, 2u, 3u);
}

// Returns the place of a position's value in [batch, heads, time].
fn statistic_at(pair: Pair, position: u32) -> u32 {
    return pair.index * p.time + min(position, p.time - 1u);
}

// Returns the index of a probability in its sequence's dropout mask.
fn mask_index(pair: Pair, query: u32, key: u32) -> u32 {
    return (pair.head * p.time + query) * p.time + key;
}

// Returns the dropout factors of elements first + i * step, i < 4.
fn dropout_factors(mask_key: u32, first: u32, step: u32) -> vec4<f32> {
    return vec4<f32>(
        dropout_factor(p.mask, mask_key, first),
        dropout_factor(p.mask, mask_key, first + step),
        dropout_factor(p.mask, mask_key, first + 2u * step),
        dropout_factor(p.mask, mask_key, first + 3u * step),
    );
}

// Shows an invocation's vector to the invocations of the same y.
fn exchange(value: vec4<f32>, cell: vec2<u32>) {
    show(cell.y * LANES + cell.x, value);
    workgroupBarrier();
}

// Returns vector i of the invocations of the same y, which all see the vectors in the same order.
// Each y begins with a different vector, in a different memory bank.
fn exchanged(i: u32, cell: vec2<u32>) -> vec4<f32> {
    return shown(cell.y * LANES + (i + cell.y) % LANES);
}

// Returns the maxima over the invocations of the same y. Needs a barrier before the memory of the
// exchange is written again.
fn row_maxima(value: vec4<f32>, cell: vec2<u32>) -> vec4<f32> {
    exchange(value, cell);
    var largest = value;
    for (var i = 0u; i < LANES; i++) {
        largest = max(largest, exchanged(i, cell));
    }
    return largest;
}

// Returns the sums over the invocations of the same y, with the same barriers as row_maxima.
fn row_sums(value: vec4<f32>, cell: vec2<u32>) -> vec4<f32> {
    exchange(value, cell);
    var sum = vec4<f32>();
    for (var i = 0u; i < LANES; i++) {
        sum += exchanged(i, cell);
    }
    return sum;
}
