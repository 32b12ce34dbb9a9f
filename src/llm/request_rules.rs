//! Knows what the provider of a model takes in a request, where providers of one dialect differ.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use genai::adapter::AdapterKind;

use crate::conversation::{CallSignature, ToolUse};

/// What Google accepts as the signature of a call that another model made.
const UNSIGNED: &str = "skip_thought_signature_validator";

/// Parts of the names of models that take audio in OpenAI's dialect. The others refuse it.
const AUDIO_MODELS: [&str; 4] = ["audio", "gemini", "omni", "voxtral"];

/// What the provider of a model takes in a request.
#[derive(Debug, Clone)]
pub(super) struct RequestRules {
    dialect: AdapterKind,
    takes_images: bool,
    takes_audio: bool,
    /// Whether the provider refuses an answer without the thoughts that led to it.
    pub(super) wants_thoughts: bool,
    /// Whether the provider refuses a message of the user after results, and ids of calls that are not its own.
    pub(super) is_mistral: bool,
    /// The model as `provider:model`, if it signs its calls.
    signer: Option<String>,
    /// Whether the provider takes [`UNSIGNED`], and refuses an answer whose first call has no signature.
    requires_signatures: bool,
}

impl RequestRules {
    /// Returns the rules for a model, which users call `name` and the provider `model`. The provider may have any name,
    /// so its address counts too.
    pub(super) fn new(dialect: AdapterKind, name: &str, model: &str, address: &str) -> Self {
        let url = reqwest::Url::parse(address).ok();
        let host = url.as_ref().and_then(reqwest::Url::host_str).filter(|_| dialect == AdapterKind::OpenAI);
        let model = model.to_ascii_lowercase();
        let is_gemini = dialect == AdapterKind::Gemini;
        // OpenRouter and Google offer Gemini in OpenAI's dialect, too.
        let signs = is_gemini || (dialect == AdapterKind::OpenAI && model.contains("gemini"));
        let takes_audio = match dialect {
            AdapterKind::Gemini => true,
            AdapterKind::OpenAI => AUDIO_MODELS.iter().any(|part| model.contains(part)),
            _ => false,
        };
        let is_deepseek = dialect == AdapterKind::DeepSeek || host == Some("api.deepseek.com");
        let is_moonshot = matches!(host, Some("api.moonshot.ai" | "api.moonshot.cn"));
        // Moonshot's coding plan has only models that think, and their names need not contain `kimi`.
        let is_kimi_code = matches!(host, Some("api.kimi.com" | "api.kimi.ai"));
        let is_mistral =
            dialect == AdapterKind::Mistral || matches!(host, Some("api.mistral.ai" | "codestral.mistral.ai"));
        Self {
            dialect,
            // DeepSeek's other models refuse a conversation with an image.
            takes_images: !is_deepseek || model.contains("flash") || model.contains("vision"),
            takes_audio,
            is_mistral,
            wants_thoughts: is_deepseek || is_kimi_code || (is_moonshot && model.starts_with("kimi")),
            signer: signs.then(|| name.to_owned()),
            requires_signatures: is_gemini && requires_signatures(&model),
        }
    }

    /// Returns the name by which the provider knows a type of media. `None` if the model does not take the type.
    pub(super) fn find_media_type(&self, mime: &str) -> Option<&'static str> {
        let is_gemini = self.dialect == AdapterKind::Gemini;
        let mime = match mime.to_ascii_lowercase().as_str() {
            "image/png" => "image/png",
            "image/jpeg" | "image/jpg" => "image/jpeg",
            "image/gif" if !is_gemini => "image/gif",
            "image/webp" => "image/webp",
            "audio/wav" | "audio/x-wav" => "audio/wav",
            "audio/mpeg" | "audio/mp3" if is_gemini => "audio/mp3",
            "audio/mpeg" | "audio/mp3" => "audio/mpeg",
            "audio/ogg" if is_gemini => "audio/ogg",
            "audio/flac" if is_gemini => "audio/flac",
            _ => return None,
        };
        let is_taken = if mime.starts_with("audio/") { self.takes_audio } else { self.takes_images };
        is_taken.then_some(mime)
    }

    /// Returns the id to send for a call. Mistral refuses ids that are not nine letters and digits.
    pub(super) fn write_id(&self, id: &str) -> String {
        let is_short = id.len() == 9 && id.bytes().all(|byte| byte.is_ascii_alphanumeric());
        if is_short || !self.is_mistral {
            return id.to_owned();
        }
        let mut hasher = DefaultHasher::new();
        id.hash(&mut hasher);
        // Nine hexadecimal digits have 36 bits.
        format!("{:09x}", hasher.finish() >> 28)
    }

    /// Returns the signature of a call that the model made, from those in its answer.
    pub(super) fn sign(&self, signatures: Option<Vec<String>>) -> Option<CallSignature> {
        let model = self.signer.clone()?;
        Some(CallSignature { model, value: signatures?.into_iter().find(|value| !value.is_empty())? })
    }

    /// Returns the signature to send with a call. The signature of another model would be refused. Calls that a model
    /// makes at once have one signature, with the first of them.
    pub(super) fn find_signature(&self, call: &ToolUse, is_first: bool) -> Option<String> {
        let signer = self.signer.as_ref()?;
        let own = call.signature.as_ref().filter(|signature| signature.model == *signer);
        match own {
            Some(signature) => Some(signature.value.clone()),
            None => (is_first && self.requires_signatures).then(|| UNSIGNED.to_owned()),
        }
    }
}

