//! Requests to the Hub and to other servers.
//!
//! We don't use Hugging Face's crate hf-hub: version 0.5 verifies no hashes and follows redirects to any
//! address, and version 1 needs tokio, reqwest and another transfer protocol. `ureq` is small and blocking,
//! and everything that must not go wrong is here.

use std::io::Read;
use std::thread::sleep;
use std::time::Duration;

use ureq::http::{HeaderMap, Response, StatusCode, header};
use ureq::{Agent, Body};
use url::Url;

use super::address::{is_allowed, is_loopback, shown};
use super::error::{untrue, usage};
use super::home::{home, variable};
use crate::disk;
use crate::protocol::Failure;

const ENDPOINT: &str = "https://huggingface.co";

/// Attempts without a new byte before we give up. We wait half a second after the first, and then twice as
/// long each time.
const ATTEMPTS: u32 = 5;
const FIRST_WAIT: Duration = Duration::from_millis(500);
const LONGEST_WAIT: Duration = Duration::from_secs(60);

/// The connection counts as lost if the server sends nothing for this long.
const SILENCE: Duration = Duration::from_secs(60);

const REDIRECTS: usize = 10;

/// The largest list of files, in bytes: 50,000 files have about 15 MiB.
const MAX_JSON: u64 = 64 << 20;

pub(super) struct HubClient {
    agent: Agent,
    endpoint: Url,
    pub token: Option<String>,
}

/// The end of an attempt without a result.
pub(super) enum Trouble {
    /// The connection or the server failed, perhaps only for a moment. An attempt that brought new bytes does
    /// not count.
    Passing {
        reason: String,
        wait: Option<Duration>,
        has_progress: bool,
    },
    /// The server wants a token, or another one.
    Denied,
    NotFound,
    Final(Failure),
}

impl From<Failure> for Trouble {
    fn from(error: Failure) -> Self {
        Trouble::Final(error)
    }
}

impl Trouble {
    pub fn passing(reason: impl ToString) -> Self {
        Trouble::Passing { reason: reason.to_string(), wait: None, has_progress: false }
    }
}

impl HubClient {
    pub fn new() -> Result<Self, Failure> {
        let typed = variable("HF_ENDPOINT").unwrap_or_else(|| ENDPOINT.into());
        let endpoint =
            Url::parse(&typed).ok().filter(|url| is_allowed(url) && !url.cannot_be_a_base());
        let endpoint = endpoint.ok_or_else(|| {
            let text = format!("HF_ENDPOINT is {typed:?}, which is not an https address");
            usage(text, "leave HF_ENDPOINT unset, or give an address like https://huggingface.co")
        })?;
        let agent = Agent::config_builder()
            .max_redirects(0)
            .http_status_as_error(false)
            .user_agent(concat!("wgpt/", env!("CARGO_PKG_VERSION")))
            .timeout_connect(Some(SILENCE / 2))
            .timeout_per_read(Some(SILENCE))
            .timeout_per_write(Some(SILENCE))
            .build();
        Ok(Self { agent: agent.into(), endpoint, token: token() })
    }

