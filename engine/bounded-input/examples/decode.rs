//! Reads a text that may be compressed and prints its bytes: what the decoder alone costs.
//!
//!     cargo run --release -p bounded-input --example decode FILE

use std::{env, io, path::Path};

fn main() -> io::Result<()> {
    let path = env::args_os().nth(1).ok_or_else(|| io::Error::other("expected a file"))?;
    let mut text = bounded_input::text::open(Path::new(&path))?;
    println!("{}", io::copy(&mut text, &mut io::sink())?);
    Ok(())
}
