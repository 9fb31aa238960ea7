//! How matrix products with few tiles are split. `ops` launches what `plan` sizes the memory of.

/// Fewer small tiles than this leave parts of a GPU idle: then products on cooperative matrices are split
/// over k. It is the same for every GPU, because plans and the order of sums depend on it.
const MANY_TILES: usize = 96;

/// The tiles, over all ranges of k, that a product with few tiles is split into. This bounds the memory of
/// the partial products: 3 MiB with tiles of 64 x 64.
const SPLIT_TILES: usize = 192;

/// The smallest k of a range: a shorter range would cost more in the sum over the ranges.
const SPLIT_DEPTH: usize = 512;

/// Returns the number of ranges that `k` is split into on cooperative matrices, for a product of
/// `tiles` small tiles. It depends only on sizes, and so does the order of the sum.
pub(crate) fn ranges_of_k(tiles: usize, k: usize) -> usize {
    match tiles {
        MANY_TILES.. => 1,
        _ => (SPLIT_TILES / tiles.max(1)).min(k / SPLIT_DEPTH).max(1),
    }
}

/// The tile of a workgroup of a product in cubecl's language, in elements of the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tile {
    Large = 128,
    Small = 64,
}

impl Tile {
    pub fn side(self) -> usize {
        self as usize
    }
}

/// How a product in cubecl's language is spread over a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tiling {
    pub tile: Tile,
    /// The ranges of k that are multiplied separately and then added; at least 1.
    pub ranges: usize,
}

/// The multiprocessors of a GPU if it is unknown how many it has.
pub(crate) const MULTIPROCESSORS: usize = 32;

/// The most ranges, a divisor of the k of each range, and the most elements of all partial products in
/// f32: 24 MiB.
const MOST_RANGES: usize = 16;
const RANGE: usize = 64;
const MOST_PARTIAL: usize = 6 << 20;

/// The time of a workgroup's first loads and of the stores of its output, in multiplications of its tile.
const FIXED: f64 = 64.0;
/// The share of its speed that a multiprocessor reaches with small tiles, which load twice as much.
/// Measured on an H200: 0.83 to 0.95. Its cache is large, so this is a little less.
const SMALL: f64 = 0.8;
/// The time of the first few small tiles of a multiprocessor, in large tiles: each waits for its loads as
/// a large one does, and several wait at the same time. Measured: 0.6 in float32, 0.8 in float16.
const FIRST_SMALL: f64 = 0.75;
/// The multiplications that a GPU does while it stores and reads an element of a partial product, 8 bytes.
const PARTIAL: f64 = 512.0;

/// Returns the time that the busiest of `processors` takes for its share of `tiles`, in large tiles.
fn busiest(tile: Tile, tiles: usize, processors: usize) -> f64 {
    let most = tiles.div_ceil(processors) as f64;
    match tile {
        Tile::Large => most,
        Tile::Small => (most / (4.0 * SMALL)).max(FIRST_SMALL),
    }
}

fn known(multiprocessors: Option<usize>) -> usize {
    multiprocessors.unwrap_or(MULTIPROCESSORS).max(1)
}

/// Returns true if a product is faster in this number of large tiles than in small ones, with half the
/// side. Both sum over k in the same order.
pub(crate) fn prefers_large(large: usize, small: usize, multiprocessors: Option<usize>) -> bool {
    let time = |tile, tiles| busiest(tile, tiles, known(multiprocessors));
    time(Tile::Large, large) <= time(Tile::Small, small)
}

impl Tiling {
    /// Returns the tiling of a product `[m, n, k]`, by a model of its time: the tiles that the busiest
    /// multiprocessor computes, and the sum over the ranges.
    ///
    /// It depends on nothing else, and so does the order of the sums.
    pub fn of([m, n, k]: [usize; 3], multiprocessors: Option<usize>) -> Self {
        let processors = known(multiprocessors);
        let time = |tiling: &Tiling| {
            let side = tiling.tile.side();
            let ranges = tiling.ranges;
            let tiles = m.div_ceil(side) * n.div_ceil(side) * ranges;
            let depth = k as f64 / ranges as f64 + FIXED;
            let partial = if ranges > 1 { ranges * m * n } else { 0 };
            let area = Tile::Large.side().pow(2) as f64;
            busiest(tiling.tile, tiles, processors) * area * depth
                + partial as f64 * PARTIAL / processors as f64
        };
        let allowed = |&ranges: &usize| {
            ranges == 1 || k.is_multiple_of(RANGE * ranges) && ranges * m * n <= MOST_PARTIAL
        };
        let tilings = (1..=MOST_RANGES)
            .filter(allowed)
            .flat_map(|ranges| [Tile::Large, Tile::Small].map(|tile| Tiling { tile, ranges }));
        // The first of equals, with the fewest ranges and the large tile.
        let first = Tiling { tile: Tile::Large, ranges: 1 };
        tilings.min_by(|a, b| time(a).total_cmp(&time(b))).unwrap_or(first)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// On the multiprocessors of a 4070 and of an H200.
    #[test]
    fn products_of_cube_kernels_fill_a_gpu() {
        for (size, on_4070, on_h200) in [
            // GPT-2's forward products of four sequences: qkv, proj, fc, and its logits of a chunk.
            ([4096, 2304, 768], (128, 1), (128, 1)),
            ([4096, 768, 768], (128, 1), (64, 1)),
            ([4096, 3072, 768], (128, 1), (128, 1)),
            ([1024, 50_304, 768], (128, 1), (128, 1)),
            // The gradients of its weights, of the head's input and of the embedding.
            ([768, 2304, 4096], (128, 1), (128, 1)),
            ([768, 768, 4096], (128, 1), (64, 4)),
            ([768, 3072, 4096], (128, 1), (64, 1)),
            ([1024, 768, 50_304], (128, 6), (64, 2)),
            ([50_304, 768, 1024], (128, 1), (128, 1)),
            // The gradient of a weight of the char recipe.
            ([384, 384, 16_384], (128, 4), (64, 16)),
        ] {
            let tiling = |processors| {
                let Tiling { tile, ranges } = Tiling::of(size, Some(processors));
                (tile.side(), ranges)
            };
            assert_eq!((tiling(46), tiling(132)), (on_4070, on_h200), "{size:?}");
        }
        // A range is whole stages of k, and there are no more partial products than 24 MiB.
        for size in [[64, 64, 1000], [1, 1, 1], [8192, 4096, 1 << 20]] {
            assert_eq!(Tiling::of(size, Some(132)).ranges, 1, "{size:?}");
        }
    }

    /// Attention's projection for one sequence and for four of 1024, on an RTX 3060, a 4070 and a 4090.
    #[test]
    fn small_tiles_are_for_gpus_that_large_ones_do_not_fill() {
        for (rows, large) in [(1024usize, [true, false, false]), (4096, [true, true, false])] {
            let tiles = |side: usize| rows / side * (768 / side);
            let on = |processors| prefers_large(tiles(128), tiles(64), Some(processors));
            assert_eq!([28, 46, 128].map(on), large, "{rows}");
        }
        assert!(!prefers_large(4, 9, None));
        assert!(prefers_large(96, 345, None));
    }

    #[test]
    fn only_deep_products_with_few_tiles_are_split() {
        for (tiles, k, ranges) in [
            (96, 50_304, 1),
            (95, 50_304, 2),
            (12, 4096, 8),
            (12, 50_304, 16),
            (1, 1023, 1),
            (1, 1024, 2),
            (0, 0, 1),
        ] {
            assert_eq!(ranges_of_k(tiles, k), ranges, "{tiles} tiles, k = {k}");
        }
    }
}
