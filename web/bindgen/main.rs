//! `bindgen MODULE.wasm FOLDER NAME`: writes FOLDER/NAME.js and FOLDER/NAME_bg.wasm.

use std::error::Error;

use wasm_bindgen_cli_support::Bindgen;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [module, folder, name] = arguments.as_slice() else {
        return Err("usage: bindgen MODULE.wasm FOLDER NAME".into());
    };
    let mut bindgen = Bindgen::new();
    bindgen.input_path(module).out_name(name).web(true)?.typescript(false);
    bindgen.remove_name_section(true).remove_producers_section(true).generate(folder)?;
    Ok(())
}
