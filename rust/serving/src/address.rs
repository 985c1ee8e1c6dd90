//! Addresses that a proxy knows workers by: `ip:port`, or `[ip]:port` for IPv6.

use std::collections::HashSet;
use std::net::IpAddr;

use crate::headers::trimmed;

/// Returns the address in a worker's key: a URL, or an address itself.
///
/// `None` for a name in place of an IP address, a key without a port, or a socket's path.
///
/// ```
/// use cachelb_serving::address::address_of;
///
/// assert_eq!(address_of("https://[fd00::1]").as_deref(), Some("[fd00::1]:443"));
/// assert_eq!(address_of("http://gpu0:8000"), None);
/// ```
#[must_use]
pub fn address_of(key: &str) -> Option<String> {
    let (scheme, rest) = key.split_once("://").unwrap_or(("", key));
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let place = rest[..end].rsplit('@').next()?;
    let (host, port) = if let Some(inner) = place.strip_prefix('[') {
        let (host, rest) = inner.split_once(']')?;
        (IpAddr::V6(host.parse().ok()?), rest)
    } else {
        let end = place.find(':').unwrap_or(place.len());
        (IpAddr::V4(place[..end].parse().ok()?), &place[end..])
    };
    let digits = port.strip_prefix(':').unwrap_or(port);
    let port = match digits.bytes().all(|byte| byte.is_ascii_digit()) {
        true if digits.is_empty() => 0,
        true if digits.len() < port.len() => digits.parse().ok()?,
        _ => return None,
    };
    // Port 0 is none.
    let port = if port == 0 {
        default_port(scheme)?
    } else {
        port
    };
    Some(match host {
        IpAddr::V4(ip) => format!("{ip}:{port}"),
        IpAddr::V6(ip) => format!("[{ip}]:{port}"),
    })
}

fn default_port(scheme: &str) -> Option<u16> {
    match scheme.to_ascii_lowercase().as_str() {
        "http" => Some(80),
        "https" => Some(443),
        _ => None,
    }
}

/// Addresses to pick from, as a proxy names them. One without a port means every worker there.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Subset(HashSet<String>);

impl Subset {
    /// Takes the entries of a list.
    #[must_use]
    pub fn new<E: AsRef<str>>(entries: impl IntoIterator<Item = E>) -> Self {
        let wanted = entries.into_iter().map(|entry| {
            let entry = trimmed(entry.as_ref());
            address_of(entry).unwrap_or_else(|| entry.trim_matches(['[', ']']).to_owned())
        });
        Self(wanted.collect())
    }

    /// Returns whether a worker at an address, as [`address_of`] returns it, is one of them.
    ///
    /// ```
    /// use cachelb_serving::address::Subset;
    ///
    /// let subset = Subset::new(["10.0.0.1", "10.0.0.2:8000"]);
    /// let admitted = ["10.0.0.1:1", "10.0.0.2:1", "10.0.0.2:8000"].map(|address| subset.admits(address));
    /// assert_eq!(admitted, [true, false, true]);
    /// ```
    #[must_use]
    pub fn admits(&self, address: &str) -> bool {
        let host = || {
            address
                .rsplit_once(':')
                .map_or("", |(host, _)| host)
                .trim_matches(['[', ']'])
        };
        self.0.contains(address) || self.0.contains(host())
    }
}

#[cfg(test)]
mod tests {
    use super::{Subset, address_of};

    #[test]
    fn addresses_of_keys() {
        for (key, expected) in [
            ("http://10.0.0.1:8000", Some("10.0.0.1:8000")),
            ("10.0.0.1:8000", Some("10.0.0.1:8000")),
            ("http://10.0.0.1", Some("10.0.0.1:80")),
            ("HTTPS://user:8@10.0.0.1:/v1", Some("10.0.0.1:443")),
            ("http://10.0.0.1:0", Some("10.0.0.1:80")),
            ("http://10.0.0.1:8000?x=:1#:2", Some("10.0.0.1:8000")),
            ("http://[FD00:0::1]:8000/", Some("[fd00::1]:8000")),
            ("[fd00::1]:8000", Some("[fd00::1]:8000")),
            ("https://[::1]", Some("[::1]:443")),
            ("10.0.0.1", None),
            ("10.0.0.1:", None),
            ("10.0.0.1:0", None),
            ("10.0.0.1:+80", None),
            ("10.0.0.1: 80", None),
            ("10.0.0.1:80:80", None),
            ("010.0.0.1:80", None),
            ("http://10.0.0.1:65536", None),
            ("http://gpu0:8000", None),
            ("unix:///run/vllm.sock", None),
            ("http://[::1", None),
            ("http://[::1]80", None),
            ("http://[10.0.0.1]:80", None),
            ("fd00::1", None),
            ("", None),
        ] {
            assert_eq!(address_of(key).as_deref(), expected, "{key}");
        }
    }

    #[test]
    fn entries_of_a_subset_may_have_no_port() {
        for (entry, admitted) in [
            ("[fd00::1]:8000", true),
            ("[FD00:0::1]:8000", true),
            ("[fd00::1]", true),
            (" fd00::1 ", true),
            ("[fd00::1]:1", false),
            ("", false),
        ] {
            assert_eq!(
                Subset::new([entry]).admits("[fd00::1]:8000"),
                admitted,
                "{entry}"
            );
        }
        assert!(!Subset::default().admits("10.0.0.1:8000"));
    }
}
