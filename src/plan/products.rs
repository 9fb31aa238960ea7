//! How matrix products with few tiles are split. `ops` launches what `plan` sizes the memory of.

/// Fewer tiles than this leave parts of a GPU idle: then smaller tiles are faster, and products on
/// cooperative matrices are split over k.
pub(crate) const MANY_TILES: usize = 96;

/// The tiles, over all ranges of k, that a product with few of them is split into. They bound the
/// memory for the products over the ranges: 3 MiB with tiles of 64 x 64.
const SPLIT_TILES: usize = 192;

/// The least k of a range: a shorter one would cost more in the sum over the ranges.
const SPLIT_DEPTH: usize = 512;

/// Returns the number of ranges that `k` is split into on cooperative matrices, for a product of
/// `tiles` small tiles. It depends on sizes alone, so that the order of the sum does too.
pub(crate) fn ranges_of_k(tiles: usize, k: usize) -> usize {
    match tiles {
        MANY_TILES.. => 1,
        _ => (SPLIT_TILES / tiles.max(1)).min(k / SPLIT_DEPTH).max(1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
