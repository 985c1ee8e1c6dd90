//! Tells the crate which interpreter it is built for, such as `cfg(Py_GIL_DISABLED)`, and takes the documentation of the
//! extension from its stub, so that `help()` and editors show one text.

use std::path::{Path, PathBuf};
use std::{env, fs};

const STUB: &str = "../../python/cachelb/_core.pyi";
const QUOTES: &str = "\"\"\"";

fn main() {
    pyo3_build_config::use_pyo3_cfgs();
    println!("cargo::rerun-if-changed={STUB}");
    let stub = fs::read_to_string(STUB).expect("the stub lies beside the Python package");
    let folder = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it")).join("docs");
    fs::create_dir_all(&folder).expect("the folder of build outputs can be written");
    write_docstrings(&stub, &folder);
}

/// Writes every docstring to a file called `Class`, `Class.method` or `function`.
fn write_docstrings(stub: &str, folder: &Path) {
    let mut lines = stub.lines();
    let (mut class, mut name) = (String::new(), String::new());
    while let Some(line) = lines.next() {
        let code = line.trim_start();
        let depth = line.len() - code.len();
        if let Some(found) = code.strip_prefix("class ") {
            word(found).clone_into(&mut class);
            name.clone_from(&class);
        } else if let Some(found) = code.strip_prefix("def ") {
            name = match depth {
                0 => word(found).to_owned(),
                _ => format!("{class}.{}", word(found)),
            };
        } else if let Some(text) = code.strip_prefix(QUOTES).filter(|_| !name.is_empty()) {
            let mut text = text.to_owned();
            while !text.ends_with(QUOTES) {
                let line = lines.next().expect("a docstring ends");
                text.push('\n');
                text.push_str(line.get(depth..).unwrap_or_default());
            }
            let text = text.trim_end_matches(QUOTES).trim_end();
            fs::write(folder.join(&name), text).expect("a docstring can be written");
            // A docstring without a `def` of its own belongs to an attribute.
            name.clear();
        }
    }
}

/// The name that `code` begins with.
fn word(code: &str) -> &str {
    let end = code.find(|c: char| !c.is_alphanumeric() && c != '_');
    &code[..end.unwrap_or(code.len())]
}
