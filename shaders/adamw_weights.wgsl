// Stores new weights.

const BUFFERS = 4u;

// repeat
fn store_TENSOR(i: u32, value: pack) {
    w_TENSOR[i] = value;
}
// end
