//! The memory limits of control groups, which containers, systemd and Slurm set for their processes.
//!
//! Groups are nested, and a process is bound by the limits of its own group and of all groups above it.
//! Version 1 has a tree for memory, version 2 one tree for everything, and a system may have both.
//!
//! The crate sysinfo reads them too, but finds no limit if the process's own group has none of the files
//! of memory, and counts only what this group uses of a limit that it shares.

use std::path::{Path, PathBuf};

use crate::disk;

/// The memory that a group grants, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct GroupMemory {
    pub limit: u64,
    /// The part of the limit that is left. Cached files count as free.
    pub free: u64,
}

/// The names of a group's files, and the sum in its `memory.stat` without cached files.
struct Names {
    limit: &'static str,
    used: &'static str,
}

const V1: Names = Names { limit: "memory.limit_in_bytes", used: "total_rss" };
const V2: Names = Names { limit: "memory.max", used: "anon" };

/// Returns the smallest limit of the groups of this process, and the least that is left of any; `None`
/// without a limit below `total`. Version 1 writes a huge number for no limit.
pub(super) fn group_memory(total: u64) -> Option<GroupMemory> {
    let groups = disk::read_to_string("/proc/self/cgroup").ok()?;
    let mounts = disk::read_to_string("/proc/self/mountinfo").ok()?;
    limits(&groups, &mounts, total)
}

/// Reads the limits of the groups that `/proc/self/cgroup` names, in the trees that
/// `/proc/self/mountinfo` lists.
fn limits(groups: &str, mounts: &str, total: u64) -> Option<GroupMemory> {
    let trees = mounts.lines().filter_map(|line| tree(line, groups));
    let chains = trees.flat_map(|(names, group, root)| {
        let above = group.ancestors().take_while(|path| path.starts_with(&root));
        above.filter_map(|path| limit(path, &names)).collect::<Vec<_>>()
    });
    let smaller = |a: GroupMemory, b: GroupMemory| GroupMemory {
        limit: a.limit.min(b.limit),
        free: a.free.min(b.free),
    };
    chains.filter(|memory| memory.limit < total).reduce(smaller)
}

/// Returns the tree of a line of mounts, if it has memory limits: the names of its files, the folder of
/// this process's group and the folder at the top.
///
/// The line is `36 25 0:30 /root /mount/point options - type source superoptions`. In a container, `/root`
/// is the group that the mount shows.
fn tree(line: &str, groups: &str) -> Option<(Names, PathBuf, PathBuf)> {
    let (place, kind) = line.split_once(" - ")?;
    let mut kind = kind.split(' ');
    let (is_v2, options) = (kind.next()? == "cgroup2", kind.nth(1)?);
    if !is_v2 && !options.split(',').any(|option| option == "memory") {
        return None;
    }
    let mut place = place.split(' ').skip(3).map(|path| PathBuf::from(unescaped(path)));
    let (shown, top) = (place.next()?, place.next()?);
    // `0::/group` in version 2, `4:memory:/group` in version 1.
    let group = groups.lines().find_map(|line| {
        let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
        let has_memory = controllers.split(',').any(|name| name == "memory");
        (if is_v2 { controllers.is_empty() } else { has_memory }).then_some(path)
    })?;
    // A group outside of what the mount shows is bound at least by the top.
    let below = Path::new(group).strip_prefix(&shown).unwrap_or(Path::new(""));
    Some((if is_v2 { V2 } else { V1 }, top.join(below), top))
}

/// Undoes the escapes of `/proc/self/mountinfo`: `\040` is a space.
fn unescaped(path: &str) -> String {
    let mut parts = path.split('\\');
    let first = parts.next().unwrap_or_default().to_string();
    parts.fold(first, |text, part| {
        let code = part.get(..3).and_then(|digits| u8::from_str_radix(digits, 8).ok());
        match code {
            Some(code) => text + &String::from(char::from(code)) + &part[3..],
            None => text + "\\" + part,
        }
    })
}

