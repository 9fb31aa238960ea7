//! A short list of good texts and models, for people who have none at hand.

/// A row of the list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CatalogRow {
    /// The name that `wgpt get` takes.
    pub name: &'static str,
    pub is_model: bool,
    pub language: &'static str,
    /// The size of the files, rounded.
    pub size: &'static str,
    pub licence: &'static str,
    pub good_for: &'static str,
}

const fn row(
    name: &'static str,
    [language, size, licence]: [&'static str; 3],
    good_for: &'static str,
) -> CatalogRow {
    CatalogRow { name, is_model: false, language, size, licence, good_for }
}

const fn model(name: &'static str, facts: [&'static str; 3], good_for: &'static str) -> CatalogRow {
    CatalogRow { is_model: true, ..row(name, facts, good_for) }
}

/// Texts first, from small to large, then models.
pub const CATALOG: &[CatalogRow] = &[
    row(
        "hf:Salesforce/wikitext#wikitext-2-raw-v1",
        ["English", "8 MB", "CC BY-SA 3.0"],
        "a first try",
    ),
    row(
        "hf:wikimedia/wikipedia#20231101.simple",
        ["simple English", "160 MB", "CC BY-SA 3.0"],
        "an hour of training",
    ),
    row(
        "hf:Salesforce/wikitext#wikitext-103-raw-v1",
        ["English", "310 MB", "CC BY-SA 3.0"],
        "comparing with published results",
    ),
    row(
        "hf:roneneldan/TinyStories",
        ["English", "1 GB", "CDLA-Sharing 1.0"],
        "small models that write stories",
    ),
    row(
        "hf:wikimedia/wikipedia#20231101.de",
        ["German", "6 GB", "CC BY-SA 3.0"],
        "a language other than English",
    ),
    row(
        "hf:HuggingFaceFW/fineweb-edu#sample-10BT",
        ["English", "28 GB", "ODC-By 1.0"],
        "training GPT-2 from scratch",
    ),
    row("hellaswag", ["English", "12 MB", "MIT"], "measuring a model with wgpt eval"),
    model(
        "hf:HuggingFaceTB/SmolLM2-135M",
        ["English", "270 MB", "Apache 2.0"],
        "fine-tuning on a small GPU",
    ),
    model(
        "hf:HuggingFaceTB/SmolLM2-135M-Instruct",
        ["English", "270 MB", "Apache 2.0"],
        "wgpt chat and your own chats",
    ),
    model("hf:openai-community/gpt2", ["English", "550 MB", "MIT"], "fine-tuning the classic"),
    model(
        "hf:HuggingFaceTB/SmolLM2-360M",
        ["English", "720 MB", "Apache 2.0"],
        "fine-tuning on a GPU with 8 GB",
    ),
    model(
        "hf:Qwen/Qwen3-0.6B",
        ["100 languages", "1.5 GB", "Apache 2.0"],
        "wgpt chat in your own language",
    ),
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hub::Source;

    #[test]
    fn every_row_can_be_fetched_and_fits_a_terminal() {
        for CatalogRow { name, language, size, licence, good_for, .. } in CATALOG {
            name.parse::<Source>().unwrap();
            let line = format!("      {language}, {size}, {licence}; good for {good_for}");
            assert!(line.len() <= 80 && name.len() <= 76, "{line}");
        }
    }
}
