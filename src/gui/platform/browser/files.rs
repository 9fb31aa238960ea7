//! Files that were dropped or chosen, on their way to the worker.

use wasm_bindgen_futures::JsFuture;
use web_sys::File;

use super::dialog;
use super::line::Line;
use crate::config::bytes;
use crate::gui::work::tokenizer_for;
use crate::web::messages::Ask;

/// The most bytes of text that a page takes: it holds them a few times over while it prepares them.
const MOST_TEXT: f64 = (256u32 << 20) as f64;

/// Between documents that are prepared together.
const BETWEEN: &str = "<|endoftext|>";

/// Has a text turned into tokens.
pub(super) fn prepare(name: String, text: String) -> Ask {
    let tokenizer = tokenizer_for(text.len() as u64);
    Ask::Prepare { name, text, tokenizer }
}

/// The texts of files, one after the other.
///
/// # Errors
/// When one cannot be read, is no text, or they are too much for a page.
pub(super) async fn read(files: &[File]) -> Result<String, String> {
    let all: f64 = files.iter().map(|file| file.size()).sum();
    if all > MOST_TEXT {
        let (have, most) = (bytes(all as u64), bytes(MOST_TEXT as u64));
        return Err(format!(
            "these texts have {have}, a page takes {most}: use wgpt on the desktop"
        ));
    }
    let mut texts = Vec::with_capacity(files.len());
    for file in files {
        let name = file.name();
        let read = contents(file).await.map_err(|error| format!("{name}: {error}"))?;
        texts.push(String::from_utf8(read).map_err(|error| {
            let at = error.utf8_error().valid_up_to();
            format!("{name} is no UTF-8 text: byte {at} is not; save it as UTF-8")
        })?);
    }
    Ok(texts.join(BETWEEN))
}

/// Has the model in a zip kept.
///
/// # Errors
/// When it cannot be read.
pub(super) async fn import(line: &Line, file: &File, name: String) -> Result<(), String> {
    let zip = contents(file).await?;
    line.ask_with(&Ask::Import { name }, &zip);
    Ok(())
}

async fn contents(file: &File) -> Result<Vec<u8>, String> {
    let read = JsFuture::from(file.array_buffer()).await;
    let read = read.map_err(|error| format!("it cannot be read: {}", dialog::words(&error)))?;
    Ok(js_sys::Uint8Array::new(&read).to_vec())
}
