//! The arguments of `wgpt get`.

use std::fmt;
use std::path::Path;
use std::str::FromStr;

use url::Url;

use super::error::usage;
use crate::protocol::Failure;

const SCHEME: &str = "hf:";
const HELLASWAG: &str = "hellaswag";

/// Something to fetch, as typed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Download {
    Hub(RepoName),
    Url(Url),
    /// The validation questions of HellaSwag.
    HellaSwag,
}

/// The name of a repository, and of a part of its files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RepoName {
    /// `None` if the name does not say it.
    pub(super) kind: Option<RepoKind>,
    pub(super) id: String,
    /// A configuration, a folder or a file.
    pub(super) part: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RepoKind {
    Model,
    Dataset,
}

impl RepoKind {
    /// Returns its folder in the URLs of the Hub and in the cache.
    pub(super) fn plural(self) -> &'static str {
        match self {
            Self::Model => "models",
            Self::Dataset => "datasets",
        }
    }
}

/// Returns true for a path that is the name of a repository on the Hub.
pub fn is_hub_name(path: &Path) -> bool {
    path.to_str().is_some_and(|text| text.starts_with(SCHEME))
}

impl FromStr for Download {
    type Err = Failure;

    fn from_str(text: &str) -> Result<Self, Failure> {
        if text.starts_with(SCHEME) {
            return text.parse().map(Self::Hub);
        }
        if text.eq_ignore_ascii_case(HELLASWAG) {
            return Ok(Self::HellaSwag);
        }
        let hint = "give hf:ORG/NAME, hellaswag or an address that begins with https://; \
                    `wgpt get --list` lists good texts and models";
        let Ok(url) = Url::parse(text) else {
            return Err(usage(format!("{text:?} is not a known name"), hint));
        };
        if !super::address::is_allowed(&url) {
            let text = format!("{text}: only addresses that begin with https:// are fetched");
            return Err(usage(text, hint));
        }
        if !url.username().is_empty() || url.password().is_some() {
            let text = format!("{}: addresses with a user name are not fetched", host(&url));
            return Err(usage(text, "leave out the part before the @"));
        }
        Ok(Self::Url(url))
    }
}

fn host(url: &Url) -> &str {
    url.host_str().unwrap_or_default()
}

impl FromStr for RepoName {
    type Err = Failure;

    fn from_str(text: &str) -> Result<Self, Failure> {
        let wrong = |reason: &str| {
            let hint = "a name is like hf:roneneldan/TinyStories, or \
                        hf:HuggingFaceFW/fineweb-edu#sample-10BT for a part";
            usage(format!("{text}: {reason}"), hint)
        };
        let name = text.strip_prefix(SCHEME).ok_or_else(|| wrong("does not begin with hf:"))?;
        let (path, part) = match name.split_once('#') {
            Some((path, part)) => (path, Some(part)),
            None => (name, None),
        };
        let (kind, id) = [RepoKind::Model, RepoKind::Dataset]
            .into_iter()
            .find_map(|kind| Some((kind, path.strip_prefix(kind.plural())?.strip_prefix('/')?)))
            .map_or((None, path), |(kind, id)| (Some(kind), id));
        let is_word = |word: &str| {
            let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
            !word.is_empty()
                && word.len() <= 96
                && word.chars().all(is_plain)
                && !word.starts_with(['-', '.'])
                && !word.contains("..")
                && !word.contains("--")
        };
        if id.split('/').count() > 2 || !id.split('/').all(is_word) {
            return Err(wrong("not the name of a repository"));
        }
        let part = part.map(|part| part.trim_end_matches('/'));
        if part.is_some_and(|part| !is_safe_path(part)) {
            return Err(wrong("not the name of a part"));
        }
        Ok(Self { kind, id: id.into(), part: part.map(str::to_string) })
    }
}

impl RepoName {
    /// Returns its last segment without an extension, as the name of a folder.
    pub fn short(&self) -> &str {
        let path = self.part.as_deref().unwrap_or(&self.id);
        let name = path.rsplit('/').next().unwrap_or(path);
        name.split('.').next().filter(|stem| !stem.is_empty()).unwrap_or(name)
    }
}

impl fmt::Display for RepoName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = self.kind.map_or_else(String::new, |kind| format!("{}/", kind.plural()));
        let part = self.part.as_ref().map_or_else(String::new, |part| format!("#{part}"));
        write!(f, "{SCHEME}{kind}{}{part}", self.id)
    }
}

/// Returns true for a path that stays below the folder that it is joined to, on every system.
pub(super) fn is_safe_path(path: &str) -> bool {
    path.split('/').all(is_safe_file_name)
}

/// Returns true for a name that stays in its folder, on every system.
pub(super) fn is_safe_file_name(name: &str) -> bool {
    let is_other = |c: char| c.is_control() || ['/', '\\', ':'].contains(&c);
    !name.is_empty() && name.len() <= 255 && name != "." && name != ".." && !name.contains(is_other)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_and_printed_as_they_were_typed() {
        for (typed, kind, id, part, short) in [
            ("hf:roneneldan/TinyStories", None, "roneneldan/TinyStories", None, "TinyStories"),
            ("hf:gpt2", None, "gpt2", None, "gpt2"),
            ("hf:datasets/a/b.c#d/e.txt", Some(RepoKind::Dataset), "a/b.c", Some("d/e.txt"), "e"),
            ("hf:models/a/b", Some(RepoKind::Model), "a/b", None, "b"),
            ("hf:a/b#sample-10BT", None, "a/b", Some("sample-10BT"), "sample-10BT"),
        ] {
            let name: RepoName = typed.parse().unwrap();
            let part = part.map(str::to_string);
            assert_eq!(name, RepoName { kind, id: id.into(), part });
            assert_eq!((name.to_string().as_str(), name.short()), (typed, short));
            assert!(is_hub_name(typed.as_ref()));
        }
    }

    #[test]
    fn what_leads_elsewhere_is_no_name() {
        for typed in [
            "hf:",
            "hf:a/",
            "hf:/a",
            "hf:a/b/c",
            "hf:../a",
            "hf:a/..",
            "hf:a b",
            "hf:a/b#",
            "hf:a/b#../c",
            "hf:a/b#/etc/passwd",
            "hf:a/b#c\\d",
            "hf:a--b/c",
            "hf:-a/b",
            "hf:a/b?x=1",
        ] {
            let error = typed.parse::<Download>().unwrap_err();
            assert!(error.to_string().starts_with(typed) && !error.hint.is_empty(), "{error}");
        }
    }

    #[test]
    fn addresses_are_https() {
        for good in ["https://a.org/b.txt", "http://127.0.0.1:80/b", "http://localhost/b"] {
            assert!(matches!(good.parse(), Ok(Download::Url(_))), "{good}");
        }
        assert_eq!("HellaSwag".parse(), Ok(Download::HellaSwag));
        for bad in [
            "http://a.org/b",
            "file:///etc/passwd",
            "ftp://a.org/b",
            "https://me:key@a.org/b",
            "book",
        ] {
            let error = bad.parse::<Download>().unwrap_err();
            assert!(!error.to_string().contains("key"), "{error}");
        }
    }
}
