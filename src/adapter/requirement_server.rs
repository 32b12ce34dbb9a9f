//! Publishes required services as MCP servers: on the socket for the programs of stdio services, over HTTP for HTTP
//! services.
//!
//! Invariant: an address works for one client, and only as long as the offer exists.

use std::path::{Path, PathBuf};

use super::attach::{Attachments, OfferError};
use super::export::BindingServer;
use crate::broker::{RequirementPublisher, RequirementSource};
use crate::tool::{AddressForm, RequirementError, RequirementOffer};

/// Publishes required services with the attachments of this process.
#[derive(Debug)]
pub struct RequirementServer {
    attachments: Attachments,
    /// The Skein executable, which a program starts to attach to this process.
    program: PathBuf,
}

impl RequirementServer {
    pub fn new(attachments: Attachments, program: PathBuf) -> Self {
        Self { attachments, program }
    }

    fn offer(&self, export: BindingServer, form: AddressForm) -> Result<RequirementOffer, OfferError> {
        match form {
            AddressForm::CommandLine => {
                let file = self.attachments.offer_in_file(export)?;
                let address = format!("{} mcp --attach-file {}", shell_word(&self.program), shell_word(&file.path));
                Ok(RequirementOffer {
                    address,
                    secret: file.offer.token.clone(),
                    program: Some(self.program.clone()),
                    token_file: Some(file.path.clone()),
                    socket: Some(file.offer.socket.clone()),
                    guard: Box::new(file),
                })
            }
            AddressForm::Url => {
                let offer = self.attachments.offer_http_once(export)?;
                Ok(RequirementOffer {
                    address: offer.url.clone(),
                    secret: offer.token.clone(),
                    program: None,
                    token_file: None,
                    socket: None,
                    guard: Box::new(offer),
                })
            }
        }
    }
}

impl RequirementPublisher for RequirementServer {
    fn publish(&self, source: RequirementSource, form: AddressForm) -> Result<RequirementOffer, RequirementError> {
        let service = source.service().clone();
        let offered = self.offer(BindingServer::for_service(source), form);
        offered.map_err(|error| RequirementError::Offer { service, source: Box::new(error) })
    }
}

/// Returns a path as one word of a command line.
fn shell_word(path: &Path) -> String {
    let text = path.to_string_lossy();
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-+@%:,=".contains(c);
    if !text.is_empty() && text.chars().all(plain) {
        return text.into_owned();
    }
    format!("'{}'", text.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shell_reads_a_word_as_the_same_path() {
        for (path, word) in [
            ("/usr/bin/skein", "/usr/bin/skein"),
            ("/home/a b/skein", "'/home/a b/skein'"),
            ("/it's", r"'/it'\''s'"),
            ("/$HOME/`x`", "'/$HOME/`x`'"),
        ] {
            assert_eq!(shell_word(Path::new(path)), word);
        }
    }
}
