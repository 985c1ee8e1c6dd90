//! Certificates: read from PEM, and exchanged while connections are open.

use std::sync::{Arc, PoisonError, RwLock};

use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{RootCertStore, ServerConfig, version};

/// The lowest version of TLS that is spoken.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum TlsVersion {
    /// TLS 1.2.
    #[default]
    V1_2,
    /// TLS 1.3.
    V1_3,
}

/// A certificate and its key.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Tls {
    /// The chain, in PEM.
    pub certificate: Vec<u8>,
    /// The key of the first, in PEM.
    pub key: Vec<u8>,
    /// Who signs the certificates of clients, in PEM; `None` asks clients for none.
    pub client_ca: Option<Vec<u8>>,
    /// The lowest version that is spoken.
    pub min_version: TlsVersion,
}

impl std::fmt::Debug for Tls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Without the key.
        (f.debug_struct("Tls")
            .field("min_version", &self.min_version))
        .finish_non_exhaustive()
    }
}

/// Why a certificate cannot be used. The reasons never show the key.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TlsError {
    /// The server was started without.
    #[error("the server has no TLS: start another one")]
    None,
    /// No PEM of this kind.
    #[error("cannot read {0}: it must be PEM")]
    Unreadable(&'static str),
    /// The library refuses them.
    #[error("cannot use the certificate: {0}")]
    Refused(String),
}

/// The certificates in use.
#[derive(Debug)]
pub struct Certificates {
    /// The configuration, and the files that it was read from.
    config: RwLock<(Arc<ServerConfig>, Tls)>,
    protocols: &'static [&'static str],
}

impl Certificates {
    /// Reads a certificate for connections that speak one of the `protocols`, by their names in ALPN, the preferred
    /// first.
    ///
    /// # Errors
    ///
    /// The certificate or the key cannot be used.
    pub fn new(tls: &Tls, protocols: &'static [&'static str]) -> Result<Self, TlsError> {
        let config = RwLock::new((read(tls, protocols)?, tls.clone()));
        Ok(Self { config, protocols })
    }

    /// Uses another one from the next connection on. Returns whether it is another one.
    ///
    /// # Errors
    ///
    /// It cannot be used; what was there remains.
    pub fn reload(&self, tls: &Tls) -> Result<bool, TlsError> {
        let config = self.config.read().unwrap_or_else(PoisonError::into_inner);
        if config.1 == *tls {
            return Ok(false);
        }
        drop(config);
        let config = (read(tls, self.protocols)?, tls.clone());
        *self.config.write().unwrap_or_else(PoisonError::into_inner) = config;
        Ok(true)
    }

    /// Returns what accepts one connection.
    #[must_use]
    pub fn acceptor(&self) -> TlsAcceptor {
        let config = self.config.read().unwrap_or_else(PoisonError::into_inner);
        TlsAcceptor::from(Arc::clone(&config.0))
    }
}

fn read(tls: &Tls, protocols: &[&str]) -> Result<Arc<ServerConfig>, TlsError> {
    let refused = |error: &dyn std::fmt::Display| TlsError::Refused(error.to_string());
    let chain = certificates(&tls.certificate, "the certificate")?;
    let key =
        PrivateKeyDer::from_pem_slice(&tls.key).map_err(|_| TlsError::Unreadable("the key"))?;
    let provider = Arc::new(ring::default_provider());
    let versions: &[_] = match tls.min_version {
        TlsVersion::V1_2 => &[&version::TLS13, &version::TLS12],
        TlsVersion::V1_3 => &[&version::TLS13],
    };
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_protocol_versions(versions)
        .map_err(|error| refused(&error))?;
    let builder = match &tls.client_ca {
        None => builder.with_no_client_auth(),
        Some(client_ca) => {
            let mut roots = RootCertStore::empty();
            for certificate in certificates(client_ca, "the clients' CA")? {
                roots.add(certificate).map_err(|error| refused(&error))?;
            }
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
            builder.with_client_cert_verifier(verifier.build().map_err(|error| refused(&error))?)
        }
    };
    let mut config = builder
        .with_single_cert(chain, key)
        .map_err(|error| refused(&error))?;
    config.alpn_protocols = protocols
        .iter()
        .map(|name| name.as_bytes().to_vec())
        .collect();
    Ok(Arc::new(config))
}

fn certificates(pem: &[u8], name: &'static str) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    found
        .ok()
        .filter(|found| !found.is_empty())
        .ok_or(TlsError::Unreadable(name))
}
