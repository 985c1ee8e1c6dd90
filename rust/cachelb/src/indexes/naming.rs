//! How a worker to copy blocks from is named to an engine, and at what address.

use std::collections::HashMap;

cachelb_core::named! {
    /// How a source is named to an engine.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    Form {
        /// By `remote_kv_source`, as vLLM reads it.
        Vllm = "vllm",
        /// By the headers of llm-d's sidecar.
        LlmD = "llm-d",
    }
}

/// How the members of a peer group are named to engines.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Naming {
    /// The form that their engines read.
    pub form: Form,
    /// Port of the host memory of rank 0, on the host of a member's key.
    pub port: Option<u16>,
    /// `host:port` by key, in place of those.
    pub addresses: HashMap<String, String>,
}

/// Whether a text is a name or an IP address, one with colons in brackets.
fn is_host(text: &str) -> bool {
    let inner = text
        .strip_prefix('[')
        .and_then(|rest| rest.strip_suffix(']'));
    let host = inner.unwrap_or(text);
    let is_odd = |letter: char| letter.is_whitespace() || "/@[]".contains(letter);
    !host.is_empty() && !host.contains(is_odd) && host.contains(':') == inner.is_some()
}

/// The parts of `host:port`, the host as it is written; `None` for another text.
#[must_use]
pub fn host_and_port(text: &str) -> Option<(&str, u16)> {
    let (host, port) = text.rsplit_once(':').filter(|(host, _)| is_host(host))?;
    port.parse()
        .ok()
        .filter(|port| *port > 0)
        .map(|port| (host, port))
}

impl Naming {
    /// That of members with these `keys`.
    ///
    /// # Errors
    /// A text, if a member or an address cannot be.
    pub fn checked<'a>(
        form: Form,
        port: Option<u16>,
        addresses: HashMap<String, String>,
        mut keys: impl Iterator<Item = &'a str>,
    ) -> Result<Self, String> {
        if form == Form::Vllm && port.is_none() && addresses.is_empty() {
            let remedy = "pass that of the workers' host memory, or their addresses=";
            return Err(format!("port is missing: {remedy}"));
        }
        let mut given = addresses.iter();
        if let Some((key, odd)) = given.find(|(_, given)| host_and_port(given).is_none()) {
            return Err(format!(
                "addresses has {odd:?} for {key:?}, it must be host:port"
            ));
        }
        let naming = Self {
            form,
            port,
            addresses,
        };
        match keys.find(|key| naming.address(key, None).is_none()) {
            Some(key) => Err(format!("{key:?} has no address: name it in addresses=")),
            None => Ok(naming),
        }
    }

    /// Where a member sends blocks from, or serves, as the form needs it; `None` if that is not known.
    #[must_use]
    pub fn address(&self, key: &str, rank: Option<u32>) -> Option<String> {
        if let Some(given) = self.addresses.get(key) {
            return Some(given.clone());
        }
        let rest = key.split_once("//").map_or(key, |(_, rest)| rest);
        let place = rest.split(['/', '?', '#']).next()?.rsplit('@').next()?;
        let parts = host_and_port(place);
        let (host, port) = match self.form {
            Form::LlmD => parts?,
            Form::Vllm => {
                let rank = u16::try_from(rank.unwrap_or(0)).ok()?;
                let host = parts.map_or(place, |(host, _)| host);
                (host, self.port?.checked_add(rank)?)
            }
        };
        is_host(host).then(|| format!("{}:{port}", host.to_ascii_lowercase()))
    }
}