/// Returns true for the Gemini models from version 3 on, and for names without a version, such as `gemini-pro-latest`.
fn requires_signatures(model: &str) -> bool {
    let version = model.split_once("gemini-").map(|(_, version)| version);
    version.is_some_and(|version| !version.starts_with(['1', '2']))
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use serde_json::json;

    use super::*;

    const ADDRESS: &str = "http://localhost/v1/";

    #[test]
    fn an_address_tells_who_wants_thoughts() {
        use AdapterKind::{Anthropic, DeepSeek, OpenAI};
        for (dialect, model, address, expected) in [
            (DeepSeek, "deepseek-v4-pro", ADDRESS, true),
            (OpenAI, "deepseek-v4-pro", ADDRESS, false),
            (OpenAI, "deepseek-v4-pro", "https://api.deepseek.com/", true),
            (OpenAI, "deepseek-v4-pro", "https://API.DeepSeek.com:443/v1/?a=b", true),
            (OpenAI, "deepseek-v4-pro", "https://api.deepseek.com.example/v1/", false),
            (Anthropic, "deepseek-v4-pro", "https://api.deepseek.com/anthropic/v1/", false),
            (OpenAI, "kimi-k2.6", "https://api.moonshot.ai/v1/", true),
            (OpenAI, "moonshot-v1-8k", "https://api.moonshot.cn/v1/", false),
            (OpenAI, "kimi-for-coding", "https://api.kimi.com/coding/v1/", true),
            (OpenAI, "k3", "https://api.kimi.com/coding/v1/", true),
            (OpenAI, "k3", "https://api.kimi.ai/coding/v1/", true),
            (OpenAI, "k3", "https://kimi.example/coding/v1/", false),
            (Anthropic, "k3", "https://api.kimi.com/coding/v1/", false),
        ] {
            let rules = RequestRules::new(dialect, "own:model", model, address);
            assert_eq!(rules.wants_thoughts, expected, "{dialect} {model} {address}");
        }
    }

    fn signed(model: &str) -> ToolUse {
        let call = ToolUse::new("1".to_owned(), "read".to_owned(), json!({}));
        let signature = Some(CallSignature { model: model.to_owned(), value: "abc=".to_owned() });
        ToolUse { signature, ..call }
    }

    #[test]
    fn mistral_gets_ids_of_nine_letters_and_digits() {
        let rules = |dialect, address| RequestRules::new(dialect, "own:model", "model", address);
        let mistral = rules(AdapterKind::Mistral, ADDRESS);
        assert_eq!(mistral.write_id("D681PevKs"), "D681PevKs");
        let ids = ["call-0123456789abcdef", "call-0123456789abcdee", "toolu_01", "a b c d e", "1"];
        let sent: HashSet<_> = ids.iter().map(|id| mistral.write_id(id)).collect();
        assert_eq!(sent.len(), ids.len(), "{sent:?}");
        for id in &sent {
            assert!(id.len() == 9 && id.bytes().all(|byte| byte.is_ascii_alphanumeric()), "{id}");
            assert!(sent.contains(&mistral.write_id(id)), "{id} does not change again");
        }
        let own = rules(AdapterKind::OpenAI, "https://api.mistral.ai/v1/");
        assert_eq!(own.write_id("toolu_01"), mistral.write_id("toolu_01"));
        assert_eq!(rules(AdapterKind::OpenAI, ADDRESS).write_id("toolu_01"), "toolu_01");
    }

    #[test]
    fn a_model_gets_only_its_own_signatures() {
        let rules = |model: &str| RequestRules::new(AdapterKind::Gemini, &format!("google:{model}"), model, ADDRESS);
        let call = signed("google:gemini-3-pro");
        let sent = |model: &str, is_first| rules(model).find_signature(&call, is_first);
        assert_eq!(sent("gemini-3-pro", true).as_deref(), Some("abc="));
        assert_eq!(sent("gemini-3-pro", false).as_deref(), Some("abc="));
        for model in ["gemini-3-flash", "gemini-4-pro", "gemini-flash-latest"] {
            assert_eq!(sent(model, true).as_deref(), Some(UNSIGNED), "{model}");
            assert_eq!(sent(model, false), None, "{model}");
        }
        for model in ["gemini-2.5-pro", "gemini-1.5-flash", "gemma-3-27b-it"] {
            assert_eq!(sent(model, true), None, "{model}");
        }
    }

    #[test]
    fn only_gemini_signs_calls() {
        let rules = |dialect| RequestRules::new(dialect, "p:gemini-3-pro", "gemini-3-pro", ADDRESS);
        let signatures = || Some(vec![String::new(), "a".to_owned(), "b".to_owned()]);
        let expected = CallSignature { model: "p:gemini-3-pro".to_owned(), value: "a".to_owned() };
        assert_eq!(rules(AdapterKind::Gemini).sign(signatures()), Some(expected));
        assert_eq!(rules(AdapterKind::Gemini).sign(None), None);
        assert_eq!(rules(AdapterKind::Anthropic).sign(signatures()), None);
        let own = |dialect| rules(dialect).find_signature(&signed("p:gemini-3-pro"), true);
        assert_eq!((own(AdapterKind::OpenAI).as_deref(), own(AdapterKind::Anthropic)), (Some("abc="), None));
        assert_eq!(rules(AdapterKind::OpenAI).find_signature(&signed("p:gemini-2.5-pro"), true), None);
    }
}
