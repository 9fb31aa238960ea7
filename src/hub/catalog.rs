//! A short list of good data sets and models, for people who have none.

/// A row of the list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CatalogRow {
    /// The argument of `wgpt get`.
    pub name: &'static str,
    pub is_model: bool,
    pub language: &'static str,
    /// The size of the files, rounded.
    pub size: &'static str,
    pub licence: &'static str,
    pub good_for: &'static str,
    /// The preset with the architecture of a model.
    preset: Option<&'static str>,
}

const ROWS: &str = include_str!("../../assets/catalog.txt");

/// Lists data sets, from small to large, then models.
pub fn catalog() -> impl Iterator<Item = CatalogRow> {
    ROWS.lines().filter_map(|line| {
        let columns: Vec<&str> = line.split(" | ").collect();
        let &[kind, name, language, size, licence, good_for, ref preset @ ..] = columns.as_slice()
        else {
            return None;
        };
        let is_model = kind == "model";
        let preset = preset.first().copied();
        Some(CatalogRow { name, is_model, language, size, licence, good_for, preset })
    })
}

/// Returns the preset with the architecture of a model in the list.
pub fn preset_of(name: &str) -> Option<&'static str> {
    catalog().find(|row| row.name == name)?.preset
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::preset_names;
    use crate::hub::Download;

    #[test]
    fn every_row_can_be_fetched_and_fits_a_terminal() {
        for CatalogRow { name, language, size, licence, good_for, .. } in catalog() {
            name.parse::<Download>().unwrap();
            let line = format!("      {language}, {size}, {licence}; good for {good_for}");
            assert!(line.len() <= 80 && name.len() <= 76, "{line}");
        }
    }

    #[test]
    fn every_line_is_a_row_or_a_comment() {
        let lines = ROWS.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
        assert_eq!(catalog().count(), lines.count());
        assert_eq!(catalog().filter(|row| row.is_model).count(), 5);
        for row in catalog() {
            let is_preset =
                row.preset.is_some_and(|name| preset_names().any(|known| known == name));
            assert_eq!(row.is_model, is_preset, "{row:?}");
        }
    }
}
