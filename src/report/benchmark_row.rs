//! The row of a device in a benchmark of whole runs, in text and as a picture.

use super::page::fill;
use crate::protocol::BenchmarkRow;
use crate::text::{bytes, escape_html};
use crate::version::VERSION;

/// Returns a measurement as a person reads it.
pub(crate) fn benchmark_summary(row: &BenchmarkRow) -> String {
    let BenchmarkRow { dtype, tokens_per_s, hours_to_10b_tokens: hours, micro_batch, .. } = row;
    let memory = row.peak_bytes.map_or_else(String::new, |peak| format!(", {}", bytes(peak)));
    let watts = row.watts.map_or_else(String::new, |watts| format!(", {watts:.0} W"));
    format!(
        "{dtype}: {tokens_per_s:.0} tokens/s, {hours:.0} hours to 10 billion tokens, micro-batch \
         {micro_batch}{memory}{watts}"
    )
}

/// Draws measurements as bars.
pub(crate) fn benchmark_picture(title: &str, is_software: bool, rows: &[BenchmarkRow]) -> String {
    const BAR: f64 = 34.0;
    let most = rows.iter().map(|row| row.tokens_per_s).fold(f64::MIN_POSITIVE, f64::max);
    let height = 64.0 + BAR * rows.len() as f64;
    let bar = |(index, row): (usize, &BenchmarkRow)| {
        let top = 44.0 + BAR * index as f64;
        let width = (row.tokens_per_s / most * 330.0).max(1.0);
        format!(
            "<rect x=\"16\" y=\"{top}\" width=\"{width:.0}\" height=\"24\" fill=\"#0072b2\" \
             fill-opacity=\"0.25\"/><text x=\"22\" y=\"{:.0}\">{}</text>\n",
            top + 17.0,
            escape_html(&benchmark_summary(row))
        )
    };
    let values = [
        ("height", height.to_string()),
        ("title", title.to_string()),
        ("bars", rows.iter().enumerate().map(bar).collect()),
        ("foot", (height - 6.0).to_string()),
        ("note", String::from(if is_software { "a software device, not ranked; " } else { "" })),
        ("version", VERSION.to_string()),
    ];
    fill(include_str!("../../assets/pages/benchmark_row.svg"), escape_html, &values)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Dtype;

    #[test]
    fn a_picture_has_a_bar_for_each_dtype() {
        let row = BenchmarkRow {
            dtype: Dtype::Float16,
            tokens_per_s: 50_000.0,
            hours_to_10b_tokens: 10e9 / 50_000.0 / 3600.0,
            micro_batch: 8,
            accumulation: 60,
            grad_checkpoint: false,
            offload_optimizer: false,
            watts: Some(199.6),
            peak_bytes: Some(5 << 30),
        };
        let svg = benchmark_picture("a < b", true, &[row.clone(), row]);
        assert_eq!(svg.matches("50000 tokens/s, 56 hours to 10 billion tokens").count(), 2);
        assert!(svg.contains(", 200 W<"), "{svg}");
        assert!(svg.contains("a &lt; b") && svg.contains("not ranked"), "{svg}");
    }
}
