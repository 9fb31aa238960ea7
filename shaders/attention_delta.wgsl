// delta = rowsum(d_out * out), for the attention kernels for GPUs. Needs attention_grid.wgsl.

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