    /// Returns a URL on the Hub. The segments of its path may contain any character.
    pub fn address<'a>(&self, words: impl IntoIterator<Item = &'a str>) -> Url {
        let mut url = self.endpoint.clone();
        if let Ok(mut path) = url.path_segments_mut() {
            path.pop_if_empty().extend(words);
        }
        url
    }

    /// Requests a file from the byte `from` on, if the bytes before are from its `version`. Every answer but
    /// success is an error, except for an offset beyond the end of the file (416).
    pub fn open(
        &self,
        url: &Url,
        from: u64,
        version: Option<&str>,
    ) -> Result<Response<Body>, Trouble> {
        let mut url = url.clone();
        for _ in 0..REDIRECTS {
            let mut request = self.agent.get(url.as_str());
            if is_loopback(&url) {
                // No proxy is asked for a server of this machine, nor learns the token.
                request = request.config().proxy(None).build();
            }
            // Another host must not learn the token.
            let is_own = url.origin() == self.endpoint.origin();
            if let Some(token) = self.token.as_ref().filter(|_| is_own) {
                request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
            }
            if from > 0 {
                request = request.header(header::RANGE, format!("bytes={from}-"));
                if let Some(version) = version {
                    request = request.header(header::IF_RANGE, version);
                }
            }
            let answer = request.call().map_err(|error| {
                Trouble::passing(format!("no answer from {}: {error}", shown(&url)))
            })?;
            let status = answer.status();
            if status.is_success() || status == StatusCode::RANGE_NOT_SATISFIABLE {
                return Ok(answer);
            }
            if !status.is_redirection() {
                return Err(refusal(&url, status, answer.headers()));
            }
            url = self.redirected(&url, answer.headers())?;
        }
        Err(Failure::new(
            format!("{}: more than {REDIRECTS} redirects", shown(&url)),
            "check the name, the address and HF_ENDPOINT",
        )
        .into())
    }

    /// Returns the URL of a redirect, which must be as safe as this one.
    fn redirected(&self, from: &Url, headers: &HeaderMap) -> Result<Url, Failure> {
        let location = headers.get(header::LOCATION).and_then(|value| value.to_str().ok());
        let target = location.and_then(|location| from.join(location).ok());
        let is_local = is_loopback(from);
        match target {
            // A server on this machine may redirect to this machine, or anywhere with https.
            Some(url) if url.scheme() == "https" || (is_local && is_allowed(&url)) => Ok(url),
            target => {
                let to = target.map_or_else(|| "nowhere".into(), |url| shown(&url));
                let text =
                    format!("{} redirects to {to}, which is not an https address", shown(from));
                Err(Failure::new(text, "check HF_ENDPOINT, or fetch it from another server"))
            }
        }
    }

    /// Requests a JSON value.
    pub fn json(&self, url: &Url) -> Result<serde_json::Value, Trouble> {
        let mut text = Vec::new();
        let answer = self.open(url, 0, None)?;
        let mut body = answer.into_body().into_reader().take(MAX_JSON + 1);
        let read = body.read_to_end(&mut text);
        read.map_err(|error| Trouble::passing(format!("{}: {error}", shown(url))))?;
        let name = shown(url);
        if text.len() as u64 > MAX_JSON {
            return Err(untrue(name, "the answer is too long").into());
        }
        serde_json::from_slice(&text).map_err(|error| {
            let text = format!("{name}: the answer is not JSON: {error}");
            let hint = "check HF_ENDPOINT, and whether this network asks for a login first";
            Failure::new(text, hint).into()
        })
    }

    /// Repeats an attempt until it succeeds, or brings nothing a few times in a row.
    pub fn patiently<T>(
        &self,
        mut attempt: impl FnMut() -> Result<T, Trouble>,
    ) -> Result<T, Trouble> {
        let mut failed = 0;
        loop {
            let (reason, asked, has_progress) = match attempt() {
                Err(Trouble::Passing { reason, wait, has_progress }) => {
                    (reason, wait, has_progress)
                }
                result => return result,
            };
            failed = if has_progress { 1 } else { failed + 1 };
            if failed >= ATTEMPTS {
                let hint =
                    "check the connection and run the same command again: it continues from here";
                return Err(Failure::new(reason, hint).into());
            }
            let wait = FIRST_WAIT * 2_u32.pow(failed - 1);
            sleep(asked.unwrap_or(wait).clamp(wait, LONGEST_WAIT));
        }
    }
}

fn refusal(url: &Url, status: StatusCode, headers: &HeaderMap) -> Trouble {
    let text = format!("{} answered {status}", shown(url));
    match status.as_u16() {
        401 | 403 => Trouble::Denied,
        404 | 410 => Trouble::NotFound,
        408 | 429 | 500.. => {
            let wait = headers.get(header::RETRY_AFTER).and_then(|value| value.to_str().ok());
            let wait = wait.and_then(|seconds| seconds.parse().ok()).map(Duration::from_secs);
            Trouble::Passing { reason: text, wait, has_progress: false }
        }
        _ => Failure::new(text, "check the name or the address").into(),
    }
}

/// Returns the user's token, from the same places as Hugging Face's tools.
fn token() -> Option<String> {
    let file = || {
        let path = variable("HF_TOKEN_PATH")
            .map_or_else(|| Some(home()?.join("token")), |path| Some(path.into()));
        let text = String::from_utf8(disk::read_regular(path?).ok()?).ok()?;
        Some(text.trim().to_string()).filter(|token| !token.is_empty())
    };
    // Line breaks are not allowed in a header.
    variable("HF_TOKEN").or_else(file).filter(|token| token.chars().all(|c| c.is_ascii_graphic()))
}
