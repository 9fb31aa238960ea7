//! URLs: which are safe, and how they are shown.

use std::net::IpAddr;

use url::{Host, Url};

/// Returns a URL for people, without user, query and fragment: a query may be a signature.
pub(super) fn shown(url: &Url) -> String {
    let mut url = url.clone();
    url.set_query(None);
    url.set_fragment(None);
    let _ = url.set_username("").and_then(|()| url.set_password(None));
    url.into()
}

/// Returns true for https, and for http on this machine.
pub(super) fn is_allowed(url: &Url) -> bool {
    url.scheme() == "https" || (url.scheme() == "http" && is_loopback(url))
}

pub(super) fn is_loopback(url: &Url) -> bool {
    match url.host() {
        Some(Host::Domain(name)) => name == "localhost",
        Some(Host::Ipv4(address)) => IpAddr::from(address).is_loopback(),
        Some(Host::Ipv6(address)) => IpAddr::from(address).is_loopback(),
        None => false,
    }
}
