//! This build: its version, commit, features and target.

/// The version of the package.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The commit that it was built from, with `, modified` if its sources differed; `None` for sources
/// without a repository.
pub const COMMIT: Option<&str> = option_env!("BUILD_COMMIT");

/// The target triple.
pub const TARGET: &str = env!("BUILD_TARGET");

/// Lists the features.
pub fn features() -> Vec<&'static str> {
    let all = [
        ("gui", cfg!(feature = "gui")),
        ("wgpu", cfg!(feature = "wgpu")),
        ("cuda", cfg!(feature = "cuda")),
        ("web", cfg!(feature = "web")),
    ];
    all.into_iter().filter(|&(_, is_on)| is_on).map(|(name, _)| name).collect()
}

/// Returns all of it, in lines of which the first is the version.
pub fn describe() -> String {
    let features = match features() {
        none if none.is_empty() => "none".to_string(),
        some => some.join(", "),
    };
    let commit = COMMIT.unwrap_or("unknown");
    format!("{VERSION}\ncommit: {commit}\nfeatures: {features}\ntarget: {TARGET}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_build_describes_itself() {
        let text = describe();
        assert_eq!(text.lines().count(), 4, "{text}");
        assert_eq!(TARGET.starts_with("x86_64"), cfg!(target_arch = "x86_64"), "{text}");
        assert_eq!(features().contains(&"gui"), cfg!(feature = "gui"));
        if let Some(commit) = COMMIT {
            let digits = commit.trim_end_matches(", modified");
            assert!(digits.len() == 12 && digits.chars().all(|c| c.is_ascii_hexdigit()), "{text}");
        }
    }
}
