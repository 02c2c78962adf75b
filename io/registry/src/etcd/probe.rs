//! Why an `https` endpoint can't be used. TLS 1.3 refuses a client's certificate after the client's
//! handshake is done, and etcd's client takes that for a connection that ended, again and again. So
//! TLS itself is asked, by hand.

use super::EtcdTls;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{AlertDescription, ClientConfig, Error, RootCertStore};
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

/// How long it may take, of the connection to the alert: who is content says nothing.
const TIMEOUT: Duration = Duration::from_secs(1);

/// Returns the TLS error at an endpoint, of either side; `None` if no such error was found.
pub(super) async fn why(endpoint: &str, tls: &EtcdTls) -> Option<String> {
    let (host, port) = address(endpoint)?;
    let config = match config(tls) {
        Ok(config) => config,
        Err(why) => return Some(why),
    };
    let name = ServerName::try_from(host.clone()).ok()?;
    let asked = async {
        let stream = TcpStream::connect((host.as_str(), port)).await.ok()?;
        let mut stream = match TlsConnector::from(Arc::new(config)).connect(name, stream).await {
            Ok(stream) => stream,
            Err(error) => return of_handshake(&error),
        };
        // What it has against our certificate comes now.
        match stream.read(&mut [0; 1]).await {
            Err(error) => of_alert(&error, tls.own_pem.is_some()),
            Ok(_) => None,
        }
    };
    tokio::time::timeout(TIMEOUT, asked).await.ok().flatten()
}

/// Host and port of a URL.
fn address(endpoint: &str) -> Option<(String, u16)> {
    let rest = endpoint.strip_prefix("https://")?;
    let authority = rest.split('/').next()?;
    let (host, port) = match authority.rsplit_once(':') {
        Some((host, port)) if !port.contains(']') => (host, port.parse().ok()?),
        _ => (authority, 443),
    };
    Some((host.trim_matches(['[', ']']).to_owned(), port))
}

fn config(tls: &EtcdTls) -> Result<ClientConfig, String> {
    let mut roots = RootCertStore::empty();
    for authority in certificates(&tls.authority_pem, "the authority of its certificates")? {
        let added = roots.add(authority);
        added.map_err(|error| format!("the authority of its certificates can't be used: {error}"))?;
    }
    let builder = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?
        .with_root_certificates(roots);
    let mut config = match &tls.own_pem {
        None => builder.with_no_client_auth(),
        Some((certificate, key)) => {
            let what = "our certificate for it";
            let key = PrivateKeyDer::from_pem_slice(key.as_bytes())
                .map_err(|error| format!("the key of {what} can't be read: {error}"))?;
            let chain = certificates(certificate, what)?;
            builder
                .with_client_auth_cert(chain, key)
                .map_err(|error| format!("{what} and its key can't be used: {error}"))?
        }
    };
    config.alpn_protocols = vec![b"h2".to_vec()];
    Ok(config)
}

fn certificates(pem: &str, what: &str) -> Result<Vec<CertificateDer<'static>>, String> {
    let read: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem.as_bytes()).collect();
    match read {
        Ok(found) if found.is_empty() => Err(format!("there is no certificate in {what}")),
        Ok(found) => Ok(found),
        Err(error) => Err(format!("{what} can't be read: {error}")),
    }
}

fn of_tls(error: &io::Error) -> Option<&Error> {
    error.get_ref()?.downcast_ref::<Error>()
}

fn of_handshake(error: &io::Error) -> Option<String> {
    Some(match of_tls(error)? {
        Error::InvalidCertificate(why) => format!("we do not believe its certificate: {why}"),
        Error::InvalidMessage(_) => "what answers there speaks no TLS: is it http?".to_owned(),
        Error::AlertReceived(alert) => format!("it ends the handshake: {alert:?}"),
        other => other.to_string(),
    })
}

fn of_alert(error: &io::Error, shown: bool) -> Option<String> {
    let Error::AlertReceived(alert) = of_tls(error)? else { return None };
    Some(match (alert, shown) {
        (AlertDescription::CertificateRequired | AlertDescription::BadCertificate, false) => {
            "it wants a certificate of its clients, and we have none: --etcd-cert and --etcd-key".to_owned()
        }
        (AlertDescription::CertificateExpired, true) => "it refuses our certificate as expired".to_owned(),
        // Go says so of an authority that it does not know, too.
        (AlertDescription::BadCertificate | AlertDescription::UnknownCA, true) => {
            "it refuses our certificate: it does not know the authority that signed it, or can't use it"
                .to_owned()
        }
        (other, _) => format!("it refuses us: {other:?}"),
    })
}

#[cfg(test)]
mod tests {
    use super::address;

    #[test]
    fn urls_are_taken_apart() {
        let at = |host: &str, port| Some((host.to_owned(), port));
        assert_eq!(address("https://10.0.0.1:2379"), at("10.0.0.1", 2379));
        assert_eq!(address("https://etcd.example.org/"), at("etcd.example.org", 443));
        assert_eq!(address("https://[fd00::1]:2379"), at("fd00::1", 2379));
        assert_eq!(address("https://[fd00::1]"), at("fd00::1", 443));
        for bad in ["http://a:1", "https://a:b", "hello", ""] {
            assert_eq!(address(bad), None, "{bad}");
        }
    }
}