/// Reads the limit of a group; `None` without one (`max`), or without the files of memory.
fn limit(group: &Path, names: &Names) -> Option<GroupMemory> {
    let limit = disk::read_to_string(group.join(names.limit)).ok()?.trim().parse().ok()?;
    let stat = disk::read_to_string(group.join("memory.stat")).unwrap_or_default();
    let used = stat.lines().find_map(|line| line.strip_prefix(names.used)?.trim().parse().ok());
    Some(GroupMemory { limit, free: limit.saturating_sub(used.unwrap_or(0)) })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    const TOTAL: u64 = 64 << 30;
    const NO_LIMIT: &str = "9223372036854771712\n";

    /// Writes the limit of a group and what it uses.
    fn group(folder: &Path, names: &Names, limit: &str, used: u64) {
        fs::create_dir_all(folder).unwrap();
        fs::write(folder.join(names.limit), limit).unwrap();
        let stat = format!("file 99\n{} {used}\n{}_huge 7\n", names.used, names.used);
        fs::write(folder.join("memory.stat"), stat).unwrap();
    }

    fn v2(root: &str, top: &Path) -> String {
        format!("30 23 0:26 {root} {} rw,nosuid shared:9 - cgroup2 cgroup2 rw\n", top.display())
    }

    fn v1(top: &Path) -> String {
        let of = |controller: &str, top: &Path| {
            format!("31 23 0:27 / {} rw - cgroup cgroup rw,{controller}\n", top.display())
        };
        of("cpu,cpuacct", &top.with_file_name("cpu")) + &of("memory", top)
    }

    #[test]
    fn the_smallest_limit_from_the_process_to_the_root_counts() {
        let folder = tempfile::tempdir().unwrap();
        let top = folder.path().join("cgroup");
        let groups = "0::/user.slice/job/step\n";
        let read = || limits(groups, &v2("/", &top), TOTAL);
        group(&top.join("user.slice/job/step"), &V2, "max\n", 10);
        group(&top.join("user.slice/job"), &V2, "83886080\n", 1000);
        // The root has no files of memory, and this group has the controller turned off.
        fs::create_dir_all(top.join("user.slice")).unwrap();
        let job = GroupMemory { limit: 83_886_080, free: 83_885_080 };
        assert_eq!(read(), Some(job));
        // The group above may have less left, because others use it too.
        group(&top.join("user.slice"), &V2, "100000000\n", 99_999_000);
        assert_eq!(read(), Some(GroupMemory { free: 1000, ..job }));
        group(&top.join("user.slice/job/step"), &V2, "4096\n", 5000);
        assert_eq!(read(), Some(GroupMemory { limit: 4096, free: 0 }));
    }

    #[test]
    fn both_versions_may_be_mounted() {
        let folder = tempfile::tempdir().unwrap();
        let [old, new] = ["memory", "unified"].map(|name| folder.path().join(name));
        let mounts = v1(&old) + &v2("/", &new);
        let groups =
            "12:cpu,cpuacct:/other\n4:memory:/slurm/uid_0/job_1\n1:name=systemd:/x\n0::/x\n";
        group(&old, &V1, NO_LIMIT, 5);
        group(&old.join("slurm/uid_0/job_1"), &V1, NO_LIMIT, 5);
        assert_eq!(limits(groups, &mounts, TOTAL), None, "nothing is limited");
        group(&old.join("slurm/uid_0"), &V1, "1073741824\n", 24);
        let job = GroupMemory { limit: 1 << 30, free: (1 << 30) - 24 };
        assert_eq!(limits(groups, &mounts, TOTAL), Some(job));
        // Memory belongs to one version, but a limit in the other one is a limit.
        group(&new.join("x"), &V2, "1000\n", 400);
        let both = GroupMemory { limit: 1000, free: 600 };
        assert_eq!(limits(groups, &mounts, TOTAL), Some(both));
        assert_eq!(limits(groups, &mounts, 1000), None, "as much as the machine has");
    }

    #[test]
    fn a_container_sees_a_part_of_the_tree() {
        let folder = tempfile::tempdir().unwrap();
        let top = folder.path().join("a tree");
        group(&top, &V2, "5000\n", 0);
        group(&top.join("child"), &V2, "4000\n", 0);
        let mounts = v2("/docker/7", &top).replace("a tree", "a\\040tree");
        let read = |group: &str| limits(&format!("0::{group}\n"), &mounts, TOTAL).unwrap().limit;
        assert_eq!(read("/docker/7/child"), 4000);
        assert_eq!([read("/docker/7"), read("/"), read("/elsewhere")], [5000; 3]);
        for broken in ["", "no line of mounts", "1 2 3:4 / /x rw - cgroup2", "a - b c d"] {
            assert_eq!(limits("0::/\n", broken, TOTAL), None);
        }
        assert_eq!(limits("", &mounts, TOTAL), None);
    }
}
