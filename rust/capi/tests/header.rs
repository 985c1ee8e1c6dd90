//! The committed header is the one that the sources make.

use std::path::Path;
use std::{env, fs};

use cbindgen::{Builder, Config};

#[test]
fn the_header_is_that_of_the_sources() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let config = Config::from_file(root.join("cbindgen.toml")).expect("it is TOML of cbindgen");
    let made = Builder::new()
        .with_config(config)
        .with_src(root.join("src/types.rs"))
        .with_src(root.join("src/entry.rs"))
        .with_src(root.join("src/abi.rs"))
        .generate()
        .expect("the sources are Rust that C can call");
    let mut text = Vec::new();
    made.write(&mut text);
    let made = String::from_utf8(text).expect("a header is text");
    let path = root.join("include/cachelb.h");
    if env::var_os("CACHELB_WRITE_HEADER").is_some() {
        fs::write(&path, &made).expect("the folder is there");
    }
    let committed = fs::read_to_string(&path).unwrap_or_default();
    assert!(
        committed == made,
        "include/cachelb.h is not that of the sources: CACHELB_WRITE_HEADER=1 cargo test -p cachelb-c --test header"
    );
}
