//! Names the library by its version for the loader: programs ask for `libtombolo.so.0`, and not for
//! whatever comes later.

fn main() {
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libtombolo.so.0");
    println!("cargo:rerun-if-changed=build.rs");
}
