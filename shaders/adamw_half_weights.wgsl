// Stores new weights, and a copy in float16 for products to read.

const BUFFERS = 5u;

// repeat
@group(0) @binding(5u + BUFFERS * TENSOR) var<storage, read_write> half_TENSOR: array<half_weight>;

fn store_TENSOR(i: u32, value: pack) {
    w_TENSOR[i] = value;
    half_TENSOR[i] = to_half_weight(value);
}
// end
