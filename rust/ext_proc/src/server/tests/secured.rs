//! The server with TLS.

use std::net::{Ipv4Addr, SocketAddr};

use cachelb_serving::TlsVersion;
use rcgen::{CertificateParams, CertifiedIssuer, ExtendedKeyUsagePurpose, Issuer, KeyPair};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, ProtocolVersion, RootCertStore, version};
use tonic::transport::{Certificate, ClientTlsConfig};

use super::*;

/// A CA, to sign with and in PEM.
fn authority() -> (CertifiedIssuer<'static, KeyPair>, Vec<u8>) {
    let mut params = CertificateParams::new(Vec::new()).expect("no names");
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let key = KeyPair::generate().expect("a key");
    let authority = CertifiedIssuer::self_signed(params, key).expect("signs");
    let pem = authority.pem().into_bytes();
    (authority, pem)
}

/// A certificate for localhost and its key.
fn signed(authority: &Issuer<'_, KeyPair>) -> (Vec<u8>, Vec<u8>) {
    let mut params = CertificateParams::new(["localhost".to_owned()]).expect("a name");
    params.extended_key_usages = vec![
        ExtendedKeyUsagePurpose::ServerAuth,
        ExtendedKeyUsagePurpose::ClientAuth,
    ];
    let key = KeyPair::generate().expect("a key");
    let certificate = params.signed_by(&key, authority).expect("signs");
    (
        certificate.pem().into_bytes(),
        key.serialize_pem().into_bytes(),
    )
}

fn tls(authority: &Issuer<'_, KeyPair>) -> Tls {
    let (certificate, key) = signed(authority);
    Tls {
        certificate,
        key,
        ..Tls::default()
    }
}

/// Agrees on TLS; returns its version.
fn handshake(
    port: u16,
    ca: &[u8],
    highest: TlsVersion,
    own: Option<(&[u8], &[u8])>,
) -> Result<ProtocolVersion, String> {
    let mut roots = RootCertStore::empty();
    roots
        .add(CertificateDer::from_pem_slice(ca).expect("PEM"))
        .expect("a CA");
    let versions: &[_] = match highest {
        TlsVersion::V1_2 => &[&version::TLS12],
        TlsVersion::V1_3 => &[&version::TLS13, &version::TLS12],
    };
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_protocol_versions(versions)
        .expect("known versions")
        .with_root_certificates(roots);
    let mut config = match own {
        None => builder.with_no_client_auth(),
        Some((certificate, key)) => {
            let chain = vec![CertificateDer::from_pem_slice(certificate).expect("PEM")];
            let key = PrivateKeyDer::from_pem_slice(key).expect("PEM");
            builder.with_client_auth_cert(chain, key).expect("a pair")
        }
    };
    config.alpn_protocols = vec![b"h2".to_vec()];
    client().block_on(async {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let stream = TcpStream::connect(address)
            .await
            .map_err(|error| error.to_string())?;
        let name = ServerName::try_from("localhost").expect("a name");
        let agreed = TlsConnector::from(Arc::new(config))
            .connect(name, stream)
            .await;
        let mut stream = agreed.map_err(|error| error.to_string())?;
        let _ = stream.write_all(silent::PREFACE).await;
        // In TLS 1.3 a server refuses the client's certificate behind the handshake.
        let mut first = [0];
        stream
            .read_exact(&mut first)
            .await
            .map_err(|error| error.to_string())?;
        let connection = stream.get_ref().1;
        assert_eq!(connection.alpn_protocol(), Some(&b"h2"[..]));
        Ok(connection.protocol_version().expect("agreed"))
    })
}

fn start(tls: Tls) -> Started {
    let listen = Listen {
        tls: Some(tls),
        ..loopback()
    };
    Started::start(Options::default(), Arc::new(Fake::default()), &listen).expect("starts")
}

#[test]
fn a_request_over_tls() {
    let (authority, ca) = authority();
    let started = start(tls(&authority));
    let runtime = client();
    // Clients that never begin hold up no other.
    let silent: Vec<_> = (0..3)
        .map(|_| std::net::TcpStream::connect(("127.0.0.1", started.port)).expect("connects"))
        .collect();
    let reply = runtime.block_on(async {
        let config = ClientTlsConfig::new()
            .ca_certificate(Certificate::from_pem(&ca))
            .domain_name("localhost");
        let endpoint = Endpoint::from_shared(format!("https://127.0.0.1:{}", started.port));
        let endpoint = endpoint
            .expect("an address")
            .tls_config(config)
            .expect("a CA");
        let mut client = ExternalProcessorClient::new(endpoint.connect().await.expect("connects"));
        let messages = tokio_stream::iter([request(&[], true)]);
        let replies = client.process(messages).await.expect("opens");
        replies
            .into_inner()
            .message()
            .await
            .expect("no error")
            .expect("a reply")
    });
    assert!(show(&reply).contains(" to="));
    drop((started, silent));
}

#[test]
fn versions_and_clients_are_bounded_and_certificates_exchanged() {
    let (old, old_ca) = authority();
    let (new, new_ca) = authority();
    let started = start(tls(&old));
    let port = started.port;
    let highest = TlsVersion::V1_3;
    assert_eq!(
        handshake(port, &old_ca, TlsVersion::V1_2, None),
        Ok(ProtocolVersion::TLSv1_2)
    );
    assert_eq!(
        handshake(port, &old_ca, highest, None),
        Ok(ProtocolVersion::TLSv1_3)
    );
    assert!(handshake(port, &new_ca, highest, None).is_err());
    // A broken file changes nothing.
    let (certificate, key) = signed(&new);
    for (wrong, expected) in [
        (
            Tls {
                key: b"secret".to_vec(),
                ..tls(&new)
            },
            "cannot read the key: it must be PEM",
        ),
        (
            Tls {
                certificate: Vec::new(),
                ..tls(&new)
            },
            "cannot read the certificate: it must be PEM",
        ),
        (
            Tls {
                client_ca: Some(Vec::new()),
                ..tls(&new)
            },
            "cannot read the clients' CA: it must be PEM",
        ),
        (
            Tls {
                key: key.clone(),
                ..tls(&new)
            },
            "cannot use the certificate: ",
        ),
    ] {
        let error = started.reload_tls(&wrong).expect_err("refuses").to_string();
        assert!(
            error.starts_with(expected) && !error.contains("secret"),
            "{error}"
        );
    }
    assert!(handshake(port, &old_ca, highest, None).is_ok());
    let strict = Tls {
        client_ca: Some(new_ca.clone()),
        min_version: TlsVersion::V1_3,
        ..tls(&new)
    };
    assert!(!format!("{strict:?}").contains("key"));
    started.reload_tls(&strict).expect("reloads");
    let own = Some((&certificate[..], &key[..]));
    assert_eq!(
        handshake(port, &new_ca, highest, own),
        Ok(ProtocolVersion::TLSv1_3)
    );
    assert!(
        handshake(port, &new_ca, TlsVersion::V1_2, own).is_err(),
        "an old version"
    );
    assert!(
        handshake(port, &new_ca, highest, None).is_err(),
        "no certificate"
    );
    let (certificate, key) = signed(&old);
    assert!(
        handshake(port, &new_ca, highest, Some((&certificate, &key))).is_err(),
        "of another CA"
    );
}
