//! Files of the origin's own file system as slots of the pool.

use std::cell::{Cell, RefCell};
use std::io;
use std::rc::Rc;

use wasm_bindgen::JsCast;
use wasm_bindgen::prelude::JsValue;
use wasm_bindgen_futures::JsFuture;
use web_sys::{
    DomException, FileSystemDirectoryHandle, FileSystemFileHandle, FileSystemGetDirectoryOptions,
    FileSystemGetFileOptions, FileSystemReadWriteOptions, FileSystemSyncAccessHandle,
    StorageEstimate, StorageManager, WorkerGlobalScope,
};

use super::messages::Storage;
use super::words;
use crate::disk;
use crate::disk::pool::{InMemory, Slot, mounted};

/// The folder of the slots, which are numbered from 0.
const FOLDER: &str = "wgpt-1";

/// Slots that are kept free: a checkpoint and what is written beside it take fewer.
const FREE: usize = 24;

/// How often a slot is asked for that a worker before this one may still hold, every 100 ms.
const TRIES: u32 = 50;

/// Where more slots come from.
#[derive(Default)]
pub(super) struct Source {
    /// `None` where nothing is kept.
    folder: RefCell<Option<FileSystemDirectoryHandle>>,
    slots: Cell<usize>,
    /// Whether one is being made.
    busy: Cell<bool>,
}

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
    io::Error::new(kind, words(&error))
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
                let full = "the browser has no more room for this page";
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

impl Source {
    /// Takes all files of the origin; without them, files in memory.
    ///
    /// # Errors
    /// Why nothing is kept.
    pub async fn open(&self) -> Result<(), String> {
        let opened = open_folder().await.map(|(folder, slots)| {
            self.folder.replace(Some(folder));
            self.slots.set(slots);
        });
        self.make_room().await;
        opened.map_err(|error| words(&error))
    }

    /// Makes slots until enough are free.
    pub async fn make_room(&self) {
        // One at a time: a number that is skipped would end the list when it is opened again.
        if self.busy.replace(true) {
            return;
        }
        self.make_slots().await;
        self.busy.set(false);
    }

    async fn make_slots(&self) {
        while mounted::free_slots() < FREE {
            let folder = self.folder.borrow().clone();
            let slot: Rc<dyn Slot> = match folder {
                None => Rc::new(InMemory::default()),
                Some(folder) => {
                    let number = self.slots.get();
                    match make(&folder, number).await {
                        Ok(slot) => {
                            self.slots.set(number + 1);
                            slot
                        }
                        // Whatever needs it will say that there is no room.
                        Err(_) => return,
                    }
                }
            };
            if disk::mount(vec![slot]).is_err() {
                return;
            }
        }
    }

    /// What the browser gives and what is taken.
    pub async fn room(&self) -> Storage {
        let kept = self.folder.borrow().is_some();
        let Some(manager) = manager().filter(|_| kept) else { return Storage::default() };
        let estimate = match manager.estimate() {
            Ok(promise) => JsFuture::from(promise).await.ok(),
            Err(_) => None,
        };
        let Some(estimate) = estimate else { return Storage::default() };
        let estimate: StorageEstimate = estimate.unchecked_into();
        let persisted = match manager.persisted() {
            Ok(promise) => JsFuture::from(promise).await.is_ok_and(|kept| kept.is_truthy()),
            Err(_) => false,
        };
        Storage {
            quota: estimate.get_quota().unwrap_or(0.0) as u64,
            used: estimate.get_usage().unwrap_or(0.0) as u64,
            persisted,
        }
    }
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
    let mut tries = 0;
    loop {
        tries += 1;
        match JsFuture::from(file.create_sync_access_handle()).await {
            Ok(handle) => return Ok(Rc::new(Handle(handle.unchecked_into()))),
            Err(error) => {
                let name = error.dyn_ref::<DomException>().map(DomException::name);
                if name.as_deref() != Some("NoModificationAllowedError") {
                    return Err(error);
                }
                if tries == TRIES {
                    return Err("another tab or window has this page open".into());
                }
                sleep(100).await;
            }
        }
    }
}

async fn sleep(ms: i32) {
    let promise = js_sys::Promise::new(&mut |resolve, _| {
        if let Ok(scope) = js_sys::global().dyn_into::<WorkerGlobalScope>() {
            let _ = scope.set_timeout_with_callback_and_timeout_and_arguments_0(&resolve, ms);
        }
    });
    let _ = JsFuture::from(promise).await;
}

async fn make(folder: &FileSystemDirectoryHandle, number: usize) -> Result<Rc<dyn Slot>, JsValue> {
    let create = FileSystemGetFileOptions::new();
    create.set_create(true);
    let file = folder.get_file_handle_with_options(&number.to_string(), &create);
    access(JsFuture::from(file).await?.unchecked_into()).await
}
