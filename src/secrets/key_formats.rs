//! The formats of keys and tokens that have a recognisable form. Specific formats come before general ones.

/// A pattern, and what it finds.
pub(super) static KEY_FORMATS: [(&str, &str); 67] = [
    (r"-----BEGIN [A-Z ]*PRIVATE KEY( BLOCK)?-----", "a private key"),
    (r"\bAGE-SECRET-KEY-1[0-9A-Z]{58}\b", "an age key"),
    (r"\b(AKIA|ASIA)[0-9A-Z]{16}\b", "an AWS key"),
    (r"(?i)\bAccountKey=[A-Za-z0-9+/]{80,}={0,2}", "an Azure storage key"),
    (r"\bAIza[0-9A-Za-z_-]{30,}", "a Google key"),
    (r"\bGOCSPX-[0-9A-Za-z_-]{20,}", "a Google OAuth secret"),
    (r"\bya29\.[0-9A-Za-z_-]{20,}", "a Google OAuth token"),
    (r"\bgh[pousr]_[A-Za-z0-9]{20,}", "a GitHub token"),
    (r"\bgithub_pat_[A-Za-z0-9_]{40,}", "a GitHub token"),
    (r"\bgl(pat|ptt|dt|rt|rtr|cbt|ft|imt|soat|oas|wt|ffct|agent)-[A-Za-z0-9_-]{16,}", "a GitLab token"),
    (r"\bATATT3[A-Za-z0-9_=-]{50,}", "an Atlassian token"),
    (r"\bskein_[0-9a-f]{12}_[0-9a-f]{64}\b", "a Skein token"),
    (r"\bsk-ant-[A-Za-z0-9_-]{16,}", "an Anthropic key"),
    (r"\bsk-or-v1-[0-9a-f]{16,}", "an OpenRouter key"),
    (r"\bsk-(proj|svcacct|admin)-[A-Za-z0-9_-]{16,}", "an OpenAI key"),
    (r"\bgsk_[A-Za-z0-9]{20,}", "a Groq key"),
    (r"\bxai-[A-Za-z0-9]{20,}", "an xAI key"),
    (r"\bhf_[A-Za-z0-9]{20,}", "a Hugging Face token"),
    (r"\br8_[A-Za-z0-9]{20,}", "a Replicate token"),
    (r"\bnvapi-[A-Za-z0-9_-]{20,}", "an NVIDIA key"),
    (r"\bpplx-[A-Za-z0-9]{20,}", "a Perplexity key"),
    (r"\btvly-[A-Za-z0-9-]{16,}", "a Tavily key"),
    (r"\brpa_[A-Za-z0-9]{20,}", "a RunPod key"),
    (r"\bHRKU-[A-Za-z0-9_-]{20,}", "a Heroku key"),
    (r"\bxox[abcdeposr]-[A-Za-z0-9-]{10,}", "a Slack token"),
    (r"\bxapp-[0-9]-[A-Za-z0-9-]{10,}", "a Slack token"),
    (r"https://hooks\.slack\.com/(services|workflows)/[A-Za-z0-9/_-]{20,}", "a Slack webhook"),
    (r"https://(\w+\.)?discord(app)?\.com/api/webhooks/[0-9]{10,}/[A-Za-z0-9_-]{20,}", "a Discord webhook"),
    (r"\b[MNO][A-Za-z0-9_-]{23,27}\.[A-Za-z0-9_-]{6}\.[A-Za-z0-9_-]{27,}", "a Discord token"),
    (r"\b[0-9]{8,10}:AA[A-Za-z0-9_-]{32,}", "a Telegram token"),
    (r"\b(sk|rk)_(live|test)_[A-Za-z0-9]{16,}", "a Stripe key"),
    (r"\bwhsec_[A-Za-z0-9+/=]{20,}", "a webhook secret"),
    (r"\bsq0(atp|csp|idp)-[A-Za-z0-9_-]{20,}", "a Square token"),
    (r"\bshp(at|ca|pa|ss)_[0-9a-fA-F]{32}\b", "a Shopify token"),
    (r"\bSG\.[A-Za-z0-9_-]{16,}\.[A-Za-z0-9_-]{16,}", "a SendGrid key"),
    (r"\bSK[0-9a-f]{32}\b", "a Twilio key"),
    (r"\bkey-[0-9a-f]{32}\b", "a Mailgun key"),
    (r"\bnpm_[A-Za-z0-9]{30,}", "an npm token"),
    (r"\bpypi-AgE[A-Za-z0-9_-]{50,}", "a PyPI token"),
    (r"\bcio[A-Za-z0-9]{32}\b", "a crates.io token"),
    (r"\bdckr_(pat|oat)_[A-Za-z0-9_-]{20,}", "a Docker token"),
    (r"\bdo[opr]_v1_[0-9a-f]{64}\b", "a DigitalOcean token"),
    (r"\bdapi[0-9a-f]{32}\b", "a Databricks token"),
    (r"\bhv[sbr]\.[A-Za-z0-9_-]{24,}", "a Vault token"),
    (r"\b[A-Za-z0-9]{14}\.atlasv1\.[A-Za-z0-9_-]{60,}", "a Terraform token"),
    (r"\bdp\.(pt|st|ct|sa)\.[A-Za-z0-9_.-]{40,}", "a Doppler token"),
    (r"\bgl(sa|c)_[A-Za-z0-9_=]{32,}", "a Grafana token"),
    (r"\bNRAK-[A-Z0-9]{27}\b", "a New Relic key"),
    (r"\bsntry[su]_[A-Za-z0-9_=+/-]{40,}", "a Sentry token"),
    (r"\blin_api_[A-Za-z0-9]{32,}", "a Linear key"),
    (r"\bntn_[A-Za-z0-9]{40,}", "a Notion token"),
    (r"\bfig[dopu]_[A-Za-z0-9_-]{30,}", "a Figma token"),
    (r"\bpat[A-Za-z0-9]{14}\.[0-9a-f]{64}\b", "an Airtable token"),
    (r"\bbkua_[A-Za-z0-9]{32,}", "a Buildkite token"),
    (r"\bcsk-[a-z0-9]{32,}", "a Cerebras key"),
    (r"\be2b_[0-9a-f]{32,}", "an E2B key"),
    (r"\bfc-[0-9a-f]{32}\b", "a Firecrawl key"),
    (r"\blsv2_(pt|sk)_[0-9a-f_]{32,}", "a LangSmith key"),
    (r"\b[0-9a-f]{32}-us[0-9]{1,2}\b", "a Mailchimp key"),
    (r"\boy2[a-z0-9]{43}\b", "a NuGet key"),
    (r"\bpul-[0-9a-f]{40}\b", "a Pulumi token"),
    (r"\brubygems_[0-9a-f]{48}\b", "a RubyGems key"),
    (r"\bPMAK-[0-9a-f]{24}-[0-9a-f]{34}\b", "a Postman key"),
    (r"\bpscale_(tkn|pw|oauth)_[A-Za-z0-9_.=-]{32,}", "a PlanetScale token"),
    (r"\bsbp_[0-9a-f]{40}\b", "a Supabase token"),
    (r"\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.", "a signed token"),
    (r"\b(sk|pk|rk)[-_](live|test|ant|proj|or)?[-_A-Za-z0-9]{16,}", "an API key"),
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::super::find_secret;
    use super::*;

    /// Made-up keys in their formats. They are put together here, so that no scanner reports this file.
    fn examples() -> Vec<(&'static str, String)> {
        let mixed = |length: usize| "aB3dE5gH7jK9mN1pQ2sT4vW6xY8z".chars().cycle().take(length).collect::<String>();
        let hex = |length: usize| "0a1b2c3d4e5f6789".chars().cycle().take(length).collect::<String>();
        let upper = |length: usize| "A1B2C3D4E5F6G7H8".chars().cycle().take(length).collect::<String>();
        let with = |start: &str, rest: String| format!("{start}{rest}");
        vec![
            ("a private key", with("-----BEGIN RSA ", "PRIVATE KEY-----".to_owned())),
            ("a private key", with("-----BEGIN PGP ", "PRIVATE KEY BLOCK-----".to_owned())),
            ("an age key", with("AGE-SECRET-KEY-1", upper(58))),
            ("an AWS key", with("AKIA", upper(16))),
            ("an Azure storage key", with("AccountKey=", mixed(86) + "==")),
            ("a Google key", with("AIza", mixed(35))),
            ("a Google OAuth secret", with("GOCSPX-", mixed(28))),
            ("a Google OAuth token", with("ya29.", mixed(60))),
            ("a GitHub token", with("ghp_", mixed(36))),
            ("a GitHub token", with("github_pat_", mixed(22) + "_" + &mixed(59))),
            ("a GitLab token", with("glpat-", mixed(20))),
            ("a GitLab token", with("glagent-", mixed(50))),
            ("an Atlassian token", with("ATATT3", mixed(100))),
            ("a Skein token", with("skein_", hex(12) + "_" + &hex(64))),
            ("an Anthropic key", with("sk-ant-", "api03-".to_owned() + &mixed(90))),
            ("an OpenRouter key", with("sk-or-v1-", hex(64))),
            ("an OpenAI key", with("sk-proj-", mixed(60))),
            ("a Groq key", with("gsk_", mixed(52))),
            ("an xAI key", with("xai-", mixed(80))),
            ("a Hugging Face token", with("hf_", mixed(34))),
            ("a Replicate token", with("r8_", mixed(37))),
            ("an NVIDIA key", with("nvapi-", mixed(64))),
            ("a Perplexity key", with("pplx-", mixed(48))),
            ("a Tavily key", with("tvly-", mixed(32))),
            ("a RunPod key", with("rpa_", upper(40))),
            ("a Heroku key", with("HRKU-", hex(8) + "-" + &hex(27))),
            ("a Slack token", with("xoxb-", "123456789012-".to_owned() + &mixed(24))),
            ("a Slack token", with("xapp-", "1-".to_owned() + &upper(40))),
            (
                "a Slack webhook",
                with("https://hooks.slack.com", format!("/services/T{}/B{}/{}", upper(8), upper(8), mixed(24))),
            ),
            (
                "a Discord webhook",
                with("https://discord.com", format!("/api/webhooks/123456789012345678/{}", mixed(68))),
            ),
            ("a Discord token", with("M", format!("{}.{}.{}", mixed(23), mixed(6), mixed(38)))),
            ("a Telegram token", with("123456789:", "AA".to_owned() + &mixed(33))),
            ("a Stripe key", with("sk_live_", mixed(24))),
            ("a webhook secret", with("whsec_", mixed(32))),
            ("a Square token", with("sq0atp-", mixed(22))),
            ("a Shopify token", with("shpat_", hex(32))),
            ("a SendGrid key", with("SG.", mixed(22) + "." + &mixed(43))),
            ("a Twilio key", with("SK", hex(32))),
            ("a Mailgun key", with("key-", hex(32))),
            ("an npm token", with("npm_", mixed(36))),
            ("a PyPI token", with("pypi-AgE", mixed(80))),
            ("a crates.io token", with("cio", mixed(32))),
            ("a Docker token", with("dckr_pat_", mixed(27))),
            ("a DigitalOcean token", with("dop_v1_", hex(64))),
            ("a Databricks token", with("dapi", hex(32))),
            ("a Vault token", with("hvs.", mixed(90))),
            ("a Terraform token", with(&mixed(14), ".atlasv1.".to_owned() + &mixed(67))),
            ("a Doppler token", with("dp.pt.", mixed(43))),
            ("a Grafana token", with("glsa_", mixed(32) + "_" + &hex(8))),
            ("a New Relic key", with("NRAK-", upper(27))),
            ("a Sentry token", with("sntrys_", mixed(80))),
            ("a Linear key", with("lin_api_", mixed(40))),
            ("a Notion token", with("ntn_", mixed(46))),
            ("a Figma token", with("figd_", mixed(40))),
            ("an Airtable token", with("pat", mixed(14) + "." + &hex(64))),
            ("a Buildkite token", with("bkua_", mixed(40))),
            ("a Cerebras key", with("csk-", hex(48))),
            ("an E2B key", with("e2b_", hex(40))),
            ("a Firecrawl key", with("fc-", hex(32))),
            ("a LangSmith key", with("lsv2_pt_", hex(32) + "_" + &hex(10))),
            ("a Mailchimp key", with(&hex(32), "-us21".to_owned())),
            ("a NuGet key", with("oy2", hex(43))),
            ("a Pulumi token", with("pul-", hex(40))),
            ("a RubyGems key", with("rubygems_", hex(48))),
            ("a Postman key", with("PMAK-", hex(24) + "-" + &hex(34))),
            ("a PlanetScale token", with("pscale_tkn_", mixed(43))),
            ("a Supabase token", with("sbp_", hex(40))),
            ("a signed token", with("eyJ", format!("{}.eyJ{}.{}", mixed(20), mixed(30), mixed(43)))),
            ("an API key", with("sk-", mixed(48))),
        ]
    }

    #[test]
    fn each_format_is_found_wherever_it_stands() {
        for (what, key) in examples() {
            for text in [key.clone(), format!("use {key} for it"), format!("\"{key}\","), format!("<{key}>\n")] {
                assert_eq!(find_secret(&text), Some(what), "{text}");
            }
        }
    }

    #[test]
    fn every_format_has_an_example() {
        let found: BTreeSet<_> = examples().into_iter().map(|(what, _)| what).collect();
        let known: BTreeSet<_> = KEY_FORMATS.iter().map(|(_, what)| *what).collect();
        assert_eq!(found, known);
        for (pattern, what) in &KEY_FORMATS {
            let format = regex::Regex::new(pattern).unwrap();
            assert!(examples().iter().any(|(known, key)| known == what && format.is_match(key)), "{pattern}");
        }
        assert!(known.len() >= 30, "{}", known.len());
    }
}
