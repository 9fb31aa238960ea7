//! This build: its version, commit, features and target.

pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The commit that it was built from, with `, modified` if its sources differed; `None` for sources
/// without a repository.
pub const COMMIT: Option<&str> = option_env!("BUILD_COMMIT");

/// The target triple.
pub const TARGET: &str = env!("BUILD_TARGET");

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
    let mut features = features().join(", ");
    if features.is_empty() {
        features = "none".into();
    }
    let commit = COMMIT.unwrap_or("unknown");
    format!("{VERSION}\ncommit: {commit}\nfeatures: {features}\ntarget: {TARGET}")
}
