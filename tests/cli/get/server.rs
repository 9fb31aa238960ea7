//! A server for tests, which lies, cuts and stalls on request.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};
use sha1::Sha1;
use sha2::{Digest, Sha256};

/// A request, with the names of its headers in lower case.
#[derive(Clone, Debug)]
pub struct Request {
    pub path: String,
    pub headers: BTreeMap<String, String>,
}

impl Request {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(String::as_str)
    }

    /// Returns the offset of `Range: bytes=N-`.
    fn offset(&self) -> Option<usize> {
        self.header("range")?.strip_prefix("bytes=")?.strip_suffix('-')?.parse().ok()
    }
}

#[derive(Clone)]
pub enum After {
    Close,
    /// Sends nothing more, but keeps the connection.
    Stall,
    /// Repeats the body until the client leaves.
    Repeat,
}

#[derive(Clone)]
pub struct Answer {
    pub status: u16,
    pub headers: Vec<(&'static str, String)>,
    pub body: Vec<u8>,
    /// The bytes that are sent of it.
    pub sent: usize,
    pub after: After,
}

impl Answer {
    pub fn new(status: u16, body: impl Into<Vec<u8>>) -> Self {
        let body = body.into();
        let length = ("content-length", body.len().to_string());
        Self { status, headers: vec![length], sent: body.len(), body, after: After::Close }
    }

    pub fn redirect(to: impl Into<String>) -> Self {
        let mut answer = Self::new(302, "");
        answer.headers.push(("location", to.into()));
        answer
    }

    /// Sends no length, so that only the client can end it.
    pub fn endless(body: impl Into<Vec<u8>>) -> Self {
        Self { headers: Vec::new(), after: After::Repeat, ..Self::new(200, body) }
    }

    /// Answers a request for a file or for the rest of it.
    pub fn file(request: &Request, content: &[u8]) -> Self {
        match request.offset() {
            None => Self::new(200, content),
            Some(offset) if offset >= content.len() => Self::new(416, ""),
            Some(offset) => {
                let mut answer = Self::new(206, &content[offset..]);
                let range = format!("bytes {offset}-{}/{}", content.len() - 1, content.len());
                answer.headers.push(("content-range", range));
                answer
            }
        }
    }

    pub fn cut(self, sent: usize) -> Self {
        Self { sent: self.body.len().min(sent), ..self }
    }
}

pub struct Server {
    pub address: String,
    seen: Arc<Mutex<Vec<Request>>>,
}

impl Server {
    /// Answers requests until the test ends. `answer` gets the request and the number of earlier ones for the
    /// same path.
    pub fn start(answer: impl Fn(&Request, usize) -> Answer + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let seen = Arc::new(Mutex::new(Vec::<Request>::new()));
        let (answer, log) = (Arc::new(answer), seen.clone());
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (answer, log) = (answer.clone(), log.clone());
                thread::spawn(move || {
                    let Some(request) = read(&stream) else { return };
                    let earlier = {
                        let mut log = log.lock().unwrap();
                        let earlier = log.iter().filter(|seen| seen.path == request.path).count();
                        log.push(request.clone());
                        earlier
                    };
                    // A client that leaves is no failure of the server.
                    let _ = write(stream, &answer(&request, earlier));
                });
            }
        });
        Self { address, seen }
    }

    /// Returns the requests so far for paths with this part.
    pub fn requests(&self, part: &str) -> Vec<Request> {
        let seen = self.seen.lock().unwrap();
        seen.iter().filter(|request| request.path.contains(part)).cloned().collect()
    }
}

fn read(stream: &TcpStream) -> Option<Request> {
    let mut lines = BufReader::new(stream).lines();
    let path = lines.next()?.ok()?.split(' ').nth(1)?.to_string();
    let mut headers = BTreeMap::new();
    for line in lines {
        let line = line.ok()?;
        let Some((name, value)) = line.split_once(':') else { break };
        headers.insert(name.to_ascii_lowercase(), value.trim().to_string());
    }
    Some(Request { path, headers })
}

fn write(mut stream: TcpStream, answer: &Answer) -> std::io::Result<()> {
    let mut head = format!("HTTP/1.1 {} x\r\nconnection: close\r\n", answer.status);
    for (name, value) in &answer.headers {
        head += &format!("{name}: {value}\r\n");
    }
    stream.write_all(format!("{head}\r\n").as_bytes())?;
    stream.write_all(&answer.body[..answer.sent])?;
    stream.flush()?;
    match answer.after {
        After::Close => Ok(()),
        After::Stall => {
            thread::sleep(Duration::from_secs(120));
            Ok(())
        }
        After::Repeat => loop {
            stream.write_all(&answer.body)?;
        },
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

pub fn sha256(content: &[u8]) -> String {
    hex(&Sha256::digest(content))
}

pub fn git_blob(content: &[u8]) -> String {
    let head = format!("blob {}\0", content.len());
    hex(&Sha1::new().chain_update(head).chain_update(content).finalize())
}

pub const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// The files of a repository; large ones are of LFS.
#[derive(Clone, Default)]
pub struct Repo {
    pub id: &'static str,
    pub is_dataset: bool,
    pub files: BTreeMap<String, Vec<u8>>,
    pub card: Value,
}

impl Repo {
    pub fn new(id: &'static str, is_dataset: bool, files: &[(&str, &[u8])]) -> Self {
        let files = files.iter().map(|(path, content)| (path.to_string(), content.to_vec()));
        Self { id, is_dataset, files: files.collect(), card: json!({ "license": "mit" }) }
    }

    fn kind(&self) -> &'static str {
        if self.is_dataset { "datasets" } else { "models" }
    }

    pub fn listing(&self) -> Value {
        let file = |(path, content): (&String, &Vec<u8>)| {
            let size = content.len();
            let mut file = json!({ "rfilename": path, "size": size, "blobId": git_blob(content) });
            if size > 1000 {
                file["lfs"] =
                    json!({ "sha256": sha256(content), "size": size, "pointerSize": 134 });
            }
            file
        };
        let siblings: Vec<Value> = self.files.iter().map(file).collect();
        json!({ "id": self.id, "sha": COMMIT, "cardData": self.card, "siblings": siblings })
    }

    pub fn api_path(&self) -> String {
        format!("/api/{}/{}?blobs=True", self.kind(), self.id)
    }

    /// Returns the content of a requested file.
    pub fn file(&self, path: &str) -> Option<&Vec<u8>> {
        let prefix = if self.is_dataset { "/datasets/" } else { "/" };
        let name = path.strip_prefix(&format!("{prefix}{}/resolve/{COMMIT}/", self.id))?;
        self.files.get(name)
    }

    /// Answers as the Hub does.
    pub fn answer(&self, request: &Request) -> Answer {
        if request.path == self.api_path() {
            return Answer::new(200, self.listing().to_string());
        }
        match self.file(&request.path) {
            Some(content) => Answer::file(request, content),
            None => Answer::new(404, "{}"),
        }
    }
}
