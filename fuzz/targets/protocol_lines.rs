//! Lines of protocols: the reader loses no byte and never holds more than its limit.

#![no_main]

use skein::services::LineReader;

const MAX_LINE: usize = 64;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    runtime.block_on(async {
        let mut reader = LineReader::new(data, MAX_LINE);
        let mut read = 0;
        loop {
            match reader.next().await {
                Ok(Some(line)) => {
                    assert!(!line.contains(&b'\n'));
                    read += line.len();
                }
                Ok(None) => break,
                Err(_) => read += reader.take_partial().len(),
            }
            assert!(read <= data.len());
        }
    });
});
