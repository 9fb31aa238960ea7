use super::mounted::{self as disk, DISK};
use super::*;

/// Creates slots that outlive a pool, as files outlive a page.
fn slots(count: usize) -> Vec<Rc<dyn Slot>> {
    (0..count).map(|_| Rc::new(InMemory::default()) as Rc<dyn Slot>).collect()
}

/// Mounts the slots alone, as a page does that starts.
fn start(slots: &[Rc<dyn Slot>]) {
    DISK.take();
    disk::mount(slots.to_vec()).unwrap();
}

fn read(path: &str) -> String {
    disk::read_to_string(path).unwrap()
}

#[test]
fn files_survive_a_restart() {
    let slots = slots(3);
    start(&slots);
    disk::write("runs/a/config.toml", "one").unwrap();
    disk::write("runs/a/checkpoints/1/state.json", "two").unwrap();
    start(&slots);
    assert_eq!((disk::free_slots(), read("runs/a/config.toml").as_str()), (1, "one"));
    let names = disk::read_dir("runs/a").unwrap().map(|entry| entry.unwrap().file_name());
    assert_eq!(names.collect::<Vec<_>>(), ["checkpoints", "config.toml"]);
    disk::remove_dir_all("runs/a").unwrap();
    start(&slots);
    assert_eq!(disk::free_slots(), 3);
}

#[test]
fn the_newer_of_two_files_with_the_same_path_counts() {
    let slots = slots(4);
    start(&slots);
    disk::write("state.json", "old").unwrap();
    disk::write("state.json.new", "new").unwrap();
    // A crash after the new path is written and before the old file is removed.
    DISK.with_borrow_mut(|disk| {
        let header = disk.next_header("state.json").encode().unwrap();
        disk.files["state.json.new"].slot.write_at(0, &header).unwrap();
    });
    start(&slots);
    assert_eq!((read("state.json").as_str(), disk::free_slots()), ("new", 3));
}

#[test]
fn a_slot_with_a_damaged_header_is_free() {
    let slots = slots(1);
    start(&slots);
    disk::write("a", "x").unwrap();
    slots[0].write_at(MAGIC.len() as u64 + 3, &[7]).unwrap();
    start(&slots);
    assert!(disk::free_slots() == 1 && disk::read_dir("").unwrap().count() == 0);
}

#[test]
fn a_folder_is_renamed_in_the_order_of_creation() {
    let below = |folder: &str| DISK.with_borrow(|disk| disk.files_below(folder).unwrap());
    start(&slots(3));
    // Created in an order that is not alphabetical.
    disk::write("c/.writing-1/z", "weights").unwrap();
    disk::write("c/.writing-1/a", "state").unwrap();
    assert_eq!(below("c/.writing-1"), ["c/.writing-1/z", "c/.writing-1/a"]);
    disk::rename("c/.writing-1", "c/1").unwrap();
    let is_folder = |path: &str| DISK.with_borrow(|disk| disk.is_folder(path));
    assert!(!is_folder("c/.writing-1") && is_folder("c/1"));
    assert_eq!(read("c/1/a"), "state");
    assert_eq!(below("c/1"), ["c/1/z", "c/1/a"]);
}

#[test]
fn it_behaves_like_std_fs() {
    disk::mount(slots(4)).unwrap();
    let path = Path::new("runs/a/events.jsonl");
    assert!(matches!(disk::read(path), Err(error) if error.kind() == io::ErrorKind::NotFound));
    disk::create_dir_all("runs/a/checkpoints").unwrap();
    assert!(disk::metadata("runs/a").is_err() && disk::metadata(path).is_err());
    for line in ["one\n", "two\n"] {
        disk::append(path).unwrap().write_all(line.as_bytes()).unwrap();
    }
    assert!(disk::metadata("runs/a").unwrap().is_dir() && disk::metadata(path).unwrap().is_file());
    assert_eq!(disk::read_to_string("./runs/a/events.jsonl").unwrap(), "one\ntwo\n");
    let mut file = disk::File::open(path).unwrap();
    file.seek(SeekFrom::End(-2)).unwrap();
    let mut rest = String::new();
    file.read_to_string(&mut rest).unwrap();
    assert_eq!(rest, "o\n");
    disk::replace(path, b"new").unwrap();
    assert_eq!(disk::read(path).unwrap(), b"new");
    assert_eq!((disk::free_slots(), disk::metadata(path).unwrap().len()), (3, 3));

    let lock = disk::File::create("runs/a/lock").unwrap();
    lock.try_lock().unwrap();
    let other = disk::File::open("runs/a/lock").unwrap();
    assert!(matches!(other.try_lock_shared(), Err(disk::TryLockError::WouldBlock)));
    drop(lock);
    other.try_lock_shared().unwrap();
}
