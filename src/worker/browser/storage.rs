//! The storage of the page's origin: files of its private file system as slots of the pool.

use std::cell::{Cell, RefCell};
use std::io;
use std::rc::Rc;
use std::time::Duration;

use wasm_bindgen::JsCast;
use wasm_bindgen::prelude::JsValue;
use wasm_bindgen_futures::JsFuture;
use web_sys::{
    DomException, FileSystemDirectoryHandle, FileSystemFileHandle, FileSystemGetDirectoryOptions,
    FileSystemGetFileOptions, FileSystemReadWriteOptions, FileSystemSyncAccessHandle,
    StorageEstimate, StorageManager, WorkerGlobalScope,
};

use crate::browser;
use crate::disk;
use crate::disk::pool::{InMemory, Slot, mounted};
use crate::protocol::StorageUsage;

/// The folder of the slots, which are numbered from 0.
const FOLDER: &str = "wgpt-1";

/// Free slots: more than a checkpoint and the files written next to it need.
const FREE_SLOTS: usize = 24;

/// Attempts to open a slot, which a former worker may still hold, and the time between them.
const ATTEMPTS: u32 = 50;
const RETRY: Duration = Duration::from_millis(100);

/// The slots of the origin's file system, and new ones.
#[derive(Default)]
pub(super) struct Slots {
    /// `None` where nothing is stored.
    folder: RefCell<Option<FileSystemDirectoryHandle>>,
    count: Cell<usize>,
    /// True while one is being created.
    is_busy: Cell<bool>,
}

#[derive(Debug)]
struct Handle(FileSystemSyncAccessHandle);

fn at(offset: u64) -> FileSystemReadWriteOptions {
    let options = FileSystemReadWriteOptions::new();
    options.set_at(offset as f64);
    options
}

fn refused(error: JsValue) -> io::Error {
    let kind = match error.dyn_ref::<DomException>().map(DomException::name).as_deref() {
        Some("QuotaExceededError") => io::ErrorKind::StorageFull,
        _ => io::ErrorKind::Other,
    };
    io::Error::new(kind, browser::error_text(&error))
}

impl Slot for Handle {
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.0.read_with_u8_array_and_options(buffer, &at(offset)).map_err(refused)?;
        Ok(read as usize)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let mut done = 0;
        while done < bytes.len() {
            let options = at(offset + done as u64);
            let rest = &bytes[done..];
            let written =
                self.0.write_with_u8_array_and_options(rest, &options).map_err(refused)? as usize;
            if written == 0 {
                let full = "the browser has no more space for this page";
                return Err(io::Error::new(io::ErrorKind::StorageFull, full));
            }
            done += written;
        }
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.0.truncate_with_f64(len as f64).map_err(refused)
    }

    fn size(&self) -> io::Result<u64> {
        Ok(self.0.get_size().map_err(refused)? as u64)
    }

    fn flush(&self) -> io::Result<()> {
        self.0.flush().map_err(refused)
    }
}

fn manager() -> Option<StorageManager> {
    let scope: WorkerGlobalScope = js_sys::global().dyn_into().ok()?;
    let manager = scope.navigator().storage();
    (!manager.is_undefined()).then_some(manager)
}

impl Slots {
    /// Mounts all files of the origin, or files in memory if it has no storage. The error is the reason why
    /// nothing is stored.
    pub async fn open(&self) -> Result<(), String> {
        let opened = open_folder().await.map(|(folder, slots)| {
            self.folder.replace(Some(folder));
            self.count.set(slots);
        });
        self.make_space().await;
        opened.map_err(|error| browser::error_text(&error))
    }

    /// Creates slots until enough are free.
    pub async fn make_space(&self) {
        // One at a time: a number that is skipped would end the list when it is opened again.
        if self.is_busy.replace(true) {
            return;
        }
        self.create_slots().await;
        self.is_busy.set(false);
    }

    async fn create_slots(&self) {
        while mounted::free_slots() < FREE_SLOTS {
            let folder = self.folder.borrow().clone();
            let slot: Rc<dyn Slot> = match folder {
                None => Rc::new(InMemory::default()),
                Some(folder) => {
                    // The write that needs the space reports that none is left.
                    let Ok(slot) = create(&folder, self.count.get()).await else { return };
                    self.count.update(|count| count + 1);
                    slot
                }
            };
            if disk::mount(vec![slot]).is_err() {
                return;
            }
        }
    }

    /// Measures the space that the browser grants, and the part in use.
    pub async fn usage(&self) -> StorageUsage {
        if self.folder.borrow().is_none() {
            return StorageUsage::default();
        }
        measure().await.unwrap_or_default()
    }
}

async fn measure() -> Result<StorageUsage, JsValue> {
    let manager = manager().ok_or(JsValue::UNDEFINED)?;
    let estimate: StorageEstimate = JsFuture::from(manager.estimate()?).await?.unchecked_into();
    let persisted = match manager.persisted() {
        Ok(promise) => JsFuture::from(promise).await.is_ok_and(|persisted| persisted.is_truthy()),
        Err(_) => false,
    };
    Ok(StorageUsage {
        quota: estimate.get_quota().unwrap_or(0.0) as u64,
        used: estimate.get_usage().unwrap_or(0.0) as u64,
        persisted,
    })
}

async fn open_folder() -> Result<(FileSystemDirectoryHandle, usize), JsValue> {
    let manager = manager().ok_or("the browser has no storage for this page")?;
    let root: FileSystemDirectoryHandle =
        JsFuture::from(manager.get_directory()).await?.unchecked_into();
    let create = FileSystemGetDirectoryOptions::new();
    create.set_create(true);
    let folder = root.get_directory_handle_with_options(FOLDER, &create);
    let folder: FileSystemDirectoryHandle = JsFuture::from(folder).await?.unchecked_into();
    let mut slots: Vec<Rc<dyn Slot>> = Vec::new();
    while let Ok(file) = JsFuture::from(folder.get_file_handle(&slots.len().to_string())).await {
        slots.push(access(file.unchecked_into()).await?);
    }
    let count = slots.len();
    disk::mount(slots).map_err(|error| JsValue::from_str(&error.to_string()))?;
    Ok((folder, count))
}

async fn access(file: FileSystemFileHandle) -> Result<Rc<dyn Slot>, JsValue> {
    for _ in 0..ATTEMPTS {
        match JsFuture::from(file.create_sync_access_handle()).await {
            Ok(handle) => return Ok(Rc::new(Handle(handle.unchecked_into()))),
            Err(error) => {
                let name = error.dyn_ref::<DomException>().map(DomException::name);
                if name.as_deref() != Some("NoModificationAllowedError") {
                    return Err(error);
                }
            }
        }
        browser::sleep(RETRY).await;
    }
    Err("another tab or window has this page open".into())
}

async fn create(
    folder: &FileSystemDirectoryHandle,
    number: usize,
) -> Result<Rc<dyn Slot>, JsValue> {
    let create = FileSystemGetFileOptions::new();
    create.set_create(true);
    let file = folder.get_file_handle_with_options(&number.to_string(), &create);
    access(JsFuture::from(file).await?.unchecked_into()).await
}
