//! A run keeps the system awake, and tells the desktop that it has ended.

use std::io::{BufRead, BufReader, Read};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::mpsc::{Receiver, channel};

use super::*;

/// A message of D-Bus: <https://dbus.freedesktop.org/doc/dbus-specification.html#message-protocol-messages>.
fn read_message(stream: &mut impl Read) -> std::io::Result<Vec<u8>> {
    let mut message = vec![0; 16];
    stream.read_exact(&mut message)?;
    let number = |at: usize| u32::from_le_bytes(message[at..at + 4].try_into().unwrap()) as usize;
    let (body, fields) = (number(4), number(12));
    let length = 16 + fields.next_multiple_of(8) + body;
    message.resize(length, 0);
    stream.read_exact(&mut message[16..])?;
    Ok(message)
}

/// Lets a client in, and gives it a name, as its first message requests. Returns what it writes then.
fn greet(stream: UnixStream) -> BufReader<UnixStream> {
    let mut answers = stream.try_clone().unwrap();
    let mut requests = BufReader::new(stream);
    loop {
        let mut line = String::new();
        requests.read_line(&mut line).unwrap();
        match line.trim_start_matches('\0').split_whitespace().next() {
            Some("AUTH") => answers.write_all(b"OK 0123456789abcdef0123456789abcdef\r\n").unwrap(),
            Some("NEGOTIATE_UNIX_FD") => answers.write_all(b"AGREE_UNIX_FD\r\n").unwrap(),
            _ => break,
        }
    }
    let hello = read_message(&mut requests).unwrap();
    let mut answer = vec![b'l', 2, 1, 1, 9, 0, 0, 0, 1, 0, 0, 0, 15, 0, 0, 0, 5, 1, b'u', 0];
    answer.extend(&hello[8..12]);
    answer.extend([8, 1, b'g', 0, 1, b's', 0, 0, 4, 0, 0, 0]);
    answer.extend(b":1.1\0");
    answers.write_all(&answer).unwrap();
    requests
}

/// Starts a bus that answers nothing but a client's first message. Returns its address, and what clients write.
fn bus(folder: &Path) -> (String, Receiver<String>) {
    let path = folder.join("bus");
    let listener = UnixListener::bind(&path).unwrap();
    let (sender, requests) = channel();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut client = greet(stream.unwrap());
            while let Ok(message) = read_message(&mut client) {
                sender.send(text(&message)).unwrap();
            }
        }
    });
    (format!("unix:path={}", path.display()), requests)
}

/// A bus that never answers the request does not keep the run from training and ending.
#[test]
fn a_run_asks_the_system_to_stay_awake() {
    let folder = temporary();
    let (address, requests) = bus(folder.path());
    let start = |name: &str, more: &[&str]| {
        let mut command = wgpt(folder.path());
        command.env("DBUS_SYSTEM_BUS_ADDRESS", &address).arg("train").arg(format!("--run={name}"));
        command.args(TINY).args(more).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
    };
    assert!(start("off", &["--keep_awake=false"]).wait().unwrap().success());
    assert!(requests.try_recv().is_err(), "it was switched off");

    let mut child = start("on", &ENDLESS);
    let request = requests.recv_timeout(Duration::from_secs(120)).unwrap();
    for word in
        ["org.freedesktop.login1", "Inhibit", "idle", "wgpt", "a model is training", "block"]
    {
        assert!(request.contains(word), "no {word} in {request:?}");
    }
    wait_for(&folder.path().join("on/events.jsonl"), &mut child);
    assert!(
        Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success()
    );
    assert_eq!(child.wait().unwrap().code(), Some(130));
}

#[test]
fn the_desktop_is_told_of_the_end_of_a_run() {
    let folder = temporary();
    let (address, messages) = bus(folder.path());
    for (name, more, is_told) in [
        ("told", &["--max_time=12s"][..], true),
        ("untold", &["--max_time=12s", "--notify=false"], false),
    ] {
        let mut command = wgpt(folder.path());
        command.env("DBUS_SESSION_BUS_ADDRESS", &address).arg("train");
        command.arg(format!("--run={name}")).args(TINY).arg("--keep_awake=false");
        command.args(ENDLESS).args(more);
        let output = command.output().unwrap();
        assert!(output.status.success(), "{name}: {}", text(&output.stderr));
        let told = std::iter::from_fn(|| messages.try_recv().ok()).collect::<String>();
        assert_eq!(told.contains("org.freedesktop.Notifications"), is_told, "{name}: {told}");
        assert_eq!(told.contains("told has finished"), is_told, "{told}");
        assert_eq!(told.contains("Its best validation loss is"), is_told, "{told}");
    }
}
