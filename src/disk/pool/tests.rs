use super::mounted as disk;
use super::*;

/// Creates slots that outlive a pool, as files outlive a page.
fn slots(count: usize) -> Vec<Rc<dyn Slot>> {
    (0..count).map(|_| Rc::new(InMemory::default()) as Rc<dyn Slot>).collect()
}

fn write(pool: &mut Pool, path: &str, content: &[u8]) {
    pool.open(path, true, true).unwrap().write_at(HEADER, content).unwrap();
}

fn read(pool: &mut Pool, path: &str) -> Vec<u8> {
    let slot = pool.open(path, false, false).unwrap();
    let mut bytes = vec![0; (slot.size().unwrap() - HEADER) as usize];
    slot.read_at(HEADER, &mut bytes).unwrap();
    bytes
}

fn mounted(slots: &[Rc<dyn Slot>]) -> Pool {
    let mut pool = Pool::default();
    pool.add(slots.to_vec()).unwrap();
    pool
}

#[test]
fn files_survive_a_restart() {
    let slots = slots(3);
    let mut pool = mounted(&slots);
    write(&mut pool, "runs/a/config.toml", b"one");
    write(&mut pool, "runs/a/checkpoints/1/state.json", b"two");
    let mut restarted = mounted(&slots);
    assert_eq!(restarted.free.len(), 1);
    assert_eq!(read(&mut restarted, "runs/a/config.toml"), b"one");
    assert_eq!(
        restarted.names("runs/a").unwrap().into_iter().collect::<Vec<_>>(),
        ["checkpoints", "config.toml"]
    );
    restarted.remove_folder("runs/a").unwrap();
    assert_eq!(mounted(&slots).free.len(), 3);
}

#[test]
fn the_newer_of_two_files_with_the_same_path_counts() {
    let slots = slots(4);
    let mut pool = mounted(&slots);
    write(&mut pool, "state.json", b"old");
    write(&mut pool, "state.json.new", b"new");
    // A crash after the new path is written and before the old file is removed.
    let header = pool.next_header("state.json").encode().unwrap();
    pool.files["state.json.new"].slot.write_at(0, &header).unwrap();
    let mut restarted = mounted(&slots);
    assert_eq!(read(&mut restarted, "state.json"), b"new");
    assert_eq!((restarted.files.len(), restarted.free.len()), (1, 3));
}

#[test]
fn a_slot_with_a_damaged_header_is_free() {
    let slots = slots(1);
    let mut pool = mounted(&slots);
    write(&mut pool, "a", b"x");
    slots[0].write_at(MAGIC.len() as u64 + 3, &[7]).unwrap();
    assert_eq!((mounted(&slots).files.len(), mounted(&slots).free.len()), (0, 1));
}

#[test]
fn a_folder_is_renamed_in_the_order_of_creation() {
    let slots = slots(3);
    let mut pool = mounted(&slots);
    // Created in an order that is not alphabetical.
    write(&mut pool, "c/.writing-1/z", b"weights");
    write(&mut pool, "c/.writing-1/a", b"state");
    assert_eq!(pool.files_below("c/.writing-1"), ["c/.writing-1/z", "c/.writing-1/a"]);
    pool.rename("c/.writing-1", "c/1").unwrap();
    assert!(!pool.is_folder("c/.writing-1") && pool.is_folder("c/1"));
    assert_eq!(read(&mut pool, "c/1/a"), b"state");
    assert_eq!(pool.files_below("c/1"), ["c/1/z", "c/1/a"]);
}

#[test]
fn it_behaves_like_std_fs() {
    disk::mount(slots(4)).unwrap();
    let path = Path::new("runs/a/events.jsonl");
    assert!(matches!(disk::read(path), Err(error) if error.kind() == io::ErrorKind::NotFound));
    disk::create_dir_all("runs/a/checkpoints").unwrap();
    assert!(disk::is_dir(Path::new("runs/a")) && !disk::exists(path));
    for line in ["one\n", "two\n"] {
        disk::append(path).unwrap().write_all(line.as_bytes()).unwrap();
    }
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
