//! Detects error texts that mean that a request is longer than the model's window. Providers have no common error code
//! for this, so only the text is left to check.

/// Parts of the providers' error texts, in lower case.
const WORDS: [&str; 14] = [
    // The error code of OpenAI and Azure, which OpenRouter, Groq and DeepSeek forward.
    "context_length_exceeded",
    // OpenAI, vLLM and Mistral.
    "maximum context length",
    // Other versions of vLLM.
    "longer than the model's context length",
    // Moonshot.
    "exceeded model token limit",
    // Anthropic.
    "prompt is too long",
    "exceed context limit",
    // Gemini.
    "exceeds the maximum number of tokens",
    // xAI.
    "maximum prompt length",
    // Ollama.
    "max context length",
    "exceeds the context length",
    // llama.cpp.
    "exceeds the available context size",
    "exceed_context_size",
    // LM Studio.
    "greater than the context length",
    "context length of only",
];

/// Returns true if an error text means that the request does not fit into the model's window.
pub(super) fn is_overflow(text: &str) -> bool {
    let text = text.to_lowercase();
    WORDS.iter().any(|words| text.contains(words))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_words_of_each_provider_are_understood() {
        let said = [
            r#"{"error":{"message":"This model's maximum context length is 128000 tokens. However, your messages resulted in 140000 tokens.","type":"invalid_request_error","code":"context_length_exceeded"}}"#,
            r#"{"type":"error","error":{"type":"invalid_request_error","message":"prompt is too long: 210000 tokens > 200000 maximum"}}"#,
            r#"{"error":{"message":"input length and `max_tokens` exceed context limit: 199000 + 8192 > 200000"}}"#,
            r#"{"error":{"code":400,"message":"The input token count (1200000) exceeds the maximum number of tokens allowed (1048576).","status":"INVALID_ARGUMENT"}}"#,
            r#"{"error":"prompt too long; exceeded max context length by 312 tokens"}"#,
            r#"{"error":{"code":400,"message":"the request exceeds the available context size, try increasing it","type":"exceed_context_size_error"}}"#,
            r#"{"error":"The number of tokens to keep from the initial prompt is greater than the context length."}"#,
            r#"{"error":"Trying to keep the first 5000 tokens when context the overflows. However, the model is loaded with context length of only 4096 tokens"}"#,
            r#"{"error":"This model's maximum prompt length is 131072 but the request contains 537812 tokens."}"#,
            r#"{"error":{"message":"Invalid request: Your request exceeded model token limit: 262144 (requested: 269030)","type":"invalid_request_error"}}"#,
            r#"{"object":"error","message":"The decoder prompt (length 40000) is longer than the model's context length of 32768."}"#,
            r#"{"message":"Prompt contains 40000 tokens, too large for model with 32768 maximum context length"}"#,
        ];
        for text in said {
            assert!(is_overflow(text), "{text}");
        }
    }

    #[test]
    fn other_refusals_are_something_else() {
        for text in [
            r#"{"error":{"message":"Rate limit reached: 30000 tokens per minute"}}"#,
            r#"{"error":{"message":"max_tokens is too large: 200000"}}"#,
            r#"{"error":{"message":"Invalid value for 'messages'"}}"#,
        ] {
            assert!(!is_overflow(text), "{text}");
        }
    }
}
