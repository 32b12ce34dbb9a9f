//! Messages of MCP servers: a line is a message, or fails requests with an error for each. What a server says about
//! its tools is safe to show after one pass.

use skein::broker::check_tool;
use skein::services::{count_failures, read_outcome, read_tools};

pub(super) fn run(data: &[u8]) {
    for line in data.split(|byte| *byte == b'\n') {
        let (errors, requests) = count_failures(line);
        assert_eq!(errors, requests, "each request that fails gets an error");
        for tool in read_tools(line) {
            if let Some(clean) = check_tool(tool) {
                assert_eq!(check_tool(clean.clone()), Some(clean));
            }
        }
        if let Some(outcome) = read_outcome(line) {
            assert!(outcome.annotations.iter().all(|(at, _)| *at < outcome.content.len()), "{outcome:?}");
        }
    }
}
