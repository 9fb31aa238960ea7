// Cooperative matrices of 16 x 16 with sums in f32. Workgroup memory for them holds cells of four
// elements, and offsets and strides of matrices count cells.

const SIDE = 16u;
alias Left = coop_mat16x16<f16, A>;
alias Right = coop_mat16x16<f16, B>;
alias Sum = coop_mat16x16<f32, C>;

const CELL = 4u;
alias half_cell = vec4<f16>;
alias sum_cell = vec4<f32>;

// Returns cell i of four elements.
fn half_cell_of(v: vec4<f16>, i: u32) -> half_cell {
    return v;
}

fn sum_cell_of(v: vec4<f32>, i: u32) -> sum_cell {
    return v;
}
